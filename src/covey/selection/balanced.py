"""Balanced cohorts: each round's clients together have the class mix that is wanted, and everyone gets a turn."""

from typing import Literal

import numpy as np
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.class_query import Privacy
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.cohort_mix import greedy_cohort, imbalance, sampled_cohort
from covey.selection.share_sources import (
    AskedShares,
    ContextGroups,
    ShareSource,
    Survey,
    UpdateShares,
    mean_row,
    parse_target,
)

_MOST_CLASSES = 1_000
"""Beyond this many classes, cohorts are balanced over groups of clients."""

_LARGEST = 10.0
"""A client weighs in a cohort's mix at most this many times as much as the median candidate."""


_AVERAGED = 5_000
"""Most clients that the mean mix is taken over."""


@selectors.add("balanced")
class Balanced(Selector):
    """Invites cohorts whose joint class mix is near a target, among which everyone gets a turn.

    A round has some random candidates. With d_k the class shares of a client and n_k its samples, a cohort S has the
    mix d(S) = Σ n_k·d_k / Σ n_k. The first of it is the client that was invited least often; then, greedily, each time
    the candidate that brings d(S) nearest the target, in squared distance, and of those equally near the least invited.
    Since the first is the least invited of all clients that can be reached, a client that always can be is invited at
    least ⌊t/N⌋ times in t rounds, of N clients.

    The server needs d_k, which tells much of a client. By default clients are asked once, when they first become
    candidates, for the gradient of a last layer of zeros: a number for each class. A client that does not answer counts
    as one of the mean mix, and is asked twice more.

    target: uniform; federation, the mean mix of the clients known so far; or a share for each class, such as
        0.5,0.3,0.2. auto is uniform for classes and federation for groups.
    shares: where d_k comes from. asked: the query. updates: how a client's training moves the bias of the last layer,
        as HiCS-FL reads it; nothing is asked, estimates are rough, and clients never seen are tried. groups: in place
        of classes, clusters of clients with similar samples (SimHash, k-means). auto is asked, and groups where there
        are no classes or more than 1,000, as in next-word prediction.
    choice: greedy; or sampled, where the m-th client is drawn with P ∝ 1/distance^m (as in Fed-CBS, whose authors show
        that greedy choice is not optimal).
    candidates: number of random candidates in a round, so that a million clients cost what a thousand do.
    tolerance: mixes count as equally near if a part of one client's share of the cohort makes the difference, squared
        distances (tolerance/cohort)² apart. Greedy choice then takes the client that was invited least often;
        otherwise it would return to the clients that have all classes themselves.
    coverage: places of a cohort that go to the clients invited least often.
    groups: number of clusters, for shares=groups.
    insight_dp: epsilon and delta, such as 1,1e-5: clients add noise to the answer, so that it is differentially private
        for any one of their samples. A client is then asked once only; records show `epsilon_spent`.
    """

    def __init__(
        self,
        *,
        target: str | tuple[float, ...] = "auto",
        shares: Literal["auto", "asked", "updates", "groups"] = "auto",
        choice: Literal["greedy", "sampled"] = "greedy",
        candidates: int = 60,
        tolerance: float = 0.5,
        coverage: int = 1,
        groups: int = 20,
        insight_dp: str | None = None,
    ) -> None:
        require(
            shares in ("auto", "asked", "updates", "groups"),
            f"selector.shares is auto, asked, updates or groups, not '{shares}'.",
        )
        require(choice in ("greedy", "sampled"), f"selector.choice is greedy or sampled, not '{choice}'.")
        require(candidates >= 1, f"selector.candidates must be at least 1, not {candidates}.")
        require(tolerance >= 0, f"selector.tolerance must not be negative, not {tolerance:g}.")
        require(coverage >= 0, f"selector.coverage is a number of places, 0 or more, not {coverage}.")
        require(2 <= groups <= 1000, f"selector.groups must be from 2 to 1000, not {groups}.")
        require(
            insight_dp is None or shares in ("auto", "asked"),
            f"selector.insight_dp is noise on shares that are asked for; with selector.shares={shares} none are.",
        )
        self.target = parse_target(target, "selector.target")
        self.shares = shares
        self.choice = choice
        self.candidates = candidates
        self.tolerance = tolerance
        self.coverage = coverage
        self.groups = groups
        self.privacy = None if insight_dp is None else Privacy.of(insight_dp, "selector.insight_dp")

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            self.coverage <= setting.cohort,
            f"selector.coverage = {self.coverage} is more than the cohort, {setting.cohort}.",
        )
        self.source = self._source(setting.classes)
        self.source.begin(setting)
        if not isinstance(self.target, str):
            require(
                len(self.target) == self.source.width,
                f"selector.target has {len(self.target)} shares, and there are {self.source.width} "
                f"{'groups' if isinstance(self.source, ContextGroups) else 'classes'}.",
            )
        self.uses: IntArray = np.zeros(setting.clients, dtype=np.int64)
        """`[clients]`: number of invitations."""
        self.sizes: FloatArray = np.zeros(setting.clients)
        """`[clients]`: samples; 0 is unknown."""
        self._drawn_in = 0
        self._drawn_of: IntArray = np.empty(0, dtype=np.int64)
        self._drawn: tuple[IntArray, int] = (np.empty(0, dtype=np.int64), 0)
        self._imbalance: float | None = None

    def _source(self, classes: int) -> ShareSource:
        if self.shares == "updates":
            return UpdateShares()
        if self.shares == "groups" or (self.shares == "auto" and not 2 <= classes <= _MOST_CLASSES):
            require(
                self.privacy is None,
                f"selector.insight_dp is noise on asked class shares; with {classes:,} classes, cohorts are balanced "
                "over groups of clients.",
            )
            return ContextGroups(self.groups)
        return AskedShares(self.privacy)

    def survey(self, t: int, candidates: IntArray) -> Survey:
        return self.source.survey(self.drawn(t, candidates)[0])

    def survey_model(self, model: Tensor) -> Tensor:
        return self.source.survey_model(model)

    def surveyed(self, t: int, replies: Replies) -> None:
        self.source.surveyed(t, replies)
        self.sizes[replies.clients] = replies.samples.double().numpy()

    def drawn(self, t: int, candidates: IntArray) -> tuple[IntArray, int]:
        """Return the candidates of round `t`, those that were invited least often first, and how many these are."""
        if self._drawn_in != t or not np.array_equal(self._drawn_of, candidates):
            rng = generator(self.setting.seed, t, "candidates")
            count = min(max(self.candidates, self.setting.cohort), len(candidates))
            first = self._least_invited(rng, candidates, min(self.coverage, count))
            others = rng.choice(candidates, size=count, replace=False)
            others = others[~np.isin(others, first)][: count - len(first)]
            self._drawn_in, self._drawn_of, self._drawn = t, candidates, (np.concatenate([first, others]), len(first))
        return self._drawn

    def _least_invited(self, rng: np.random.Generator, candidates: IntArray, count: int) -> IntArray:
        """Return `count` of the candidates, those invited least often; equals are drawn at random."""
        if not count:
            return np.empty(0, dtype=np.int64)
        uses = self.uses[candidates]
        # The least number of uses that enough clients have at most.
        most = int(np.partition(uses, count - 1)[count - 1])
        below, level = candidates[uses < most], candidates[uses == most]
        return np.concatenate([below, rng.choice(level, size=count - len(below), replace=False)])

    def select(self, t: int, candidates: IntArray) -> IntArray:
        drawn, given = self.drawn(t, candidates)
        counts, target = self.counts_and_target(drawn)
        size, first = self.setting.cohort, list(range(given))
        if self.choice == "sampled":
            chosen = sampled_cohort(generator(self.setting.seed, t, "cohort"), counts, size, target, first)
        else:
            equal = (self.tolerance / size) ** 2
            chosen = greedy_cohort(counts, size, target, first, self.uses[drawn].astype(np.float64), equal)
        self._imbalance = float(imbalance(counts[chosen].sum(axis=0), target)) if chosen else None
        cohort = drawn[chosen]
        self.uses[cohort] += 1
        return cohort

    def counts_and_target(self, clients: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the samples of each class (or group) of clients, `[k, width]`, and the target mix `[width]`."""
        rows, sizes = self.source.rows(clients), _moderate(self.sizes[clients])
        mean = self._mean_mix()
        even = np.full(self.source.width, 1 / self.source.width)
        target = self._target(even, mean)
        # Whoever can only be known by inviting is taken for just what is wanted; others that are silent for the mean.
        guess = target if mean is None or self.source.learns_by_inviting else mean
        rows = np.where(np.isfinite(rows), rows, guess)
        return rows * sizes[:, None], target

    def _mean_mix(self) -> FloatArray | None:
        """Return the mean mix of the clients known so far, or of some of them if they are many."""
        known = np.flatnonzero(self.source.known)
        known = known[:: -(-len(known) // _AVERAGED)] if len(known) > _AVERAGED else known
        return mean_row(self.source.rows(known), _moderate(self.sizes[known]))

    def _target(self, even: FloatArray, mean: FloatArray | None) -> FloatArray:
        if not isinstance(self.target, str):
            return self.target
        wants_mean = self.target == "federation" or (self.target == "auto" and isinstance(self.source, ContextGroups))
        return mean if wants_mean and mean is not None else even

    def sent(self, t: int, model: Tensor) -> None:
        self.source.sent(model)

    def observe(self, t: int, replies: Replies) -> None:
        self.sizes[replies.clients] = replies.samples.double().numpy()
        self.source.observe(replies)

    def figures(self) -> dict[str, object]:
        return {"cohort_imbalance": self._imbalance, **self.source.figures()}

    def state_dict(self) -> State:
        return {"uses": self.uses.copy(), "sizes": self.sizes.copy(), "source": self.source.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.uses = np.array(state["uses"], dtype=np.int64)
        self.sizes = np.array(state["sizes"], dtype=np.float64)
        self.source.load_state_dict(state["source"])


def _moderate(sizes: FloatArray) -> FloatArray:
    """Return numbers of samples `[k]` near their median, which also stands for those that are unknown (0)."""
    median = float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 1.0
    moderate: FloatArray = np.clip(np.where(sizes > 0, sizes, median), median / _LARGEST, median * _LARGEST)
    return moderate
