"""NCCB (Cao, Pan, Zhu and Liu, "Birds of a Feather Help: Context-aware Client Selection for Efficient Federated
Learning", AAAI workshop 2022): a neural contextual combinatorial bandit on the SimHash of clients' data.

Clients with similar data are similarly useful. Clusters of contexts are explored first; then a small network that
estimates a client's reward from its context, together with its uncertainty, chooses the cohort (Algorithm 1).
"""

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import JointWork, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.simhash import Form, StopWordHash
from covey.randomness import generator, key
from covey.registries import selectors
from covey.selection.context_clusters import cluster_centres, distinct_contexts, nearest_centre
from covey.selection.contexts import ContextSelector, Reward, highest, one_blas_thread
from covey.selection.estimators import (
    Estimator,
    LinearEstimator,
    NetworkEstimator,
    RewardSamples,
    fit_together,
    stack_device,
)

_GRADIENTS = 1 << 10
"""Gradients of the whole estimator that are held at once."""


@selectors.add("nccb", earlier={"stop_words": "hash", "covariance": "diagonal", "gamma": 0.1})
class NCCB(ContextSelector):
    """Explores clusters of clients with similar data, then invites clients with the highest reward bounds (NCCB).

    In a round, C_un are the clusters that were invited from at most `threshold` times. One random member each of up to
    a cohort of them is invited; remaining places go to the highest upper confidence bounds (equation 13)

        U_i = f(x_i; θ) + γ·√(g_iᵀ Z⁻¹ g_i / w),    g_i = ∇f(x_i; θ),

    among the others, ties broken at random. The last `window` rewards train f, from the present θ and with a pull
    towards θ⁰ (equation 10), and Z grows by g gᵀ/w for each new reward (equation 14, read as an outer product).

    So a cluster is explored `threshold` + 1 times, and exploration takes at least clusters·(threshold + 1)/cohort
    rounds: 44 for the defaults and the paper's cohort of 5. Invitations count, answered or not, so that a cluster of
    clients that never answer does not block its place. Clients whose context arrives later join the nearest cluster,
    and once twice as many are known as were clustered, all are clustered again. There are never more clusters than
    different contexts.

    The authors' code has other values than the paper; the method `nccb-authors` has them.

    bits: length of a context, a multiple of 8 from 8 to 256. The paper loses 3, 5 and 12 % accuracy at 32, 16 and 8.
    form: what is hashed: tokens for texts; projection or quantised for images and measurements; auto decides.
    quantisation: η of the quantised form (equation 5), in standard deviations of the data.
    stop_words: ignore leaves stop words out of the hash of a text (not out of the data), as the paper does; hash
        counts them. Contexts then tell topics apart less well.
    clusters: c of Algorithm 1. The paper does not say; 20 is the value for Yelp in the authors' code.
    threshold: k of Algorithm 1; the best of the paper's values for Yelp. High values never reach exploitation.
    reward: per-sample is √(mean loss²), total multiplies it by the client's samples (equation 2). The paper gives all
        clients the same number; where they differ, total mostly finds the largest clients.
    estimator: paper is f(x) = √w·W₂·relu(W₁x) on x = [context; context] at length 1, which is 0 everywhere at the
        symmetric start (equations 9, 11 and 12, √m read as the root of the width). authors is that of their code:
        biases, no factor, plain contexts, random start. linear is f(x) = θᵀx on contexts at length 1, solved exactly:
        enough if there are fewer kinds of clients than bits.
    width: w, the number of hidden units; even for paper.
    gamma: γ, the weight of the uncertainty; rewards are in [0, 1]. With a Z for each client, 0.3 and 1 work alike; one
        shared Z needs less: 0.1 reached 98 % of the best utility in a simulation with constant utilities, 1 reached 86.
    schedule: constant, or authors: γ_t = gamma·√(p·ln(1 + t·B²/(λp)) + 2·ln(1/delta)) after t rewards, with p the
        number of parameters and B the length of the longest input, which stays far above rewards in [0, 1] for long.
    delta: δ of that schedule.
    ridge: λ: Z starts at λ·1, and the pull towards θ⁰ is λw/2·‖θ - θ⁰‖².
    covariance: own is a Z for each client, as in the authors' code: a reward reduces the uncertainty of this client
        alone, so that it is not invited again soon. It is λ·1 + n·g gᵀ/w after n invitations, with the present g, so
        that n alone is stored. diagonal and full are one Z for all clients, as equation 14 reads; full keeps all of
        Z⁻¹ (34 MB for the default estimator, in every checkpoint), at clients·p² operations a round, diagonal Z's
        diagonal, as NeuralUCB does. One shared Z does not spread invitations: clients that are alike share their
        uncertainty, and with the diagonal alone the bonus even grows for clients invited often, as training makes
        their gradients longer. So cohorts return to the same clients, and have lower losses than the others.
    steps: J, steps of Adam on the whole window.
    rate: Adam's rate.
    window: number of the latest rewards to train on; 0 is all, as in the paper; the authors' code has 11. Losses fall
        as the model learns, and old rewards mislead.
    train: after every round (round), or after every reward (reward), as in the paper and slower by a factor of the
        cohort. After a round, a GPU trains the estimators of all runs in lockstep together.
    regret: also record by how much the cohorts fall short of the best ones. For experiments: every client then
        evaluates every model.
    """

    def __init__(
        self,
        *,
        bits: int = 64,
        form: Form = "auto",
        quantisation: float = 1.0,
        stop_words: StopWordHash = "ignore",
        clusters: int = 20,
        threshold: int = 10,
        reward: Reward = "per-sample",
        estimator: Literal["paper", "authors", "linear"] = "paper",
        width: int = 16,
        gamma: float = 1.0,
        schedule: Literal["constant", "authors"] = "constant",
        delta: float = 0.1,
        ridge: float = 0.1,
        covariance: Literal["own", "diagonal", "full"] = "own",
        steps: int = 100,
        rate: float = 0.01,
        window: int = 200,
        train: Literal["round", "reward"] = "round",
        regret: bool = False,
    ) -> None:
        super().__init__(
            bits=bits, form=form, quantisation=quantisation, reward=reward, regret=regret, stop_words=stop_words
        )
        require(clusters >= 1, f"selector.clusters must be at least 1, not {clusters}.")
        require(threshold >= 0, f"selector.threshold is a number of invitations, 0 or more, not {threshold}.")
        require(
            estimator in ("paper", "authors", "linear"),
            f"selector.estimator is paper, authors or linear, not '{estimator}'.",
        )
        require(width >= 1, f"selector.width must be at least 1, not {width}.")
        fits = estimator != "paper" or width % 2 == 0
        require(fits, f"selector.width must be even for the paper's symmetric start, not {width}.")
        require(gamma >= 0, f"selector.gamma must not be negative, not {gamma:g}.")
        require(schedule in ("constant", "authors"), f"selector.schedule is constant or authors, not '{schedule}'.")
        require(0 < delta < 1, f"selector.delta is a probability in (0, 1), not {delta:g}.")
        require(ridge > 0, f"selector.ridge must be above 0, not {ridge:g}.")
        known = covariance in ("own", "diagonal", "full")
        require(known, f"selector.covariance is own, diagonal or full, not '{covariance}'.")
        require(steps >= 1, f"selector.steps must be at least 1, not {steps}.")
        require(rate > 0, f"selector.rate must be above 0, not {rate:g}.")
        require(window >= 0, f"selector.window must be at least 1, or 0 for all rewards, not {window}.")
        require(train in ("round", "reward"), f"selector.train is round or reward, not '{train}'.")
        self.clusters, self.threshold = clusters, threshold
        self.estimator, self.width = estimator, width
        self.gamma, self.schedule, self.delta = gamma, schedule, delta
        self.ridge, self.covariance = ridge, covariance
        self.steps, self.rate, self.window, self.train = steps, rate, window, train

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._function: Estimator
        if self.estimator == "linear":
            self._function = LinearEstimator(self.bits)
        else:
            rng = generator(setting.seed, "reward estimator")
            self._function = NetworkEstimator(rng, self.bits, self.width, plain=self.estimator == "authors")
        parameters = len(self._function.parameters)
        self._diagonal: FloatArray = np.full(parameters, self.ridge)
        self._inverse: FloatArray = np.empty((0, 0))
        if self.covariance == "full":
            self._inverse = np.eye(parameters) / self.ridge
        self._untrained: IntArray = np.empty(0, dtype=np.int64)
        """Clients of the rewards that the estimator has not been trained on; empty if no training is pending."""
        self.cluster = np.full(setting.clients, -1, dtype=np.int32)
        """`[clients]`: the cluster of each client with a known context; else -1."""
        self.plays = np.zeros(setting.clients, dtype=np.int32)
        """`[clients]`: invitations of each client."""
        self.centres: FloatArray = np.empty((0, self.bits))
        """`[clusters, bits]`"""
        self.clustered = 0
        """Known clients when the clusters were computed."""
        self.rewarded: IntArray = np.empty(0, dtype=np.int64)
        """Clients of the last `window` rewards, the latest last."""
        self.rewards: FloatArray = np.empty(0)
        """Their rewards, not scaled."""
        self.seen = 0
        """Number of rewards so far, t."""
        self._cohort: IntArray = np.empty(0, dtype=np.int64)

    @property
    def function(self) -> Estimator:
        """f, trained on all rewards so far."""
        self.train_pending()
        return self._function

    @property
    def diagonal(self) -> FloatArray:
        """Z's diagonal: `[p]`."""
        self.train_pending()
        return self._diagonal

    @property
    def inverse(self) -> FloatArray:
        """Z⁻¹, if the covariance is full: `[p, p]`."""
        self.train_pending()
        return self._inverse

    def surveyed(self, t: int, replies: Replies) -> None:
        """Algorithm 1, lines 1 and 2."""
        super().surveyed(t, replies)
        known = np.flatnonzero(self.known)
        if len(known) >= max(1, 2 * self.clustered):
            self._cluster(t, known)
        self._join(np.flatnonzero(self.known & (self.cluster < 0)))

    def select(self, t: int, candidates: IntArray) -> IntArray:
        """Algorithm 1, lines 6-21."""
        rng = generator(self.setting.seed, t, "cohort")
        known = candidates[self.known[candidates]]
        chosen = self._explore(rng, known)  # lines 7-12
        others = np.setdiff1d(known, chosen, assume_unique=True)
        places = min(self.setting.cohort, len(known)) - len(chosen)
        if places > 0:  # lines 13-21
            chosen = np.concatenate([chosen, others[highest(rng, self.bounds(others), places)]])
        self._cohort = self.filled(rng, chosen, candidates)
        return self._cohort

    def _explore(self, rng: np.random.Generator, known: IntArray) -> IntArray:
        """Draw one member each of clusters in C_un with a reachable member (lines 7-12)."""
        cluster = self.cluster[known]
        reachable = np.bincount(cluster, minlength=len(self.centres)) > 0
        unexplored = np.flatnonzero(reachable & (self.counters() <= self.threshold))
        chosen = rng.choice(unexplored, size=min(self.setting.cohort, len(unexplored)), replace=False)
        members = [known[cluster == one] for one in chosen.tolist()]
        return np.array([rng.choice(some) for some in members], dtype=np.int64)

    def counters(self) -> IntArray:
        """Return the invitations from each cluster, Ct: `[clusters]`."""
        inside = self.cluster >= 0
        counted = np.bincount(self.cluster[inside], weights=self.plays[inside], minlength=len(self.centres))
        return counted.astype(np.int64)

    def bounds(self, clients: IntArray) -> FloatArray:
        """Return the upper confidence bounds U (equation 13): `[clients]`."""
        with one_blas_thread():
            values, spreads = self._values(clients)
        bounds: FloatArray = values + self.scale() * np.sqrt(spreads / self.function.width)
        return bounds

    def scale(self) -> float:
        """Return γ of the current round."""
        if self.schedule == "constant":
            return self.gamma
        parameters = len(self.function.parameters)
        longest = 1.0
        if self.estimator == "authors":
            most = [contexts.sum(axis=1).max() for _, contexts in self.blocks(np.flatnonzero(self.known))]
            longest = float(max(most, default=1.0))
        growth = math.log(1 + self.seen * longest / (self.ridge * parameters))
        return self.gamma * math.sqrt(parameters * growth + 2 * math.log(1 / self.delta))

    def observe(self, t: int, replies: Replies) -> None:
        # Pending training scales rewards by the greatest so far, which this round may raise.
        self.train_pending()
        self.plays[self._cohort] += 1  # line 24
        super().observe(t, replies)

    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Algorithm 1, lines 22 and 23: add rewards, and schedule training or train after each of them."""
        self.train_pending()
        size = max(len(clients), 1) if self.train == "round" else 1
        for at in range(0, len(clients), size):
            here = slice(at, at + size)
            # A window of 0 cuts nothing off.
            self.rewarded = np.concatenate([self.rewarded, clients[here]])[-self.window :]
            self.rewards = np.concatenate([self.rewards, rewards[here]])[-self.window :]
            self.seen += len(clients[here])
            self._untrained = clients[here]
            if self.train == "reward":
                self.train_pending()

    def joint_work(self) -> Sequence[JointWork]:
        return (EstimatorTraining(self),) if len(self._untrained) else ()

    def train_pending(self) -> None:
        """Train the estimator if the loop has not done so yet."""
        EstimatorTraining.perform([EstimatorTraining(self)])

    def samples(self) -> RewardSamples:
        """Return the rewards to train on, one row per client."""
        clients, place, counts = np.unique(self.rewarded, return_inverse=True, return_counts=True)
        totals = np.bincount(place, weights=self.scaled(self.rewards))
        return RewardSamples(self.bits_of(clients), totals / counts, counts.astype(np.float64))

    def grow(self) -> None:
        """Add Σ g gᵀ/w of the latest rewards to Z (equation 14), to its inverse by Sherman and Morrison."""
        gradients = self._function.gradients(self.bits_of(self._untrained)) / math.sqrt(self._function.width)
        self._diagonal += np.square(gradients).sum(axis=0)
        if self.covariance == "full":
            for gradient in gradients:
                turned = self._inverse @ gradient
                self._inverse -= np.outer(turned, turned / (1 + gradient @ turned))
        self._untrained = np.empty(0, dtype=np.int64)

    def figures(self) -> dict[str, object]:
        return {**super().figures(), "exploring": int(np.count_nonzero(self.counters() <= self.threshold))}

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "parameters": self.function.parameters.copy(),
            "diagonal": self.diagonal.copy(),
            "inverse": self.inverse.copy(),
            "cluster": self.cluster.copy(),
            "plays": self.plays.copy(),
            "centres": self.centres,
            "clustered": self.clustered,
            "rewarded": self.rewarded,
            "rewards": self.rewards,
            "seen": self.seen,
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._untrained = np.empty(0, dtype=np.int64)
        self._function.parameters[:] = state["parameters"]
        self._diagonal = np.array(state["diagonal"], dtype=np.float64)
        self._inverse = np.array(state["inverse"], dtype=np.float64)
        self.cluster = np.array(state["cluster"], dtype=np.int32)
        self.plays = np.array(state["plays"], dtype=np.int32)
        self.centres = np.array(state["centres"], dtype=np.float64)
        self.clustered = int(state["clustered"])
        self.rewarded = np.array(state["rewarded"], dtype=np.int64)
        self.rewards = np.array(state["rewards"], dtype=np.float64)
        self.seen = int(state["seen"])

    def _cluster(self, t: int, known: IntArray) -> None:
        """Cluster the known contexts, and assign all clients again."""
        contexts, counts = distinct_contexts(generator(self.setting.seed, t, "clusters"), self.contexts[known])
        number = min(self.clusters, len(contexts))
        if number < self.clusters:
            warnings.warn(
                f"selector.clusters is {self.clusters}, but the {len(known)} clients known so far have only {number} "
                f"different contexts, so there are {number} clusters.",
                stacklevel=2,
            )
        self.centres = cluster_centres(contexts, counts, number, key(self.setting.seed, t, "k-means") >> 32)
        self.clustered = len(known)
        self.cluster[:] = -1
        self._join(known)
        # An empty cluster would stay unexplored for ever.
        used, self.cluster[known] = np.unique(self.cluster[known], return_inverse=True)
        self.centres = self.centres[used]

    def _join(self, clients: IntArray) -> None:
        """Assign clients to the cluster with the nearest centre."""
        for here, contexts in self.blocks(clients):
            self.cluster[clients[here]] = nearest_centre(contexts, self.centres)

    def _values(self, clients: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return f and gᵀ Z⁻¹ g: `[clients]` each."""
        values, spreads = np.empty(len(clients)), np.empty(len(clients))
        weights = 1 / self.diagonal if self.covariance == "diagonal" else np.ones_like(self.diagonal)
        for here, contexts in self.blocks(clients):
            if self.covariance == "full":
                values[here] = self.function.value(contexts)
                spreads[here] = self._full_spread(contexts)
            else:
                values[here], spreads[here] = self.function.with_spread(contexts, weights)
        if self.covariance == "own":
            # Z = λ·1 + n·g gᵀ/w, inverted by Sherman and Morrison.
            spreads /= self.ridge + self.plays[clients] * spreads / self.function.width
        return values, spreads

    def _full_spread(self, contexts: FloatArray) -> FloatArray:
        """Return gᵀ Z⁻¹ g: `[n]`."""
        spreads = []
        for at in range(0, len(contexts), _GRADIENTS):
            gradients = self.function.gradients(contexts[at : at + _GRADIENTS])
            spreads.append(np.einsum("np,np->n", gradients @ self.inverse, gradients))
        # Rounding may give slightly negative values.
        return np.maximum(np.concatenate(spreads), 0) if spreads else np.empty(0)


@dataclass(frozen=True, eq=False)
class EstimatorTraining(JointWork):
    """Training of one selector's estimator on its latest rewards (Algorithm 1, line 23, and equation 14)."""

    selector: NCCB

    @property
    def key(self) -> Hashable:
        one = self.selector
        return one.estimator, one.bits, one.width, one.ridge, one.steps, one.rate

    @classmethod
    def perform(cls, works: Sequence["EstimatorTraining"]) -> None:
        # A selector whose estimator was needed earlier has trained it by itself.
        due = [work.selector for work in works if len(work.selector._untrained)]
        if not due:
            return
        device, first = stack_device(), due[0]
        pull, steps, rate = first.ridge * first._function.width, first.steps, first.rate
        networks = [one._function for one in due if isinstance(one._function, NetworkEstimator)]
        with one_blas_thread():
            if device is not None and len(networks) > 1:
                fit_together(networks, [one.samples() for one in due], pull, steps, rate, device)
            else:
                for one in due:
                    one._function.fit(one.samples(), pull, steps, rate)
            for one in due:
                one.grow()
