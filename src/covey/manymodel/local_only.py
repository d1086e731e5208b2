"""Local-only training: every client for itself. What federation has to beat."""

import torch
from torch import Tensor

from covey.environments import IntArray
from covey.manymodel.common import PersonalModels, manymodels
from covey.messages import Order
from covey.roles import Setting


@manymodels.add("local-only")
class LocalOnly(PersonalModels):
    """All clients train every round, each its own model; nothing is sent."""

    resident = True

    def __init__(self, setting: Setting, model: Tensor) -> None:
        super().__init__(setting, model, "all")

    def order(self, round: int, candidates: IntArray) -> Order:
        start = self.personal[torch.from_numpy(candidates)]
        return Order(round, candidates, start, self.setting.work, resident=self.resident)
