"""Local-only training: every client for itself; the reference that federation has to beat."""

import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.core.interfaces import Setting
from covey.core.messages import Order
from covey.personalization.per_client import PersonalModels
from covey.registries import manymodels


@manymodels.add("local-only")
class LocalOnly(PersonalModels):
    """Trains each client's own model on its own samples, every round; nothing is sent."""

    resident = True
    sends_models = False

    def __init__(self, setting: Setting, model: Tensor) -> None:
        super().__init__(setting, model, "all")

    def order(self, t: int, candidates: IntArray) -> Order:
        start = self.personal[torch.from_numpy(candidates)]
        return Order(t, candidates, start, self.setting.work, resident=self.resident)

    def received(self, clients: IntArray) -> Tensor | None:
        """Compare no updates: what a client trains reaches nobody else."""
        return None
