"""What many runs ask for, executed together where their runtime can."""

from collections.abc import Sequence

from covey.evaluation import Scores
from covey.loop import Answer, Request, Scoring
from covey.messages import Order, Replies
from covey.roles import Runtime
from covey.runtimes.devices import OnDevices, no_replies
from covey.runtimes.stacked import StackedRuntime, evaluate_together, execute_together


def execute_in_lockstep(requests: Sequence[tuple[Runtime, Request]]) -> list[Answer]:
    """Answers to every request: stacked runs as one launch, others one after another."""
    scorings = [(runtime, request) for runtime, request in requests if isinstance(request, Scoring)]
    orders = [(runtime, request) for runtime, request in requests if isinstance(request, Order)]
    scores, replies = iter(_scored(scorings)), iter(_executed(orders))
    return [next(scores) if isinstance(request, Scoring) else next(replies) for _, request in requests]


def _executed(orders: Sequence[tuple[Runtime, Order]]) -> list[Replies]:
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


def _scored(scorings: Sequence[tuple[Runtime, Scoring]]) -> list[Scores]:
    scores: dict[int, Scores] = {}
    stacked = {}
    for number, (runtime, scoring) in enumerate(scorings):
        inner = runtime.runtime if isinstance(runtime, OnDevices) else runtime
        if isinstance(inner, StackedRuntime):
            stacked[number] = (inner, scoring.models)
        else:
            scores[number] = runtime.evaluate(scoring.models)
    if stacked:
        scores |= dict(zip(stacked, evaluate_together(list(stacked.values())), strict=True))
    return [scores[number] for number in range(len(scorings))]
