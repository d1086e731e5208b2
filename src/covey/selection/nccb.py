"""NCCB (Cao, Pan, Zhu and Liu, "Birds of a Feather Help: Context-aware Client Selection for Efficient Federated
Learning", AAAI workshop 2022): a neural contextual combinatorial bandit on the SimHash of clients' data.

Clients with similar data are similarly useful. Clusters of contexts are explored first; then a small network that
estimates a client's reward from its context, and how sure it can be of it, chooses the cohort (Algorithm 1).
"""

import math
import threading
import warnings
from collections import defaultdict
from typing import Literal
from weakref import WeakSet

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Setting
from covey.core.messages import Replies
from covey.errors import require
from covey.probe.simhash import Form, unpacked
from covey.randomness import generator, key
from covey.registries import selectors
from covey.selection.contexts import ContextSelector, Reward, highest, one_thread
from covey.selection.estimators import Estimator, Linear, Network, Seen, fit_together, stack_device

_GROUPED = 50_000
"""Clients whose contexts the clusters are made from, at most; all others join the nearest."""

_EXACT = 2_000
"""Up to this many different contexts k-means looks at all of them in every step."""

_GRADIENTS = 1 << 10
"""Gradients of the whole estimator that are held at once."""


class _Waiting(threading.local):
    """Selectors of one thread whose training is due, since none shall be trained while another thread uses it."""

    def __init__(self) -> None:
        self.selectors: WeakSet[NCCB] = WeakSet()


_waiting = _Waiting()


@selectors.add("nccb")
class NCCB(ContextSelector):
    """Explores clusters of clients with similar data, then invites those whose estimated reward may be highest (NCCB).

    In a round, C_un are the clusters that were invited from at most `threshold` times. One random member each of a
    cohort's number of them is invited; places that are left go to the highest upper confidence bounds (equation 13)

        U_i = f(x_i; θ) + γ·√(g_iᵀ Z⁻¹ g_i / w),    g_i = ∇f(x_i; θ),

    among the others, ties broken at random. Of the rewards that arrive, the last `window` train f, from the present θ
    and with a pull towards θ⁰ (equation 10), and Z grows by g gᵀ/w for each (equation 14, as an outer product).

    So a cluster is explored `threshold` + 1 times and exploration takes at least clusters·(threshold + 1)/cohort
    rounds: 44 for the defaults and the paper's cohort of 5. Invitations count, answered or not, so that a cluster
    of clients that are always silent does not hold its place for ever. Clients that come to be known later join
    the cluster they are nearest to, and when twice as many are known as were clustered, all are clustered anew.
    Where there are fewer different contexts than clusters, there are as many clusters as contexts.

    bits: of a context, a multiple of 8 from 8 to 256. The paper's accuracy falls by 3, 5 and 12 % for 32, 16 and 8.
    form: what is hashed: tokens for texts; projection or quantised for images and measurements; auto finds out.
    quantisation: η of the quantised form (equation 5), in standard deviations of the data.
    clusters: c of Algorithm 1. The paper does not say; 20 is what the authors' code has for Yelp.
    threshold: k of Algorithm 1; the best of the paper's for Yelp. High values never come to exploit.
    reward: per-sample is √(mean loss²), total multiplies it by the client's samples (equation 2). The paper gives all
        clients the same number; where they differ, total mostly finds the largest clients.
    estimator: paper is f(x) = √w·W₂·relu(W₁x) on x = [context; context] at length 1, which is 0 everywhere at the
        symmetric start (equations 9, 11 and 12, √m read as the root of the width). authors is their code's: biases,
        no factor, plain contexts, random start. linear is f(x) = θᵀx on contexts at length 1, solved exactly: enough
        where there are fewer kinds of clients than bits.
    width: w, the hidden units; even for paper.
    gamma: γ, how much being unsure counts; rewards are in [0, 1]. In a simulation of 300 clients in six topics, whose
        utility stays what it is, 0, 0.1, 0.3 and 1 came to 99, 98, 94 and 86 % of the best utility in 200 rounds:
        where clusters are what clients differ by, exploring them is enough.
    schedule: constant, or authors: γ_t = gamma·√(p·ln(1 + t·B²/(λp)) + 2·ln(1/delta)) after t rewards, with p the
        number of parameters and B the length of the longest input, which is far above rewards in [0, 1] for long.
    delta: δ of that schedule.
    ridge: λ: Z starts at λ·1, and the pull towards θ⁰ is λw/2·‖θ - θ⁰‖².
    covariance: diagonal keeps Z's diagonal, which is what NeuralUCB does; full keeps all of Z⁻¹ (34 MB for the default
        estimator, in every checkpoint), and clients·p² operations a round. own is a Z for each client, as in the
        authors' code: a reward makes the server surer of this client alone, so that it does not come back soon. Of a
        client invited n times it is λ·1 + n·g gᵀ/w, with the present g for all of them, and needs n alone.
    steps: J, of Adam on the whole window.
    rate: of Adam.
    window: train on so many of the latest rewards; 0 is all, as the paper has it, and the authors' code has 11. Losses
        fall as the model learns, and old rewards mislead.
    train: after every round (round) or after every reward of a round (reward), as the paper has it; a cohort's number
        times slower, and no better in that simulation. After a round, it is when it is needed next that the estimator
        is trained: on a GPU, together with those of all other runs in lockstep.
    regret: also record by how much the cohorts fall short of the best ones; for experiments, since every client then
        evaluates every model.
    """

    def __init__(
        self,
        *,
        bits: int = 64,
        form: Form = "auto",
        quantisation: float = 1.0,
        clusters: int = 20,
        threshold: int = 10,
        reward: Reward = "per-sample",
        estimator: Literal["paper", "authors", "linear"] = "paper",
        width: int = 16,
        gamma: float = 0.1,
        schedule: Literal["constant", "authors"] = "constant",
        delta: float = 0.1,
        ridge: float = 0.1,
        covariance: Literal["diagonal", "full", "own"] = "diagonal",
        steps: int = 100,
        rate: float = 0.01,
        window: int = 200,
        train: Literal["round", "reward"] = "round",
        regret: bool = False,
    ) -> None:
        super().__init__(bits=bits, form=form, quantisation=quantisation, reward=reward, regret=regret)
        require(clusters >= 1, f"selector.clusters must be at least 1, not {clusters}.")
        require(threshold >= 0, f"selector.threshold is a number of invitations, 0 or more, not {threshold}.")
        require(
            estimator in ("paper", "authors", "linear"),
            f"selector.estimator is paper, authors or linear, not '{estimator}'.",
        )
        require(width >= 1, f"selector.width must be at least 1, not {width}.")
        require(
            estimator != "paper" or width % 2 == 0,
            f"selector.width must be even for the paper's symmetric start, not {width}.",
        )
        require(gamma >= 0, f"selector.gamma must not be negative, not {gamma:g}.")
        require(schedule in ("constant", "authors"), f"selector.schedule is constant or authors, not '{schedule}'.")
        require(0 < delta < 1, f"selector.delta is a probability in (0, 1), not {delta:g}.")
        require(ridge > 0, f"selector.ridge must be above 0, not {ridge:g}.")
        require(
            covariance in ("diagonal", "full", "own"),
            f"selector.covariance is diagonal, full or own, not '{covariance}'.",
        )
        require(steps >= 1, f"selector.steps must be at least 1, not {steps}.")
        require(rate > 0, f"selector.rate must be above 0, not {rate:g}.")
        require(window >= 0, f"selector.window must be at least 1, or 0 for all rewards, not {window}.")
        require(train in ("round", "reward"), f"selector.train is round or reward, not '{train}'.")
        self.clusters = clusters
        self.threshold = threshold
        self.estimator = estimator
        self.width = width
        self.gamma = gamma
        self.schedule = schedule
        self.delta = delta
        self.ridge = ridge
        self.covariance = covariance
        self.steps = steps
        self.rate = rate
        self.window = window
        self.train = train

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._due = False
        """Whether there are rewards that the estimator has not been trained on yet."""
        self._function: Estimator
        if self.estimator == "linear":
            self._function = Linear(self.bits)
        else:
            rng = generator(setting.seed, "reward estimator")
            self._function = Network(rng, self.bits, self.width, plain=self.estimator == "authors")
        parameters = len(self._function.parameters)
        self._diagonal: FloatArray = np.full(parameters, self.ridge)
        self._inverse: FloatArray = np.empty((0, 0))
        if self.covariance == "full":
            self._inverse = np.eye(parameters) / self.ridge
        self._fresh: IntArray = np.empty(0, dtype=np.int64)
        """The clients of rewards that the estimator has not been trained on yet."""
        self.cluster = np.full(setting.clients, -1, dtype=np.int32)
        """`[clients]`: the cluster of each client whose context is known; else -1."""
        self.plays = np.zeros(setting.clients, dtype=np.int32)
        """`[clients]`: how often each was invited."""
        self.centres: FloatArray = np.empty((0, self.bits))
        """`[clusters, bits]`"""
        self.clustered = 0
        """How many clients were known when clusters were made."""
        self.rewarded: IntArray = np.empty(0, dtype=np.int64)
        """The clients of the last `window` rewards, the latest last."""
        self.rewards: FloatArray = np.empty(0)
        """Their rewards, not scaled."""
        self.seen = 0
        """How many rewards there have been, t."""
        self._cohort: IntArray = np.empty(0, dtype=np.int64)

    @property
    def function(self) -> Estimator:
        """f, trained on all rewards so far."""
        self._settle()
        return self._function

    @property
    def diagonal(self) -> FloatArray:
        """Z's diagonal: `[p]`."""
        self._settle()
        return self._diagonal

    @property
    def inverse(self) -> FloatArray:
        """Z⁻¹: `[p, p]`, where the covariance is full."""
        self._settle()
        return self._inverse

    def surveyed(self, t: int, replies: Replies) -> None:
        super().surveyed(t, replies)
        known = np.flatnonzero(self.known)
        if len(known) >= max(1, 2 * self.clustered):
            self._cluster(t, known)
        self._join(np.flatnonzero(self.known & (self.cluster < 0)))

    def select(self, t: int, candidates: IntArray) -> IntArray:
        """Algorithm 1, lines 6 to 21."""
        rng = generator(self.setting.seed, t, "cohort")
        known = candidates[self.known[candidates]]
        chosen = self._explore(rng, known)
        others = np.setdiff1d(known, chosen, assume_unique=True)
        places = min(self.setting.cohort, len(known)) - len(chosen)
        if places > 0:
            chosen = np.concatenate([chosen, others[highest(rng, self.bounds(others), places)]])
        self._cohort = self.filled(rng, chosen, candidates)
        return self._cohort

    def counters(self) -> IntArray:
        """How often each cluster was invited from, Ct: `[clusters]`."""
        inside = self.cluster >= 0
        counted = np.bincount(self.cluster[inside], weights=self.plays[inside], minlength=len(self.centres))
        return counted.astype(np.int64)

    def bounds(self, clients: IntArray) -> FloatArray:
        """The upper confidence bounds U (equation 13): `[clients]`."""
        with one_thread():
            values, spreads = self._values(clients)
        bounds: FloatArray = values + self.scale() * np.sqrt(spreads / self.function.width)
        return bounds

    def scale(self) -> float:
        """γ in the present round."""
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
        # What is due is trained on rewards as shares of the greatest until now, which this round may raise.
        self._settle()
        self.plays[self._cohort] += 1
        super().observe(t, replies)

    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Algorithm 1, line 23, and equation 14."""
        self._settle()
        size = max(len(clients), 1) if self.train == "round" else 1
        for at in range(0, len(clients), size):
            here = slice(at, at + size)
            # A window of 0 cuts nothing off.
            self.rewarded = np.concatenate([self.rewarded, clients[here]])[-self.window :]
            self.rewards = np.concatenate([self.rewards, rewards[here]])[-self.window :]
            self.seen += len(clients[here])
            self._fresh = clients[here]
            self._due = True
            _waiting.selectors.add(self)
            if self.train == "reward":
                train_together([self])

    def _settle(self) -> None:
        """Train the estimator, if that is due; and with it those of others, whose turn it is too."""
        if self._due:
            # Somebody whom another thread has trained meanwhile waits no longer.
            others = [one for one in _waiting.selectors if one._due and one is not self] if stack_device() else []
            train_together([self, *others])

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
        self._due = False
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

    def _explore(self, rng: np.random.Generator, known: IntArray) -> IntArray:
        """One random member each of clusters in C_un, of those with a member that can be reached."""
        cluster = self.cluster[known]
        reachable = np.bincount(cluster, minlength=len(self.centres)) > 0
        unexplored = np.flatnonzero(reachable & (self.counters() <= self.threshold))
        chosen = rng.choice(unexplored, size=min(self.setting.cohort, len(unexplored)), replace=False)
        members = [known[cluster == one] for one in chosen.tolist()]
        return np.array([rng.choice(some) for some in members], dtype=np.int64)

    def _cluster(self, t: int, known: IntArray) -> None:
        """Make clusters of the contexts that are known, and let all clients join them anew."""
        rng = generator(self.setting.seed, t, "clusters")
        some = known if len(known) <= _GROUPED else rng.choice(known, size=_GROUPED, replace=False)
        contexts, counts = np.unique(self.contexts[some], axis=0, return_counts=True)
        number = min(self.clusters, len(contexts))
        if number < self.clusters:
            warnings.warn(
                f"selector.clusters is {self.clusters}, but the {len(known)} clients known so far have only {number} "
                f"different contexts, so there are {number} clusters.",
                stacklevel=2,
            )
        self.centres = centres_of(
            unpacked(contexts).astype(np.float64), counts, number, key(self.setting.seed, t, "k-means") >> 32
        )
        self.clustered = len(known)
        self.cluster[:] = -1
        self._join(known)
        # A centre that is nearest to nobody would be waited for without end.
        used, self.cluster[known] = np.unique(self.cluster[known], return_inverse=True)
        self.centres = self.centres[used]

    def _join(self, clients: IntArray) -> None:
        """Put clients into the cluster whose centre is nearest."""
        for here, contexts in self.blocks(clients):
            self.cluster[clients[here]] = nearest(contexts, self.centres)

    def _seen(self) -> Seen:
        """The rewards to train on."""
        clients, place, counts = np.unique(self.rewarded, return_inverse=True, return_counts=True)
        totals = np.bincount(place, weights=self.scaled(self.rewards))
        return Seen(self.bits_of(clients), totals / counts, counts.astype(np.float64))

    def _grow(self) -> None:
        """Z + Σ g gᵀ/w for the latest rewards (equation 14); its inverse by Sherman and Morrison."""
        gradients = self._function.gradients(self.bits_of(self._fresh)) / math.sqrt(self._function.width)
        self._diagonal += np.square(gradients).sum(axis=0)
        if self.covariance == "full":
            for gradient in gradients:
                turned = self._inverse @ gradient
                self._inverse -= np.outer(turned, turned / (1 + gradient @ turned))

    def _values(self, clients: IntArray) -> tuple[FloatArray, FloatArray]:
        """f and gᵀ Z⁻¹ g: `[clients]` each."""
        values, spreads = np.empty(len(clients)), np.empty(len(clients))
        weights = 1 / self.diagonal if self.covariance == "diagonal" else np.ones_like(self.diagonal)
        for here, contexts in self.blocks(clients):
            if self.covariance == "full":
                values[here] = self.function.value(contexts)
                spreads[here] = self._full_spread(contexts)
            else:
                values[here], spreads[here] = self.function.with_spread(contexts, weights)
        if self.covariance == "own":
            # With Z = λ·1 + n·g gᵀ/w (Sherman and Morrison).
            spreads /= self.ridge + self.plays[clients] * spreads / self.function.width
        return values, spreads

    def _full_spread(self, contexts: FloatArray) -> FloatArray:
        """gᵀ Z⁻¹ g: `[n]`."""
        spreads = []
        for at in range(0, len(contexts), _GRADIENTS):
            gradients = self.function.gradients(contexts[at : at + _GRADIENTS])
            spreads.append(np.einsum("np,np->n", gradients @ self.inverse, gradients))
        # Rounding may bring what is as good as 0 below it.
        return np.maximum(np.concatenate(spreads), 0) if spreads else np.empty(0)


def train_together(selectors: list[NCCB]) -> None:
    """Algorithm 1, line 23, and equation 14, for selectors that it is due for: networks of one shape as one stack."""
    _waiting.selectors.difference_update(selectors)
    alike: dict[object, list[NCCB]] = defaultdict(list)
    for one in selectors:
        alike[one.estimator, one.bits, one.width, one.ridge, one.steps, one.rate].append(one)
    device = stack_device()
    with one_thread():
        for some in alike.values():
            networks = [one._function for one in some if isinstance(one._function, Network)]
            pull, steps, rate = some[0].ridge * some[0]._function.width, some[0].steps, some[0].rate
            if device is not None and len(networks) > 1:
                fit_together(networks, [one._seen() for one in some], pull, steps, rate, device)
            else:
                for one in some:
                    one._function.fit(one._seen(), pull, steps, rate)
            for one in some:
                one._grow()
                one._due = False


def centres_of(contexts: FloatArray, counts: IntArray, number: int, seed: int) -> FloatArray:
    """The centres `[number, bits]` of k-means clusters of different contexts `[n, bits]`, each met `counts` times."""
    if number == len(contexts):
        return contexts
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(contexts) <= _EXACT:
        means = KMeans(number, n_init=10, random_state=seed)
    else:
        means = MiniBatchKMeans(number, n_init=3, batch_size=4096, random_state=seed)
    # On one thread sums are added in one order, so that the same seed gives the same clusters.
    with threadpool_limits(1):
        means.fit(contexts, sample_weight=counts)
    centres: FloatArray = means.cluster_centers_.astype(np.float64)
    return centres


def nearest(contexts: FloatArray, centres: FloatArray) -> IntArray:
    """The centre that each context is nearest to; the first of equals: `[n]`."""
    distances = np.square(centres).sum(axis=1) - 2 * contexts @ centres.T
    closest: IntArray = np.round(distances, 9).argmin(axis=1)
    return closest
