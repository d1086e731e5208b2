"""An algorithm of your own: a selector and an aggregator, each a class.

Use them with --selector fair:LeastInvited --aggregator fair:Median, one at a time or together.
"""

import numpy as np
from torch import Tensor

from covey import Aggregator, Replies, Selector, Setting, State


class LeastInvited(Selector):
    """Those who were invited least often so far, the lower number first."""

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.times = np.zeros(setting.clients, dtype=np.int64)

    def select(self, t: int, candidates: np.ndarray) -> np.ndarray:
        cohort = candidates[np.argsort(self.times[candidates], kind="stable")][: self.setting.cohort]
        self.times[cohort] += 1
        return cohort

    def state_dict(self) -> State:
        """What a resumed run needs to go on as if nothing had been."""
        return {"times": self.times}

    def load_state_dict(self, state: State) -> None:
        self.times = np.array(state["times"])


class Median(Aggregator):
    """A part of the way from the model to the median of the clients' models, parameter by parameter."""

    def __init__(self, *, step: float = 1.0) -> None:
        self.step = step

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        """`replies.states` is `[clients, d]`; there are also samples, losses and what clients have measured."""
        return model + self.step * (replies.states.median(dim=0).values - model)
