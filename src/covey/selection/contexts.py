"""What bandits that know clients by their data have in common: contexts, asked for once, and rewards."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.messages import Replies
from covey.errors import require
from covey.probe.losses import Utility
from covey.probe.simhash import Form, Packed, SimHash, unpacked

Reward = Literal["per-sample", "total"]

_TOGETHER = 1 << 13
"""Contexts that are unpacked at once: few enough for a processor's cache, which is twice as fast as ten times more."""


class ContextSelector(Selector):
    """Knows each client by its SimHash, and learns what inviting it was worth.

    Clients are asked for their bits when they can first be reached: in the first round all of them, later only those
    that were away, or whose answer did not arrive. As long as a client's bits are not known, it is invited only where
    there are too few others.

    A reward is √(mean loss²) of the model that the client received, U(i)/|D_i| of equation 2, over the greatest one
    seen so far, hence in [0, 1]. A client whose measurement did not arrive has none in that round.

    Records tell the utility of the clients that replied (equation 3). With `regret` they also tell by how much the
    cohorts so far fell short of the best ones, Σ U(B*) - U(B) (equation 4): all clients that can be reached are then
    asked for their utility in every round, which nothing but the records learns of.
    """

    def __init__(self, *, bits: int, form: Form, quantisation: float, reward: Reward, regret: bool = False) -> None:
        require(8 <= bits <= 256 and bits % 8 == 0, f"selector.bits must be a multiple of 8 from 8 to 256, not {bits}.")
        require(
            form in ("auto", "tokens", "quantised", "projection"),
            f"selector.form is auto, tokens, quantised or projection, not '{form}'.",
        )
        require(quantisation > 0, f"selector.quantisation must be above 0, not {quantisation:g}.")
        require(reward in ("per-sample", "total"), f"selector.reward is per-sample or total, not '{reward}'.")
        self.bits = bits
        self.reward = reward
        self.judged = regret
        self.probe = SimHash(bits, form, quantisation)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.contexts: Packed = np.zeros((setting.clients, self.bits // 8), dtype=np.uint8)
        """`[clients, bits / 8]`"""
        self.known: NDArray[np.bool_] = np.zeros(setting.clients, dtype=np.bool_)
        """`[clients]`: whose context has arrived."""
        self.greatest = 0.0
        """The greatest reward so far, in the unit of the loss (times samples, where reward is total)."""
        self.regret = 0.0
        """By how much the cohorts so far fell short of the best ones, where that is asked for."""
        self._utility: float | None = None
        self._best: float | None = None
        self._utilities: FloatArray = np.full(setting.clients if self.judged else 0, np.nan)
        """`[clients]`: U(i) at the present model, of those that were asked for it; else NaN."""

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]] | None:
        unknown = candidates[~self.known[candidates]]
        if self.judged:
            return candidates, (self.probe, Utility()) if len(unknown) else (Utility(),)
        return (unknown, (self.probe,)) if len(unknown) else None

    def surveyed(self, t: int, replies: Replies) -> None:
        # Bits that did not arrive are a row of zeros, which bits may be, so that only the fault tells.
        lacking = [fault.client for fault in replies.faults if fault.measurement == self.probe.name]
        rows = replies.observed(self.probe.name)
        rows = rows[~np.isin(replies.clients[rows], lacking)]
        if len(rows):
            clients = replies.clients[rows]
            self.contexts[clients] = replies.probes[self.probe.name]["bits"].numpy()[rows]
            self.known[clients] = True
        if self.judged:
            rows, losses = _losses(replies)
            self._utilities[:] = np.nan
            self._utilities[replies.clients[rows]] = replies.samples.double().numpy()[rows] * losses

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (Utility(),)

    def observe(self, t: int, replies: Replies) -> None:
        rows, rewards = _losses(replies)
        self._utility = None
        if len(rows):
            samples = replies.samples.double().numpy()[rows]
            self._utility = together(samples * rewards)
            rewards = samples * rewards if self.reward == "total" else rewards
            self.greatest = max(self.greatest, float(rewards.max()))
        known = self.known[replies.clients[rows]]
        self.learn(t, replies.clients[rows][known], rewards[known])

    @abstractmethod
    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Take in the rewards `[k]` of clients `[k]` with a context (possibly none), not yet scaled."""

    def scaled(self, rewards: FloatArray) -> FloatArray:
        """Rewards in [0, 1]: as shares of the greatest so far."""
        return rewards / (self.greatest or 1.0)

    def figures(self) -> dict[str, object]:
        judged = {"best_utility": self._best, "regret": self.regret} if self.judged else {}
        return {"utility": self._utility, **judged}

    def state_dict(self) -> State:
        return {
            "contexts": self.contexts.copy(),
            "known": self.known.copy(),
            "greatest": self.greatest,
            "regret": self.regret,
        }

    def load_state_dict(self, state: State) -> None:
        self.contexts = np.array(state["contexts"], dtype=np.uint8)
        self.known = np.array(state["known"], dtype=np.bool_)
        self.greatest = float(state["greatest"])
        self.regret = float(state.get("regret", 0.0))

    def bits_of(self, clients: IntArray) -> FloatArray:
        """The contexts of some clients: `[k, bits]` of 0 and 1."""
        return unpacked(self.contexts[clients]).astype(np.float64)

    def blocks(self, clients: IntArray) -> Iterator[tuple[slice, FloatArray]]:
        """The contexts of many clients, some at a time, and which they are."""
        for at in range(0, len(clients), _TOGETHER):
            here = slice(at, at + _TOGETHER)
            yield here, self.bits_of(clients[here])

    def filled(self, rng: np.random.Generator, cohort: IntArray, candidates: IntArray) -> IntArray:
        """The cohort, with clients of unknown context where those with one are too few."""
        missing = min(self.setting.cohort, len(candidates)) - len(cohort)
        if missing > 0:
            unknown = candidates[~self.known[candidates]]
            cohort = np.concatenate([cohort, rng.choice(unknown, size=min(missing, len(unknown)), replace=False)])
        if self.judged:
            self._judge(cohort)
        return cohort

    def _judge(self, cohort: IntArray) -> None:
        """Add what the cohort falls short of the best one of its size, of those that told their utility."""
        told = np.sort(self._utilities[np.isfinite(self._utilities)])
        self._best = together(told[max(0, len(told) - len(cohort)) :])
        self.regret += self._best - together(np.nan_to_num(self._utilities[cohort]))


def together(utilities: FloatArray) -> float:
    """U(B) = √ΣU(i)², with U(i) = |D_i|·√(mean loss²) (equations 2 and 3)."""
    return float(np.sqrt(np.square(utilities).sum()))


def _losses(replies: Replies) -> tuple[IntArray, FloatArray]:
    """Who told its losses, as positions, and the root of their mean square: `[k]` each."""
    rows = replies.observed(Utility.name)
    if not len(rows):
        return rows, np.empty(0)
    squares = replies.probes[Utility.name]["square"].double().numpy()[rows]
    return rows, np.sqrt(np.maximum(squares, 0))


def one_thread() -> AbstractContextManager[object]:
    """Where products of matrices are computed on one thread.

    They are too small to gain from more, lose much by them on a busy machine, and would depend on how many there are.
    """
    limited: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limited


@lru_cache(maxsize=1)
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def normalised(bits: FloatArray) -> FloatArray:
    """Contexts `[n, bits]` at length 1 (a context without any bit stays 0)."""
    lengths = np.sqrt(bits.sum(axis=1, keepdims=True))
    contexts: FloatArray = bits / np.maximum(lengths, 1.0)
    return contexts


def highest(rng: np.random.Generator, scores: FloatArray, count: int) -> IntArray:
    """Positions of the `count` highest scores, the highest first; among equals chance decides."""
    count = min(count, len(scores))
    if not count:
        return np.empty(0, dtype=np.int64)
    # Equal contexts may differ in the last bits of a product of matrices, by where they stand in it.
    scores = np.round(scores, 9)
    lowest = np.partition(scores, len(scores) - count)[len(scores) - count]
    inside = rng.permutation(np.flatnonzero(scores >= lowest))
    return inside[np.argsort(-scores[inside], kind="stable")][:count]
