"""Local-only training: every client for itself. What federation has to beat."""

import numpy as np
import torch
from torch import Tensor

from covey.environments import IntArray
from covey.messages import Order, Replies
from covey.roles import Setting, State


class LocalOnly:
    """All clients train every round, each its own model; nothing is sent."""

    def __init__(self, setting: Setting, model: Tensor) -> None:
        self.setting = setting
        self.personal = model.repeat(setting.clients, 1)

    def survey(self, round: int, candidates: IntArray) -> None:
        return None

    def surveyed(self, round: int, replies: Replies) -> None:
        """Nothing is asked."""

    def order(self, round: int, candidates: IntArray) -> Order:
        start = self.personal[torch.from_numpy(candidates)]
        return Order(round, candidates, start, self.setting.work, resident=True)

    def absorb(self, round: int, replies: Replies) -> None:
        self.personal = self.personal.to(replies.states.device)
        self.personal[torch.from_numpy(replies.clients)] = replies.states

    def figures(self) -> dict[str, object]:
        return {}

    def models(self) -> Tensor:
        return self.personal

    @property
    def model_of_client(self) -> IntArray:
        return np.arange(self.setting.clients)

    def state_dict(self) -> State:
        return {"personal": self.personal}

    def load_state_dict(self, state: State) -> None:
        self.personal = state["personal"]
