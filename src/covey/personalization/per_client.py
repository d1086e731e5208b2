"""Base classes of methods with many models."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.guard import Guard
from covey.core.interfaces import JointWork, Setting, require_classes
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.randomness import generator

Participation = Literal["all", "cohort"]
"""Clients that take part in a round: all reachable ones, or a cohort of them drawn uniformly."""


class ManyModel(ABC):
    """A method with a model for each client or each group of clients; options are keyword-only parameters."""

    resident = False
    """True if trained models stay with the clients."""
    sends_models = True
    """True if clients send models, or what they share of them."""
    needs_classes = False
    """True if it works with the classes of samples, which not every task has."""

    def __init__(self, setting: Setting, participation: Participation) -> None:
        require_classes(self, setting)
        self.setting = setting
        self.participation = participation
        self.guard = Guard(setting.limits, setting.clients, setting.cohort)

    def invited(self, t: int, candidates: IntArray) -> IntArray:
        """Return the clients that take part in round `t`, ascending; repeated calls return the same."""
        candidates = self.guard.candidates(t, candidates)
        if self.participation == "all":
            return candidates
        rng = generator(self.setting.seed, t, "cohort")
        count = min(self.setting.cohort, len(candidates))
        return np.sort(rng.choice(candidates, size=count, replace=False))

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        return None

    def surveyed(self, t: int, replies: Replies) -> None:
        """Ignore: these methods send no survey unless they override `survey`."""

    def joint_work(self) -> Sequence[JointWork]:
        return ()

    def screened(self, t: int, replies: Replies) -> Replies:
        """Return the replies whose updates the guard believes, with the sample counts that it does.

        Updates are compared with those of all clients: a group of clients that lie would have a measure of its own.
        """
        return self.guard.screened(t, self.received(replies.clients), replies, self.shared)

    def received(self, clients: IntArray) -> Tensor | None:
        """Return what clients of the current round started from, `[d]` or `[k, d]`; None compares no updates."""
        return None

    @property
    def shared(self) -> Tensor | None:
        """The places `[s]` of a model that clients exchange; None if they are all."""
        return None

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
        """`[clients]`: by default each client has its own model."""
        return np.arange(self.setting.clients)

    @abstractmethod
    def state_dict(self) -> State: ...

    @abstractmethod
    def load_state_dict(self, state: State) -> None: ...


class PersonalModels(ManyModel):
    """A method with one model for each client."""

    def __init__(self, setting: Setting, model: Tensor, participation: Participation) -> None:
        super().__init__(setting, participation)
        self.personal = model.repeat(setting.clients, 1)
        """`[clients, d]`"""

    def absorb(self, t: int, replies: Replies) -> None:
        """Store the models that clients have trained."""
        if len(replies):
            self.personal = self.personal.to(replies.states.device)
            self.personal[torch.from_numpy(replies.clients)] = replies.states

    def received(self, clients: IntArray) -> Tensor | None:
        return self.personal[torch.from_numpy(clients)]

    def models(self) -> Tensor:
        return self.personal

    def state_dict(self) -> State:
        kept = self.guard.saved(self.setting.work)
        return {"personal": self.personal, "device": str(self.personal.device), **kept}

    def load_state_dict(self, state: State) -> None:
        self.guard.recall(state, self.setting.work)
        self.personal = on_saved_device(state["personal"], state)


def on_saved_device(tensor: Tensor, state: State) -> Tensor:
    """Move a checkpoint's tensor to the device it was saved from, as devices round differently; if it exists here."""
    device = torch.device(state.get("device", "cpu"))
    return tensor.to(device) if device.type == "cpu" or torch.cuda.is_available() else tensor
