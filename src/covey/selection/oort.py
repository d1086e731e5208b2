"""Oort (Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021, Algorithm 1)."""

import math

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.losses import Utility
from covey.randomness import generator
from covey.registries import selectors

MANY = 100_000
"""More clients than this are drawn from by sums of their weights: a Gumbel number for each takes longer."""


@selectors.add("oort")
class Oort(Selector):
    """Invites clients with high loss that answer fast, and keeps exploring clients not seen yet (Oort).

    A client's utility is U_i = |D_i|·√(mean of loss² over its samples), of the model it received (section 4.2). In
    round t an explored client scores

        (clip(U_i) - low) / (high - low) + √(staleness · ln t / t_i),    times (T/d_i)^penalty where d_i > T,

    with t_i the round in which it was last invited, d_i its seconds, T the preferred duration, and low (times
    0.999) and high the least and greatest clipped utility. n = ⌊κ(1-ε)⌋ clients are drawn in proportion to their
    score from those that reach `cut_off` times the n-th highest; the others are clients not explored yet, drawn in
    proportion to size and speed if `register` gave them, else uniformly. The first cohort is uniform.

    An invited client whose utility did not arrive gets the mean utility of the others of its cohort, and if it has
    never answered, its duration is the time that the server waited. If no times are measured, nobody is slow and the
    pacer does nothing. Two things differ from the authors' published code. It knows all durations beforehand; here T
    is taken over those known so far. And it divides clipped utilities by their range before clipping, so that one
    outlier makes all others alike; here the range is that of the clipped ones.

    Overcommitment (inviting 1.1·κ clients and dropping the last to answer) is left out: a cohort has the size that the
    user gave, and every reply counts. `devices.deadline` ends rounds early instead.

    exploration: ε of the first round.
    exploration_decay: factor on ε from round to round.
    exploration_floor: the least ε while there are unexplored clients; after that the whole cohort is exploited.
    clip: the quantile at which utilities are clipped, so that one outlier does not decide the range.
    cut_off: how far below the last exploited rank a score may lie and still be drawn.
    staleness: the factor in the bonus of clients that were not invited for long.
    penalty: α, the exponent on the speed of clients that take longer than T; 0 ignores speed.
    percentile: T is this percentile of the known durations at the start; 100 prefers no duration.
    pacer_step: length of the pacer's window in rounds. At its end the utility of the exploited clients is compared with
        that of the window before. If it changed by at most 10 %, slower clients are worth trying, and the percentile
        grows by pacer_delta; if it changed fivefold or more, it shrinks by as much.
    pacer_delta: percentage points; 0 keeps the percentile.
    window: exploration draws from this many times as many unexplored clients as needed, those of the highest prior.
    blacklist: clients invited more often than this are left out; 0 is never.
    blacklist_share: at most this share of all clients, those invited most often, is left out. If nobody else can be
        reached, they are invited all the same.
    """

    def __init__(
        self,
        *,
        exploration: float = 0.9,
        exploration_decay: float = 0.95,
        exploration_floor: float = 0.2,
        clip: float = 0.98,
        cut_off: float = 0.7,
        staleness: float = 0.1,
        penalty: float = 2.0,
        percentile: float = 10.0,
        pacer_step: int = 20,
        pacer_delta: float = 5.0,
        window: float = 5.0,
        blacklist: int = 0,
        blacklist_share: float = 0.3,
    ) -> None:
        require(0 <= exploration <= 1, f"selector.exploration is a fraction in [0, 1], not {exploration:g}.")
        require(
            0 < exploration_decay <= 1,
            f"selector.exploration_decay is a fraction in (0, 1], not {exploration_decay:g}.",
        )
        require(
            0 <= exploration_floor <= 1,
            f"selector.exploration_floor is a fraction in [0, 1], not {exploration_floor:g}.",
        )
        require(0 < clip <= 1, f"selector.clip is a quantile in (0, 1], not {clip:g}.")
        require(0 <= cut_off <= 1, f"selector.cut_off is a fraction in [0, 1], not {cut_off:g}.")
        require(staleness >= 0, f"selector.staleness must not be negative, not {staleness:g}.")
        require(penalty >= 0, f"selector.penalty must not be negative, not {penalty:g}.")
        require(0 < percentile <= 100, f"selector.percentile must be in (0, 100], not {percentile:g}.")
        require(pacer_step >= 1, f"selector.pacer_step must be at least 1, not {pacer_step}.")
        require(pacer_delta >= 0, f"selector.pacer_delta must not be negative, not {pacer_delta:g}.")
        require(window >= 1, f"selector.window must be at least 1, not {window:g}.")
        require(blacklist >= 0, f"selector.blacklist must be at least 1, or 0 for never, not {blacklist}.")
        require(
            0 <= blacklist_share <= 1, f"selector.blacklist_share is a fraction in [0, 1], not {blacklist_share:g}."
        )
        self.exploration = exploration
        self.exploration_decay = exploration_decay
        self.exploration_floor = exploration_floor
        self.clip = clip
        self.cut_off = cut_off
        self.staleness = staleness
        self.penalty = penalty
        self.percentile = percentile
        self.pacer_step = pacer_step
        self.pacer_delta = pacer_delta
        self.window = window
        self.blacklist = blacklist
        self.blacklist_share = blacklist_share

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        clients = setting.clients
        self.utilities: FloatArray = np.full(clients, np.nan)
        """`[clients]`: U_i as last seen; NaN is unexplored."""
        self.durations: FloatArray = np.full(clients, np.nan)
        """`[clients]`: seconds; NaN is unknown."""
        self.sizes: FloatArray = np.full(clients, np.nan)
        """`[clients]`: samples; NaN is unknown."""
        self.last: IntArray = np.zeros(clients, dtype=np.int64)
        """`[clients]`: the round of the last invitation, t_i."""
        self.invitations: IntArray = np.zeros(clients, dtype=np.int64)
        """`[clients]`: number of invitations."""
        self.history: list[float] = []
        """Mean utility of the exploited clients in each of the last two windows' rounds."""
        self._cohort: IntArray = np.empty(0, dtype=np.int64)
        self._exploited: IntArray = np.empty(0, dtype=np.int64)

    def register(self, clients: IntArray, sizes: FloatArray | None = None, seconds: FloatArray | None = None) -> None:
        """Tell the selector clients' samples and seconds per round before they take part; call it after `begin`."""
        if sizes is not None:
            self.sizes[clients] = sizes
        if seconds is not None:
            self.durations[clients] = seconds

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (Utility(),)

    def select(self, t: int, candidates: IntArray) -> IntArray:
        rng = generator(self.setting.seed, t, "cohort")
        size = min(self.setting.cohort, len(candidates))
        if t == 1:
            self._exploited = np.empty(0, dtype=np.int64)
            self._cohort = np.asarray(rng.choice(candidates, size=size, replace=False))
            return self._cohort
        known = np.isfinite(self.utilities[candidates])
        unexplored = candidates[~known]
        explored = candidates[known]
        if self.blacklist:
            explored = np.setdiff1d(explored, self.blacklisted())
        if not len(explored) and not len(unexplored):
            # A blacklisted client is better than no client.
            explored = candidates
        exploring = min(len(unexplored), size - math.floor(size * (1 - self.exploring_share(t)) + 1e-9))
        exploiting = min(len(explored), size - exploring)
        exploring = min(len(unexplored), size - exploiting)
        self._exploited = self._exploit(rng, t, explored, exploiting)
        self._cohort = np.concatenate([self._exploited, self._explore(rng, unexplored, exploring)])
        return self._cohort

    def exploring_share(self, t: int) -> float:
        """Return ε of a round with unexplored clients."""
        return max(self.exploration * self.exploration_decay ** (t - 1), self.exploration_floor)

    def scores(self, t: int, clients: IntArray) -> FloatArray:
        """Return the scores of explored clients: `[clients]`."""
        utilities = self.utilities[clients]
        clipped = np.minimum(utilities, ranked(utilities, min(int(len(utilities) * self.clip), len(utilities) - 1)))
        low = float(clipped.min()) * 0.999
        statistical = (clipped - low) / max(float(clipped.max()) - low, 1e-4)
        stale = np.sqrt(self.staleness * math.log(t) / self.last[clients])
        scores: FloatArray = (statistical + stale) * self.speed_factors(clients)
        return scores

    def preferred_duration(self) -> float:
        """Return T, the pacer's percentile of the known durations; infinite if none is known."""
        known = self.durations[np.isfinite(self.durations)]
        if self.percentile >= 100 or not len(known):
            return math.inf
        return ranked(known, min(int(len(known) * self.percentile / 100), len(known) - 1))

    def speed_factors(self, clients: IntArray) -> FloatArray:
        """Return (T/d_i)^α for clients that take longer than T, 1 for others and unknown ones: `[clients]`."""
        preferred = self.preferred_duration()
        if math.isinf(preferred):
            return np.ones(len(clients))
        durations = self.durations[clients]
        slow = durations > preferred
        factors: FloatArray = np.ones(len(clients))
        factors[slow] = (preferred / durations[slow]) ** self.penalty
        return factors

    def blacklisted(self) -> IntArray:
        """Return the clients that were invited too often, those invited most often first."""
        if not self.blacklist:
            return np.empty(0, dtype=np.int64)
        often = np.argsort(-self.invitations, kind="stable")
        often = often[self.invitations[often] > self.blacklist]
        return often[: int(self.blacklist_share * self.setting.clients)]

    def observe(self, t: int, replies: Replies) -> None:
        arrived = replies.observed("utility")
        clients = replies.clients[arrived]
        samples = replies.samples.double().numpy()
        # U_i = |D_i| √(mean loss²)
        squares = replies.probes["utility"]["square"].double().numpy()[arrived] if len(arrived) else np.empty(0)
        utilities = samples[arrived] * np.sqrt(squares)
        self.sizes[replies.clients] = samples
        if len(replies.seconds):
            self.durations[replies.clients] = replies.seconds.numpy()
        if replies.round_seconds > 0:
            silent = np.setdiff1d(self._cohort, np.concatenate([replies.clients, replies.withheld]))
            self.durations[silent[np.isnan(self.durations[silent])]] = replies.round_seconds
        if len(utilities):
            self.utilities[np.setdiff1d(self._cohort, clients)] = utilities.mean()
        self.utilities[clients] = utilities
        invited = np.union1d(self._cohort, replies.clients)
        self.last[invited] = t
        self.invitations[invited] += 1
        self._pace(t, utilities[np.isin(clients, self._exploited)])

    def state_dict(self) -> State:
        return {
            "utilities": self.utilities.copy(),
            "durations": self.durations.copy(),
            "sizes": self.sizes.copy(),
            "last": self.last.copy(),
            "invitations": self.invitations.copy(),
            "history": list(self.history),
            "percentile": self.percentile,
        }

    def load_state_dict(self, state: State) -> None:
        self.utilities = np.array(state["utilities"])
        self.durations = np.array(state["durations"])
        self.sizes = np.array(state["sizes"])
        self.last = np.array(state["last"])
        self.invitations = np.array(state["invitations"])
        self.history = list(state["history"])
        self.percentile = float(state["percentile"])

    def _exploit(self, rng: np.random.Generator, t: int, explored: IntArray, count: int) -> IntArray:
        """Draw `count` explored clients in proportion to their score, from those above the cut-off."""
        if not count:
            return np.empty(0, dtype=np.int64)
        scores = self.scores(t, explored)
        above = scores >= self.cut_off * ranked(scores, len(scores) - count)
        return weighted_draw(rng, explored[above], scores[above], count)

    def _explore(self, rng: np.random.Generator, unexplored: IntArray, count: int) -> IntArray:
        """Draw `count` unexplored clients in proportion to size and speed; unknown sizes count as average."""
        pool = int(self.window * count)
        told = self.sizes, self.durations
        if len(unexplored) > MANY and not any(np.isfinite(figures[unexplored]).any() for figures in told):
            # Nothing is known of anybody, so that any of them may be the first.
            return np.asarray(rng.choice(unexplored, size=min(count, len(unexplored)), replace=False))
        known = self.sizes[np.isfinite(self.sizes)]
        average = float(known.mean()) if len(known) else 1.0
        shuffled = rng.permutation(unexplored)
        sizes = self.sizes[shuffled]
        prior = np.where(np.isfinite(sizes), sizes, average) * self.speed_factors(shuffled)
        best = best_first(prior, pool)
        return weighted_draw(rng, shuffled[best], prior[best], count)

    def _pace(self, t: int, exploited: FloatArray) -> None:
        """Relax or tighten the preferred duration at the end of every window (the pacer)."""
        step = self.pacer_step
        self.history = [*self.history, float(exploited.mean()) if len(exploited) else 0.0][-2 * step :]
        if t < 2 * step or t % step or not np.isfinite(self.durations).any():
            return
        before, now = sum(self.history[:-step]), sum(self.history[-step:])
        if abs(now - before) <= 0.1 * before:
            self.percentile = min(100.0, self.percentile + self.pacer_delta)
        elif abs(now - before) >= 5 * before:
            self.percentile = max(self.pacer_delta, self.percentile - self.pacer_delta)


def weighted_draw(rng: np.random.Generator, clients: IntArray, weights: FloatArray, count: int) -> IntArray:
    """Draw `count` different clients, one after another in proportion to `weights`; those of weight 0 come last.

    The greatest of ln w_i + Gumbel noise is client i with probability w_i / Σw, the next greatest is such a draw
    from those that are left, and so on. Among very many clients, draws with replacement whose repetitions are passed
    over are the same in distribution.
    """
    if len(clients) > MANY and 100 * count <= np.count_nonzero(weights):
        found: IntArray = clients[_weighted_places(rng, weights, count)]
        return found
    keys = np.log(np.maximum(weights, np.finfo(np.float64).tiny)) + rng.gumbel(size=len(clients))
    return clients[best_first(keys, count)]


def _weighted_places(rng: np.random.Generator, weights: FloatArray, count: int) -> IntArray:
    """Draw places in proportion to their weights, one after another, until `count` are different."""
    sums = np.cumsum(weights)
    places: dict[int, None] = {}
    while len(places) < count:
        drawn = np.searchsorted(sums, rng.random(2 * count) * sums[-1], side="right")
        places |= dict.fromkeys(np.minimum(drawn, len(sums) - 1).tolist())
        # A few clients that weigh nearly everything come again and again: then the others are drawn from.
        if len(places) < count:
            rest = weights.copy()
            rest[list(places)] = 0
            sums = np.cumsum(rest)
    return np.array(list(places)[:count], dtype=np.int64)


def ranked(values: FloatArray, place: int) -> float:
    """Return the value at a place of the ascending order."""
    return float(np.partition(values, place)[place])


def best_first(values: FloatArray, count: int) -> IntArray:
    """Return the positions of the `count` highest values, the highest first, of equals the first."""
    inside = highest_places(values, count)
    return inside[np.argsort(-values[inside], kind="stable")]


def highest_places(values: FloatArray, count: int) -> IntArray:
    """Return the positions of the `count` highest values, ascending; of equals the first are taken."""
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    if count >= len(values):
        return np.arange(len(values))
    lowest = ranked(values, len(values) - count)
    inside = np.flatnonzero(values >= lowest)
    if len(inside) > count:
        ties = np.flatnonzero(values[inside] == lowest)
        inside = np.delete(inside, ties[count - len(inside) :])
    return inside
