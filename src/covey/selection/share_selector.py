"""Base of selectors that know clients' class shares and choose among those that have told them."""

from abc import abstractmethod

import numpy as np
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Selector, Setting
from covey.core.replies import Replies
from covey.randomness import generator
from covey.selection.share_sources import AskedShares, Survey


class ShareSelector(Selector):
    """Base of selectors that ask every client for its class shares when it can first be reached, as Fed-CBS does.

    Clients that have not answered are invited only where the others are too few.
    """

    needs_classes = True

    def __init__(self) -> None:
        self.source = AskedShares()

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.source.begin(setting)
        self.uses: IntArray = np.zeros(setting.clients, dtype=np.int64)
        """`[clients]`: number of invitations."""
        self.sizes: FloatArray = np.zeros(setting.clients)
        """`[clients]`: samples."""

    @abstractmethod
    def choose(self, t: int, candidates: IntArray, counts: FloatArray) -> list[int]:
        """Return the positions of the cohort among clients with known samples per class `counts` `[k, classes]`."""

    def survey(self, t: int, candidates: IntArray) -> Survey:
        return self.source.survey(candidates)

    def survey_model(self, model: Tensor) -> Tensor:
        return self.source.survey_model(model)

    def surveyed(self, t: int, replies: Replies) -> None:
        self.source.surveyed(t, replies)
        self.sizes[replies.clients] = replies.samples.double().numpy()

    def select(self, t: int, candidates: IntArray) -> IntArray:
        known = candidates[self.source.known[candidates]]
        counts = self.source.rows(known) * self.sizes[known][:, None]
        cohort = known[self.choose(t, known, counts)] if len(known) else known
        missing = min(self.setting.cohort, len(candidates)) - len(cohort)
        if missing > 0:
            silent = candidates[~self.source.known[candidates]]
            silent = generator(self.setting.seed, t, "silent").permutation(silent)
            # Clients that a rule leaves out (FedEntOpt's buffer) come before none at all.
            others = np.setdiff1d(known, cohort)
            cohort = np.concatenate([cohort, silent, others])[: len(cohort) + missing]
        self.uses[cohort] += 1
        return cohort

    def state_dict(self) -> State:
        return {"uses": self.uses.copy(), "sizes": self.sizes.copy(), "source": self.source.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.uses = np.array(state["uses"], dtype=np.int64)
        self.sizes = np.array(state["sizes"], dtype=np.float64)
        self.source.load_state_dict(state["source"])
