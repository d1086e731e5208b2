"""FedEntOpt (Lutz, Steidl, Müller and Samek, "Optimizing Federated Learning by Entropy-Based Client Selection", 2024,
Algorithm 1): greedy cohorts whose labels together have the highest entropy.
"""

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Setting
from covey.errors import require
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.share_selector import ShareSelector


@selectors.add("fedentopt")
class FedEntOpt(ShareSelector):
    """Invites cohorts with the highest entropy of labels, greedily, from clients that were not invited lately.

    Clients tell their label counts l_k once. The first of a cohort is uniform among those that are not in the buffer;
    with L the sum over the cohort so far, each next one maximises H((L + l_m)/|L + l_m|) (equation 6). The buffer holds
    the last Q clients that were invited, first in, first out. If it leaves too few, the others fill the cohort.

    buffer: Q, as a share of all clients; at most all but a cohort. The paper asks for 0 < Q ≤ K - M, of K clients and
        M of a round.
    """

    def __init__(self, *, buffer: float = 0.7) -> None:
        require(0 <= buffer <= 1, f"selector.buffer is a share of the clients in [0, 1], not {buffer:g}.")
        super().__init__()
        self.buffer = buffer

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.most = max(0, min(round(self.buffer * setting.clients), setting.clients - setting.cohort))
        self.recent: IntArray = np.empty(0, dtype=np.int64)
        """The buffer, the oldest first."""

    def select(self, t: int, candidates: IntArray) -> IntArray:
        cohort = super().select(t, candidates)
        # Lines 10 to 12.
        self.recent = np.concatenate([self.recent[~np.isin(self.recent, cohort)], cohort])
        self.recent = self.recent[len(self.recent) - min(self.most, len(self.recent)) :]
        return cohort

    def choose(self, t: int, candidates: IntArray, counts: FloatArray) -> list[int]:
        free = np.flatnonzero(~np.isin(candidates, self.recent))
        if not len(free):
            return []
        # Lines 6 and 7.
        rng = generator(self.setting.seed, t, "cohort")
        chosen = [int(rng.choice(free))]
        total, free = counts[chosen[0]], free[free != chosen[0]]
        # Lines 8 and 9.
        while len(chosen) < self.setting.cohort and len(free):
            best = int(free[np.argmax(entropy(total + counts[free]))])
            chosen.append(best)
            total, free = total + counts[best], free[free != best]
        return chosen

    def state_dict(self) -> State:
        return {**super().state_dict(), "recent": self.recent.copy()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.recent = np.array(state["recent"], dtype=np.int64)


def entropy(counts: FloatArray) -> FloatArray:
    """Return Shannon's entropy, in bits, of the shares of counts `[..., classes]` (equation 5): `[...]`."""
    totals = counts.sum(axis=-1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    logarithms = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    found: FloatArray = -(shares * logarithms).sum(axis=-1)
    return found
