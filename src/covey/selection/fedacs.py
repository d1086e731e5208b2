"""FedACS's dueling bandit (Wang, Zhu, Wang and Han, "Federated Analytics Informed Distributed Industrial IoT Learning
with Non-IID Data", IEEE TNSE 2022): invite clients whose data resemble those of all.

Each round's clients send an insight: the change of their last layer in one full-batch step. Its distance from the mean
insight measures the client's skew (eq. 13). The measure drifts as the model learns, so clients are only compared with
each other, in duels, and selection samples from a Beta distribution of each client's wins and losses.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.insight import Insight, vectors
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.update_insight import UPDATE, direction_scores, update_directions

LITERAL_CLIENTS = 500
"""Up to this many clients `draws="auto"` is the literal Algorithm 2 (about 10 ms a round)."""
# The two ways to draw agree for a pool of one and for clients with equal Betas. Otherwise fresh draws give clients with
# little evidence a new chance for every place: with one client at Beta(1, 1) and two settled at 0.5 and 0.4, a pool of
# two holds the first with probability 0.8 instead of 0.6. In a simulation with 200 clients and the paper's values,
# clients never invited were in the literal pool with probability 1 after 25 rounds, and in the other with 0.46 (mean
# difference over all clients: 0.13, and 0.03 after 200 rounds). Literal had tried everyone after 50 rounds, once after
# 90, and the mean skew of the cohorts was the same from round 50 on.

_TIE = 1e-6
"""Rewards that agree to this relative precision are a tie: the rest is rounding of the insights."""

_BETAS = 1 << 17
"""Betas that are drawn from one generator."""

_THREADS = 4

_COLUMNS = 1 << 18
"""Insight values that are processed at once, which bounds the memory for insights of a whole model."""


@selectors.add("fedacs")
class FedACS(Selector):
    """Finds a pool of clients with little skew by duels between their insights, and invites from it (FedACS).

    Do not use it where most clients hold the same few classes and a minority holds the others (cluster skew): clients
    near the mean are then the majority, the minority is hardly invited, and the model never learns its classes.

    A client that answers without a usable insight takes no part in the round's duels; its last record stays an
    opponent. A single insight equals its own mean and carries no information, so it is not used either. An invited
    client that does not answer, while others do, counts as beaten by everyone: otherwise a client that never answers
    would stay unknown, and fresh draws for each place in the pool would invite it again and again.

    pool: λ, the share of the reachable clients that the pool holds (Algorithm 2), at least a cohort. κ/N always takes
        the least skewed, 1 is uniform selection.
    history: h, for how many rounds a client's record stays an opponent (Algorithm 3).
    step: η, the amount that a duel adds to wins or losses. None is 1/h (1 without history), as in the authors' code:
        0.2 for the paper's five rounds.
    early_stop: number of rounds after which clients are no longer asked for insights and the Betas are frozen. The
        paper's tables do without it (None); its section VII-C stops after 200 of 1,000 rounds.
    insight: head (last layer), full (all parameters) or package.module:function. update asks clients for nothing: the
        skew is estimated from the directions of their last layers' updates, also for clients without Covey.
    norm: joint is eq. 13; per-tensor adds the norms of the weight and the bias, as the authors' code does.
    weighted: true weighs clients by their samples in the mean insight (eq. 14); the authors' code does not.
    draws: literal draws every remaining client's Beta afresh for each place in the pool, as in Algorithm 2, in O(λN²);
        once draws each client's Beta once and takes the highest, in O(N); auto is literal up to 500 clients and once
        beyond. Literal favours clients with little evidence; if there are too many to try them all, once learns sooner.
    """

    def __init__(
        self,
        *,
        pool: float = 0.4,
        history: int = 5,
        step: float | None = None,
        early_stop: int | None = None,
        insight: str = "head",
        norm: Literal["joint", "per-tensor"] = "joint",
        weighted: bool = True,
        draws: Literal["auto", "literal", "once"] = "auto",
    ) -> None:
        require(0 < pool <= 1, f"selector.pool is a share of the clients, above 0 and at most 1, not {pool:g}.")
        require(history >= 0, f"selector.history is a number of rounds, 0 or more, not {history}.")
        require(step is None or step > 0, f"selector.step must be above 0, not {step}.")
        require(
            early_stop is None or early_stop >= 0,
            f"selector.early_stop is a number of rounds, 0 or more, or none for all rounds, not {early_stop}.",
        )
        require(norm in ("joint", "per-tensor"), f"selector.norm is joint or per-tensor, not '{norm}'.")
        require(draws in ("auto", "literal", "once"), f"selector.draws is auto, literal or once, not '{draws}'.")
        self.pool = pool
        self.history = history
        self.step = step if step is not None else 1 / max(history, 1)
        self.early_stop = early_stop
        self.insight = insight
        self.norm = norm
        self.weighted = weighted
        self.draws = draws

    def require_fits(self, clients: int, cohort: int) -> None:
        places = self._places(clients)
        require(
            places >= cohort,
            f"selector.pool = {self.pool:g} of {clients} clients is a pool of {places}, too few for a "
            f"cohort of {cohort}: give at least {cohort / clients:.3g}.",
        )

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.require_fits(setting.clients, setting.cohort)
        self.probe = None if self.insight == UPDATE else Insight(rate=setting.work.rate, kind=self.insight)
        if self.probe is None:
            setting.layout.require_head("The selector 'fedacs' (insight=update)")
        else:
            self.probe.require_head(setting.layout, "The selector 'fedacs'")
        self._start: Tensor | None = None
        """The model that the round's clients received."""
        self.wins: FloatArray = np.zeros(setting.clients)
        self.losses: FloatArray = np.zeros(setting.clients)
        # The latest record of each client that has one, ascending by client.
        self.record_clients: IntArray = np.empty(0, dtype=np.int64)
        self.record_rounds: IntArray = np.empty(0, dtype=np.int64)
        self.record_rewards: FloatArray = np.empty(0)
        self._cohort: IntArray = np.empty(0, dtype=np.int64)

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (self.probe,) if self.probe is not None and self._learns(t) else ()

    def select(self, t: int, candidates: IntArray) -> IntArray:
        """Algorithm 2: compute the pool S', then draw κ clients uniformly from it."""
        pool = self.pool_of(t, candidates)
        rng = generator(self.setting.seed, t, "cohort")
        self._cohort = np.asarray(rng.choice(pool, size=min(self.setting.cohort, len(pool)), replace=False))
        return self._cohort

    def pool_of(self, t: int, candidates: IntArray) -> IntArray:
        """Return S' of Algorithm 2, the share λ of the candidates by Thompson sampling; ascending."""
        places = max(self.setting.cohort, self._places(len(candidates)))
        if places >= len(candidates):
            return candidates
        rng = generator(self.setting.seed, t, "pool")
        wins, losses = self.wins[candidates], self.losses[candidates]
        if self.draws == "literal" or (self.draws == "auto" and self.setting.clients <= LITERAL_CLIENTS):
            return candidates[literal_pool(rng, wins, losses, places)]
        return candidates[quick_pool(rng, wins, losses, places)]

    def _places(self, clients: int) -> int:
        """Return the number of places in a pool of the share λ of so many clients."""
        return round(self.pool * clients)

    def sent(self, t: int, model: Tensor) -> None:
        self._start = model

    def observe(self, t: int, replies: Replies) -> None:
        """Score this round's clients (eq. 16) and let them duel (Algorithm 3)."""
        if not self._learns(t):
            return
        if self.probe is not None:
            clients, samples, fields = usable_insights(replies, self.probe.name)
        else:
            clients, samples, fields = update_directions(replies, self._start, self.setting.layout)
        if len(clients):
            self.duel(t, clients, -self._skewness(fields, samples))
        self._penalise_silent(np.union1d(replies.clients, replies.withheld))

    def duel(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Algorithm 3: the round's clients duel with each other and with the records of the last h rounds.

        Only the round's clients win or lose; a tie, such as that of a client with itself, changes nothing.
        """
        recent = self.record_rounds >= t - self.history
        # `unique` keeps the first record of a client, so this round's come first.
        everyone = np.concatenate([clients, self.record_clients[recent]])
        self.record_clients, latest = np.unique(everyone, return_index=True)
        rounds = np.full(len(clients), t, dtype=np.int64)
        self.record_rounds = np.concatenate([rounds, self.record_rounds[recent]])[latest]
        self.record_rewards = np.concatenate([rewards, self.record_rewards[recent]])[latest]
        opponents = np.sort(self.record_rewards)
        slack = _TIE * np.abs(rewards)
        self.wins[clients] += self.step * np.searchsorted(opponents, rewards - slack, side="left")
        beaten_by = len(opponents) - np.searchsorted(opponents, rewards + slack, side="right")
        self.losses[clients] += self.step * beaten_by

    def _penalise_silent(self, answered: IntArray) -> None:
        """Count invited clients that did not answer as beaten by everyone, unless nobody `answered`."""
        if len(answered):
            self.losses[np.setdiff1d(self._cohort, answered)] += self.step * len(self.record_clients)

    def state_dict(self) -> State:
        return {
            "wins": self.wins.copy(),
            "losses": self.losses.copy(),
            "record_clients": self.record_clients,
            "record_rounds": self.record_rounds,
            "record_rewards": self.record_rewards,
        }

    def load_state_dict(self, state: State) -> None:
        self.wins = np.array(state["wins"], dtype=np.float64)
        self.losses = np.array(state["losses"], dtype=np.float64)
        self.record_clients = np.array(state["record_clients"], dtype=np.int64)
        self.record_rounds = np.array(state["record_rounds"], dtype=np.int64)
        self.record_rewards = np.array(state["record_rewards"], dtype=np.float64)

    def _learns(self, t: int) -> bool:
        return self.early_stop is None or t <= self.early_stop

    def _skewness(self, fields: Mapping[str, Tensor], samples: Tensor) -> FloatArray:
        scored = skewness_scores if self.probe is not None else direction_scores
        if self.norm == "joint":
            return scored(vectors(fields), samples, weighted=self.weighted)
        tensors = list(fields.values())
        if self.insight == "full":
            tensors = [slot.of(fields["change"]) for slot in self.setting.layout.parameters]
        scores = [scored(tensor.flatten(1), samples, weighted=self.weighted) for tensor in tensors]
        total: FloatArray = np.sum(scores, axis=0)
        return total


def usable_insights(replies: Replies, probe: str) -> tuple[IntArray, Tensor, dict[str, Tensor]]:
    """Return clients `[k]`, samples `[k]` and fields `[k, ...]` of usable insights; k = 0 if there is only one."""
    rows = replies.observed(probe)
    if len(rows) < 2:
        return np.empty(0, dtype=np.int64), replies.samples[:0], {}
    index = torch.from_numpy(rows)
    fields = {name: values[index.to(values.device)] for name, values in replies.probes[probe].items()}
    return replies.clients[rows], replies.samples[index], fields


def skewness_scores(insights: Tensor, samples: Tensor, *, weighted: bool = True) -> FloatArray:
    """Return the clients' skew relative to each other: Q_i = √M_i · ‖Δw_i - mean Δw‖ (eq. 13, 34).

    `insights` `[k, h]` are the clients' Δw_i, `samples` `[k]` their numbers of samples M_i, and the mean weighs clients
    by them (eq. 14, 35) unless `weighted` is false. Higher is more skewed; only scores of one model are comparable.
    """
    counts = samples.cpu().numpy().astype(np.float64)
    weights = counts / counts.sum() if weighted else np.full(len(counts), 1 / len(counts))
    squares = np.zeros(len(counts))
    for start in range(0, insights.shape[1], _COLUMNS):
        values = insights[:, start : start + _COLUMNS].detach().to("cpu", torch.float64).numpy()
        # einsum and sum add in the same order on any number of threads.
        deviations = values - np.einsum("k,kh->h", weights, values)
        squares += np.square(deviations).sum(axis=1)
    scores: FloatArray = np.sqrt(counts * squares)
    return scores


def literal_pool(rng: np.random.Generator, wins: FloatArray, losses: FloatArray, places: int) -> IntArray:
    """Fill each place with the highest of fresh draws from all remaining Beta(A + 1, B + 1) (Algorithm 2, lines 3-10).

    Returns positions in `wins` and `losses` `[candidates]`, ascending: `[places]`.
    """
    a, b = wins + 1, losses + 1
    remaining = np.arange(len(a))
    for end in range(len(a), len(a) - places, -1):
        best, last = rng.beta(a[:end], b[:end]).argmax(), end - 1
        remaining[best], remaining[last] = remaining[last], remaining[best]
        a[best], b[best] = a[last], b[last]
    return np.sort(remaining[len(a) - places :])


def quick_pool(rng: np.random.Generator, wins: FloatArray, losses: FloatArray, places: int) -> IntArray:
    """Return the positions of the `places` highest of one draw from each Beta(A + 1, B + 1), ascending."""
    draws = rng.random(len(wins))  # Beta(1, 1), that of clients without a duel
    known = np.flatnonzero(wins + losses)
    draws[known] = _betas(rng, wins[known] + 1, losses[known] + 1)
    # Compared with the lowest value in the pool; argpartition's order differs between processors.
    lowest = np.partition(draws, len(draws) - places)[len(draws) - places]
    return np.flatnonzero(draws >= lowest)[:places]


def _betas(rng: np.random.Generator, a: FloatArray, b: FloatArray) -> FloatArray:
    """Draw from each Beta(a, b); very many in parts, each from a generator of its own, on as many threads as it pays.

    The parts are the same on any number of threads.
    """
    if len(a) <= _BETAS:
        return rng.beta(a, b)
    cuts = [slice(at, at + _BETAS) for at in range(0, len(a), _BETAS)]
    with ThreadPoolExecutor(_THREADS) as threads:
        keys = rng.integers(2**63, size=len(cuts)).tolist()
        return np.concatenate(list(threads.map(lambda key, cut: generator(key).beta(a[cut], b[cut]), keys, cuts)))
