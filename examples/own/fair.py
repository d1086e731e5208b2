"""Your own algorithm: a selector and an aggregator, a class each.

Use one or both: --selector fair:LeastInvited --aggregator fair:Median.
"""

import numpy as np
from torch import Tensor

from covey import Aggregator, Replies, Selector, Setting, State


class LeastInvited(Selector):
    """Invites the clients invited least often so far; ties go to the lower number."""

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.times = np.zeros(setting.clients, dtype=np.int64)

    def select(self, t: int, candidates: np.ndarray) -> np.ndarray:
        cohort = candidates[np.argsort(self.times[candidates], kind="stable")][: self.setting.cohort]
        self.times[cohort] += 1
        return cohort

    def state_dict(self) -> State:  # what a resumed run needs to continue exactly
        return {"times": self.times}

    def load_state_dict(self, state: State) -> None:
        self.times = np.array(state["times"])


class Median(Aggregator):
    """Moves the model towards the median of the clients' models, parameter by parameter."""

    def __init__(self, *, step: float = 1.0) -> None:
        self.step = step

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        """Return the next model. `replies.states` is `[clients, d]`; replies also hold samples, losses and probes."""
        return model + self.step * (replies.states.median(dim=0).values - model)
