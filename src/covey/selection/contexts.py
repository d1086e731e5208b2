"""Base of contextual bandits: clients' contexts, requested once, and their rewards."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.losses import Utility
from covey.probe.simhash import Form, Packed, SimHash, StopWordHash, unpacked

Reward = Literal["per-sample", "total"]

_TOGETHER = 1 << 13
"""Contexts that are unpacked at once. They fit a processor's cache, which is twice as fast as ten times as many."""


class ContextSelector(Selector):
    """Base of selectors that know each client by the SimHash of its data, and learn from rewards.

    A client is asked for its context when it can first be reached: all clients in the first round, later those that
    were away or whose answer was lost. A client without a known context is invited only if there are too few others.

    A reward is √(mean loss²) of the model that the client received, U(i)/|D_i| of equation 2, over the greatest one
    so far, hence in [0, 1]. A client whose measurement was lost has no reward in that round.

    Records show the utility of the clients that replied (equation 3). With `regret` they also show by how much the
    cohorts so far fell short of the best ones, Σ U(B*) - U(B) (equation 4), the utility of the round's best cohort, and
    the mean √(mean loss²) over the cohort and over all clients. All reachable clients are then asked for their losses
    in every round; only the records use them.
    """

    def __init__(
        self,
        *,
        bits: int,
        form: Form,
        quantisation: float,
        reward: Reward,
        regret: bool = False,
        stop_words: StopWordHash = "ignore",
    ) -> None:
        require(8 <= bits <= 256 and bits % 8 == 0, f"selector.bits must be a multiple of 8 from 8 to 256, not {bits}.")
        require(
            form in ("auto", "tokens", "quantised", "projection"),
            f"selector.form is auto, tokens, quantised or projection, not '{form}'.",
        )
        require(quantisation > 0, f"selector.quantisation must be above 0, not {quantisation:g}.")
        require(reward in ("per-sample", "total"), f"selector.reward is per-sample or total, not '{reward}'.")
        require(stop_words in ("ignore", "hash"), f"selector.stop_words is ignore or hash, not '{stop_words}'.")
        self.bits = bits
        self.reward = reward
        self.records_regret = regret
        self.probe = SimHash(bits, form, quantisation, stop_words)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.contexts: Packed = np.zeros((setting.clients, self.bits // 8), dtype=np.uint8)
        """`[clients, bits / 8]`"""
        self.known: NDArray[np.bool_] = np.zeros(setting.clients, dtype=np.bool_)
        """`[clients]`: True if the client's context is known."""
        self.learned = 0
        """Number of contexts that were learned, to tell when they change."""
        self.greatest = 0.0
        """The greatest reward so far, in the unit of the loss (times samples if `reward` is total)."""
        self.regret = 0.0
        """By how much the cohorts so far fell short of the best ones, if that is recorded."""
        self._utility: float | None = None
        self._best: float | None = None
        self._mean_losses: tuple[float, float] | None = None
        """Of the cohort, and of all clients that reported."""
        self._utilities: FloatArray = np.full(setting.clients if self.records_regret else 0, np.nan)
        """`[clients]`: U(i) of the current model; NaN where unknown."""
        self._losses = self._utilities.copy()
        """`[clients]`: √(mean loss²) of the current model; NaN where unknown."""

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]] | None:
        unknown = candidates[~self.known[candidates]]
        if self.records_regret:
            return candidates, (self.probe, Utility()) if len(unknown) else (Utility(),)
        return (unknown, (self.probe,)) if len(unknown) else None

    def surveyed(self, t: int, replies: Replies) -> None:
        # Lost bits are a row of zeros, which is a valid context too: only the fault tells them apart.
        lacking = [fault.client for fault in replies.faults if fault.measurement == self.probe.name]
        rows = replies.observed(self.probe.name)
        rows = rows[~np.isin(replies.clients[rows], lacking)]
        if len(rows):
            clients = replies.clients[rows]
            self.contexts[clients] = replies.probes[self.probe.name]["bits"].numpy()[rows]
            self.known[clients] = True
            self.learned += len(clients)
        if self.records_regret:
            rows, losses = _losses(replies)
            self._losses[:] = self._utilities[:] = np.nan
            self._losses[replies.clients[rows]] = losses
            self._utilities[replies.clients[rows]] = replies.samples.double().numpy()[rows] * losses

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (Utility(),)

    def observe(self, t: int, replies: Replies) -> None:
        rows, rewards = _losses(replies)
        self._utility = None
        if len(rows):
            samples = replies.samples.double().numpy()[rows]
            self._utility = cohort_utility(samples * rewards)
            rewards = samples * rewards if self.reward == "total" else rewards
            self.greatest = max(self.greatest, float(rewards.max()))
        known = self.known[replies.clients[rows]]
        self.learn(t, replies.clients[rows][known], rewards[known])

    @abstractmethod
    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Learn from rewards `[k]`, not scaled, of clients `[k]` with a known context (possibly none)."""

    def scaled(self, rewards: FloatArray) -> FloatArray:
        """Divide rewards by the greatest so far, hence to [0, 1]."""
        return rewards / (self.greatest or 1.0)

    def figures(self) -> dict[str, object]:
        if not self.records_regret:
            return {"utility": self._utility}
        ours, everyone = self._mean_losses or (None, None)
        losses = {"cohort_loss": ours, "population_loss": everyone}
        return {"utility": self._utility, "best_utility": self._best, "regret": self.regret, **losses}

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
        """Return the contexts of clients `[k]`: `[k, bits]` of 0 and 1."""
        return unpacked(self.contexts[clients]).astype(np.float64)

    def blocks(self, clients: IntArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield slices of `clients` and their contexts, a block at a time."""
        for at in range(0, len(clients), _TOGETHER):
            here = slice(at, at + _TOGETHER)
            yield here, self.bits_of(clients[here])

    def filled(self, rng: np.random.Generator, cohort: IntArray, candidates: IntArray) -> IntArray:
        """Fill up the cohort with clients of unknown context, if the others are too few."""
        missing = min(self.setting.cohort, len(candidates)) - len(cohort)
        if missing > 0:
            unknown = candidates[~self.known[candidates]]
            cohort = np.concatenate([cohort, rng.choice(unknown, size=min(missing, len(unknown)), replace=False)])
        if self.records_regret:
            self._add_regret(cohort)
        return cohort

    def _add_regret(self, cohort: IntArray) -> None:
        """Add the cohort's shortfall from the best one of its size, by the utilities that clients reported."""
        known = np.sort(self._utilities[np.isfinite(self._utilities)])
        self._best = cohort_utility(known[max(0, len(known) - len(cohort)) :])
        self.regret += self._best - cohort_utility(np.nan_to_num(self._utilities[cohort]))
        invited = self._losses[cohort]
        invited, everyone = (some[np.isfinite(some)] for some in (invited, self._losses))
        self._mean_losses = (float(invited.mean()), float(everyone.mean())) if len(invited) else None


def cohort_utility(utilities: FloatArray) -> float:
    """Return U(B) = √ΣU(i)², with U(i) = |D_i|·√(mean loss²) (equations 2 and 3)."""
    return float(np.sqrt(np.square(utilities).sum()))


def _losses(replies: Replies) -> tuple[IntArray, FloatArray]:
    """Return the rows of clients that reported losses, and √(mean loss²) of each: `[k]` each."""
    rows = replies.observed(Utility.name)
    if not len(rows):
        return rows, np.empty(0)
    squares = replies.probes[Utility.name]["square"].double().numpy()[rows]
    return rows, np.sqrt(np.maximum(squares, 0))


def one_blas_thread() -> AbstractContextManager[object]:
    """Compute NumPy's matrix products on one thread inside.

    They are too small to gain from more, suffer from them on a busy machine, and would depend on their number.
    """
    limited: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limited


@lru_cache(maxsize=1)
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def normalised(bits: FloatArray) -> FloatArray:
    """Scale contexts `[n, bits]` to length 1 (a context of zeros stays 0)."""
    lengths = np.sqrt(bits.sum(axis=1, keepdims=True))
    contexts: FloatArray = bits / np.maximum(lengths, 1.0)
    return contexts


def highest(rng: np.random.Generator, scores: FloatArray, count: int) -> IntArray:
    """Return the positions of the `count` highest scores, the highest first; ties are broken at random."""
    count = min(count, len(scores))
    if not count:
        return np.empty(0, dtype=np.int64)
    # Scores of equal contexts may differ in their last bits, by their position in a matrix product.
    scores = np.round(scores, 9)
    lowest = np.partition(scores, len(scores) - count)[len(scores) - count]
    inside = rng.permutation(np.flatnonzero(scores >= lowest))
    return inside[np.argsort(-scores[inside], kind="stable")][:count]
