"""The orders of many runs executed together, where their runtime can."""

from collections.abc import Sequence

from covey.messages import Order, Replies
from covey.roles import Runtime
from covey.runtimes.devices import OnDevices, no_replies
from covey.runtimes.stacked import StackedRuntime, execute_together


def execute_in_lockstep(orders: Sequence[tuple[Runtime, Order]]) -> list[Replies]:
    """Replies to every order: stacked runs as one launch, others one after another."""
    replies: dict[int, Replies] = {}
    stacked: dict[int, tuple[StackedRuntime, Order]] = {}
    for number, (runtime, order) in enumerate(orders):
        if isinstance(runtime, OnDevices) and isinstance(runtime.runtime, StackedRuntime):
            answering = runtime.answering(order)
            if len(answering.clients):
                stacked[number] = (runtime.runtime, answering)
            else:
                replies[number] = runtime.timed(order, no_replies(order))
        else:
            replies[number] = runtime.execute(order)
    if stacked:
        for number, answer in zip(stacked, execute_together(list(stacked.values())), strict=True):
            runtime, order = orders[number]
            assert isinstance(runtime, OnDevices)
            replies[number] = runtime.timed(order, answer)
    return [replies[number] for number in range(len(orders))]
