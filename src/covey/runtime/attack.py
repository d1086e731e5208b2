"""Hostile clients in a simulation: a runtime whose attackers change what they reply."""

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.config.sections import Attack
from covey.core.interfaces import Method, Runtime
from covey.core.messages import Measurements, Order
from covey.core.replies import Replies
from covey.core.round_record import RoundRecord
from covey.core.scores import Scores
from covey.randomness import generator

_CLAIMED = 10**9
"""Samples that an attacker claims."""

_LOSS = 1000.0
"""Loss that an attacker claims."""

_LOSSES: Mapping[tuple[str, str], float] = {
    ("losses", "before"): _LOSS,
    ("losses", "after"): _LOSS,
    ("utility", "loss"): _LOSS,
    ("utility", "square"): _LOSS**2,
}
"""Fields of probes that tell a loss, with what an attacker says."""


class UnderAttack(Runtime):
    """A runtime some of whose clients are hostile. They know the model, their data and each other, and nothing else.

    The exception is a lie about insights: attackers send the mean of the cohort's, which no client knows; it is the
    best that they could guess.
    """

    def __init__(self, runtime: Runtime, attack: Attack, clients: int, seed: int) -> None:
        self.runtime = runtime
        self.attack = attack
        self._seed = seed
        count = max(1, round(attack.attackers * clients))
        self.attackers: IntArray = np.sort(generator(seed, "attack").permutation(clients)[:count])

    def execute(self, order: Order) -> Replies:
        return self.attacked(order, self.runtime.execute(order))

    def attacked(self, order: Order, replies: Replies) -> Replies:
        """Return the replies with what attackers send in the place of theirs."""
        rows = np.flatnonzero(np.isin(replies.clients, self.attackers))
        if not len(rows):
            return replies
        kind, index = self.attack.kind, torch.from_numpy(rows)
        if kind == "lie":
            losses = replies.losses.clone()
            losses[index] = _LOSS
            return replace(replies, losses=losses, probes=_lies(replies.probes, index))
        if kind in ("count", "count-flip"):
            samples = replies.samples.clone()
            samples[index] = _CLAIMED
            replies = replace(replies, samples=samples)
        if kind == "count" or not order.returns_model or not replies.states.shape[1]:
            return replies
        states = replies.states.clone()
        place = index.to(states.device)
        start = order.start if order.start.dim() == 1 else order.start[np.isin(order.clients, replies.clients[rows])]
        start = start.to(states)
        states[place] = start + self._updates(order.round, replies.clients[rows], states[place] - start)
        return replace(replies, states=states)

    def _updates(self, t: int, clients: IntArray, honest: Tensor) -> Tensor:
        """Return attackers' updates in the place of honest ones `[a, d]`."""
        size = self.attack.size
        if self.attack.kind == "scale":
            return honest * size
        if self.attack.kind == "collude":
            return honest.mean(dim=0).expand_as(honest) * -size
        if self.attack.kind == "noise":
            rngs = [generator(self._seed, t, client, "attack") for client in clients.tolist()]
            noise = torch.from_numpy(np.stack([rng.standard_normal(honest.shape[1]) for rng in rngs])).to(honest)
            sizes: Tensor = honest.norm(dim=1) / noise.norm(dim=1) * size
            return noise * sizes[:, None]
        return honest * -size

    def annotate(self, record: RoundRecord) -> RoundRecord:
        """Return the record with the attackers among the round's clients."""
        found = np.intersect1d(record["clients"], self.attackers).tolist()
        return {**self.runtime.annotate(record), "attackers": found}

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.runtime.overlaps

    @property
    def group(self) -> Hashable:
        return "attack", self.runtime.group

    def execute_many(
        self, orders: Sequence[tuple[Runtime, Order]], meanwhile: Callable[[], None] | None = None
    ) -> list[Replies]:
        wrapped = [(_under_attack(runtime), order) for runtime, order in orders]
        overlapping = (meanwhile,) if self.overlaps else ()
        found = self.runtime.execute_many([(runtime.runtime, order) for runtime, order in wrapped], *overlapping)
        return [runtime.attacked(order, replies) for (runtime, order), replies in zip(wrapped, found, strict=True)]

    def evaluate_many(self, requests: Sequence[tuple[Runtime, Tensor]]) -> list[Scores]:
        return self.runtime.evaluate_many([(_under_attack(runtime).runtime, states) for runtime, states in requests])

    def available(self, t: int) -> IntArray:
        return self.runtime.available(t)

    def evaluate(self, states: Tensor) -> Scores:
        return self.runtime.evaluate(states)

    def attach(self, method: Method) -> None:
        """Hand the method on; say so if attackers have nothing to change."""
        if not getattr(method, "sends_models", True):
            warnings.warn(
                f"Clients of this method send no models, so attack.kind={self.attack.kind} changes nothing that is "
                "learned. attack.kind=labels does.",
                stacklevel=2,
            )
        self.runtime.attach(method)

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.runtime.restore(rows)

    def close(self) -> None:
        self.runtime.close()


def _under_attack(runtime: Runtime) -> UnderAttack:
    """Narrow the type of a runtime: a group under attack has no runtimes that are not."""
    assert isinstance(runtime, UnderAttack)
    return runtime


def _lies(probes: Measurements, rows: Tensor) -> Measurements:
    """Return measurements in which attackers claim a high loss, and the mean of the cohort's insights."""
    told: dict[str, dict[str, Tensor]] = {}
    for probe, fields in probes.items():
        told[probe] = {}
        for name, values in fields.items():
            lie = _LOSSES.get((probe, name))
            if lie is not None or probe == "insight":
                values = values.clone()
                values[rows.to(values.device)] = values.new_tensor(lie) if lie is not None else values.mean(dim=0)
            told[probe][name] = values
    return told
