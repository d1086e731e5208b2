"""What methods with many models have in common, and the registry of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.interfaces import JointWork, Setting
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.randomness import generator

Participation = Literal["all", "cohort"]
"""Who takes part in a round: everyone who can be reached, or a cohort of them drawn uniformly."""


class ManyModel(ABC):
    """A method that keeps a model per client or per group of clients; options are keyword-only parameters."""

    resident = False
    """Whether trained models stay with the clients."""

    def __init__(self, setting: Setting, participation: Participation) -> None:
        self.setting = setting
        self.participation = participation

    def invited(self, t: int, candidates: IntArray) -> IntArray:
        """Who takes part in this round, ascending; the same however often it is asked."""
        if self.participation == "all":
            return candidates
        rng = generator(self.setting.seed, t, "cohort")
        count = min(self.setting.cohort, len(candidates))
        return np.sort(rng.choice(candidates, size=count, replace=False))

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        return None

    def surveyed(self, t: int, replies: Replies) -> None:
        """Nothing is asked."""

    def joint_work(self) -> Sequence[JointWork]:
        return ()

    @abstractmethod
    def order(self, t: int, candidates: IntArray) -> Order: ...

    @abstractmethod
    def absorb(self, t: int, replies: Replies) -> None: ...

    def figures(self) -> dict[str, object]:
        return {}

    @abstractmethod
    def models(self) -> Tensor: ...

    @property
    def model_of_client(self) -> IntArray:
        """Each client its own model; groups say otherwise."""
        return np.arange(self.setting.clients)

    @abstractmethod
    def state_dict(self) -> State: ...

    @abstractmethod
    def load_state_dict(self, state: State) -> None: ...


class PersonalModels(ManyModel):
    """A method that keeps one model for each client."""

    def __init__(self, setting: Setting, model: Tensor, participation: Participation) -> None:
        super().__init__(setting, participation)
        self.personal = model.repeat(setting.clients, 1)
        """`[clients, d]`"""

    def absorb(self, t: int, replies: Replies) -> None:
        """Keep what those who took part have trained."""
        if len(replies):
            self.personal = self.personal.to(replies.states.device)
            self.personal[torch.from_numpy(replies.clients)] = replies.states

    def models(self) -> Tensor:
        return self.personal

    def state_dict(self) -> State:
        return {"personal": self.personal, "device": str(self.personal.device)}

    def load_state_dict(self, state: State) -> None:
        self.personal = brought_back(state["personal"], state)


def brought_back(tensor: Tensor, state: State) -> Tensor:
    """A tensor of a checkpoint where it was before, as devices differ in rounding, or here if that does not exist."""
    device = torch.device(state.get("device", "cpu"))
    return tensor.to(device) if device.type == "cpu" or torch.cuda.is_available() else tensor
