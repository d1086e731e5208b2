"""Simulated devices: clients' speed, availability and dropout, on a simulated clock.

Devices decide whether and when a reply arrives, never its content. With them, results have a time to accuracy as well
as rounds to accuracy.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.config.sections import Devices
from covey.core.interfaces import Method, Runtime
from covey.core.messages import Fault, Order
from covey.core.replies import Replies
from covey.core.round_record import RoundRecord
from covey.core.scores import Scores
from covey.randomness import generator


@dataclass(frozen=True, eq=False)
class Fate:
    """How an order fares with simulated clients."""

    seconds: FloatArray
    """`[cohort]`: for download, local epochs and upload."""
    lost: dict[int, str]
    """Clients whose reply does not arrive, with the reason."""

    def answering(self, order: Order) -> Order:
        """Return the order for clients whose reply will arrive."""
        if not self.lost:
            return order
        return order.take(np.flatnonzero([client not in self.lost for client in order.clients.tolist()]))


class OnDevices(Runtime):
    """A runtime with simulated devices: some are unavailable, some do not reply, and each takes its time."""

    def __init__(self, runtime: Runtime, devices: Devices, sizes: IntArray, seed: int) -> None:
        self.runtime = runtime
        self.devices = devices
        self._sizes = sizes
        self._seed = seed
        rng = generator(seed, "devices")
        self.speeds: FloatArray = devices.speed * np.exp(devices.spread * rng.standard_normal(len(sizes)))
        self.bandwidths: FloatArray = devices.bandwidth * np.exp(devices.spread * rng.standard_normal(len(sizes)))

    def available(self, t: int) -> IntArray:
        """Return the share of clients that can be reached, at least one."""
        reachable = self.runtime.available(t)
        if self.devices.availability == 1 or self.live:
            return reachable
        count = max(1, int(len(reachable) * self.devices.availability + 0.5))
        rng = generator(self._seed, t, "availability")
        return np.sort(rng.choice(reachable, size=count, replace=False))

    def execute(self, order: Order) -> Replies:
        """Return the replies that arrive in time, with the seconds that each client and the round took."""
        return self.runtime.execute(order) if self.live else self.execute_many([(self, order)])[0]

    def fate(self, order: Order) -> Fate:
        """Return how long each of the order's clients takes, and whose reply does not arrive."""
        seconds = self._seconds(order)
        return Fate(seconds, self._lost(order, seconds))

    def timed(self, order: Order, replies: Replies, fate: Fate) -> Replies:
        """Return the replies with their seconds, and a fault for each that did not arrive."""
        waited = float(fate.seconds.max(initial=0.0))
        taken = dict(zip(order.clients.tolist(), fate.seconds.tolist(), strict=True))
        timed = replies.timed(taken, min(waited, self.devices.deadline or waited))
        lost = (Fault(client, reason) for client, reason in fate.lost.items())
        return replace(timed, faults=(*replies.faults, *lost)) if fate.lost else timed

    @property
    def live(self) -> bool:  # type: ignore[override]
        return self.runtime.live

    @property
    def holdings_known(self) -> bool:  # type: ignore[override]
        return self.runtime.holdings_known

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.runtime.overlaps

    @property
    def group(self) -> Hashable:
        return "devices", self.runtime.group

    def attach(self, method: Method) -> None:
        self.runtime.attach(method)

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.runtime.restore(rows)

    def annotate(self, record: RoundRecord) -> RoundRecord:
        return self.runtime.annotate(record)

    def execute_many(
        self, orders: Sequence[tuple[Runtime, Order]], meanwhile: Callable[[], None] | None = None
    ) -> list[Replies]:
        """Execute the orders for clients that reply, in one call of the wrapped runtime."""
        wrapped = [(_on_devices(runtime), order) for runtime, order in orders]
        if self.live:
            return [runtime.runtime.execute(order) for runtime, order in wrapped]
        fates = [runtime.fate(order) for runtime, order in wrapped]
        sent = [fate.answering(order) for fate, (_, order) in zip(fates, wrapped, strict=True)]
        reaching = [number for number, order in enumerate(sent) if len(order.clients)]
        below = [(wrapped[number][0].runtime, sent[number]) for number in reaching]
        overlapping = (meanwhile,) if self.overlaps else ()
        found = dict(zip(reaching, self.runtime.execute_many(below, *overlapping), strict=True)) if below else {}
        return [
            runtime.timed(order, found[number] if number in found else no_replies(order), fates[number])
            for number, (runtime, order) in enumerate(wrapped)
        ]

    def evaluate_many(self, requests: Sequence[tuple[Runtime, Tensor]]) -> list[Scores]:
        return self.runtime.evaluate_many([(_on_devices(runtime).runtime, states) for runtime, states in requests])

    def evaluate(self, states: Tensor) -> Scores:
        return self.runtime.evaluate(states)

    def close(self) -> None:
        self.runtime.close()

    def _seconds(self, order: Order) -> FloatArray:
        """Return the seconds for download, local epochs and upload: `[cohort]`."""
        clients = order.clients
        # A forward pass takes about a third of a forward and backward pass.
        passes = order.work.epochs if order.train else 1 / 3
        trained = self._sizes[clients] * passes / self.speeds[clients]
        returned = order.start.shape[-1] * order.start.element_size() if order.returns_model else 0
        seconds: FloatArray = trained + (_received(order) + returned) / self.bandwidths[clients]
        return seconds

    def _lost(self, order: Order, seconds: FloatArray) -> dict[int, str]:
        """Return the clients whose reply does not arrive, with the reason."""
        lost: dict[int, str] = {}
        deadline = self.devices.deadline
        if not deadline and not self.devices.dropout:
            return lost
        # Drawn apart: a client that replies to a survey may still drop out of the training.
        purpose = "dropout" if order.train else "dropout of answers"
        draws = generator(self._seed, order.round, purpose).random(len(self._sizes))
        for client, needed in zip(order.clients.tolist(), seconds.tolist(), strict=True):
            if draws[client] < self.devices.dropout:
                lost[client] = "it dropped out"
            elif deadline and needed > deadline:
                lost[client] = f"it needed {needed:.1f} s and the deadline is {deadline:g} s"
        return lost


def _on_devices(runtime: Runtime) -> OnDevices:
    """Narrow the type of a runtime: a group with simulated devices has no runtimes without."""
    assert isinstance(runtime, OnDevices)
    return runtime


def _received(order: Order) -> FloatArray:
    """Return the bytes of the tensors sent to each client, equal unless the order is personal: `[cohort]`."""
    positions = range(len(order.clients) if order.personal else min(1, len(order.clients)))
    sizes = [sum(value.numel() * value.element_size() for value in order.tensors(at).values()) for at in positions]
    return np.array(sizes if order.personal else sizes * len(order.clients), dtype=np.float64)


def no_replies(order: Order) -> Replies:
    """Return the replies of a round in which no client replied."""
    nothing = torch.empty(0, dtype=torch.float64)
    states = order.start.new_empty(0, order.start.shape[-1])
    return Replies(np.empty(0, dtype=np.int64), states, torch.empty(0, dtype=torch.int64), nothing)
