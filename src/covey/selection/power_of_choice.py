"""Power-of-choice (Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies", 2020, algorithm π_pow-d).
"""

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.losses import Utility
from covey.randomness import generator
from covey.registries import selectors


@selectors.add("power-of-choice")
class PowerOfChoice(Selector):
    """Asks d clients for the loss of the current model on their samples, and invites those with the highest loss.

    The d clients are drawn without replacement in proportion to their numbers of samples. The server learns a number
    when a client first answers; until then the client counts as one of average size, so that the first draws are
    uniform. Since sizes decide who is drawn, they must not weigh the models again: the method of this name takes the
    plain mean (`aggregator.weighted=false`), as the paper does. Ties are broken at random. If fewer clients than a
    cohort answer, others that were not asked fill the places. Bytes and time of the answers are counted: a round asks,
    waits, and then trains.

    candidates: d, from the cohort (selection by size) to all clients (always the highest losses). None is twice the
        cohort, or all clients if there are fewer.
    """

    def __init__(self, *, candidates: int | None = None) -> None:
        require(candidates is None or candidates >= 1, f"selector.candidates must be at least 1, not {candidates}.")
        self.candidates = candidates

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.asking = min(2 * setting.cohort, setting.clients) if self.candidates is None else self.candidates
        require(
            setting.cohort <= self.asking <= setting.clients,
            f"selector.candidates must be from the cohort, {setting.cohort}, to the number of clients, "
            f"{setting.clients}, not {self.asking}.",
        )
        self.sizes: FloatArray = np.full(setting.clients, np.nan)
        """`[clients]`: number of samples; NaN is unknown."""
        self._asked: IntArray = np.empty(0, dtype=np.int64)
        self._losses: FloatArray = np.empty(0)
        self._answered: IntArray = np.empty(0, dtype=np.int64)

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]]:
        """Draw the candidate set of size d, and ask it for its losses."""
        rng = generator(self.setting.seed, t, "candidates")
        known = np.isfinite(self.sizes)
        sizes = np.where(known, self.sizes, self.sizes[known].mean() if known.any() else 1.0)[candidates]
        count = min(self.asking, len(candidates))
        self._asked = np.asarray(rng.choice(candidates, size=count, replace=False, p=sizes / sizes.sum()))
        self._answered, self._losses = np.empty(0, dtype=np.int64), np.empty(0)
        return self._asked, (Utility(),)

    def surveyed(self, t: int, replies: Replies) -> None:
        self._learn_sizes(replies)
        rows = replies.observed(Utility.name)
        self._answered = replies.clients[rows]
        self._losses = replies.probes[Utility.name]["loss"].double().numpy()[rows] if len(rows) else np.empty(0)

    def select(self, t: int, candidates: IntArray) -> IntArray:
        rng = generator(self.setting.seed, t, "cohort")
        shuffled = rng.permutation(len(self._answered))
        highest = self._answered[shuffled][np.argsort(-self._losses[shuffled], kind="stable")]
        if len(highest) >= self.setting.cohort:
            return highest[: self.setting.cohort]
        unasked = rng.permutation(candidates[~np.isin(candidates, self._asked)])
        silent = rng.permutation(np.setdiff1d(self._asked, self._answered))
        return np.concatenate([highest, unasked, silent])[: self.setting.cohort]

    def observe(self, t: int, replies: Replies) -> None:
        self._learn_sizes(replies)

    def state_dict(self) -> State:
        return {"sizes": self.sizes.copy()}

    def load_state_dict(self, state: State) -> None:
        self.sizes = np.array(state["sizes"], dtype=np.float64)

    def _learn_sizes(self, replies: Replies) -> None:
        self.sizes[replies.clients] = replies.samples.double().numpy()
