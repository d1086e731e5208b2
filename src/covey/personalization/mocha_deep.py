"""MOCHA's mean-regularised objective for models that are not convex.

Smith, Chiang, Sanjabi and Talwalkar ("Federated Multi-Task Learning", NeurIPS 2017) solve it in the dual, which needs
convex losses (see `mocha`). This is the same objective by local SGD: what comparisons with deep models call MOCHA.
"""

from dataclasses import replace

import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.interfaces import Setting
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.errors import require
from covey.personalization.per_client import Participation, PersonalModels, brought_back
from covey.registries import manymodels


@manymodels.add("mocha-deep")
class DeepMocha(PersonalModels):
    """Each client trains its own model, pulled towards the mean of all clients' models.

    min over w_1 … w_m of Σ_t F_t(w_t) + (λ/2) Σ_t ‖w_t - w̄‖², F_t the client's mean loss and w̄ the mean of all w_t.
    Its gradient for w_t is ∇F_t(w_t) + λ(w_t - w̄): every local step takes it, with w̄ as of the round's beginning.
    A client starts from its own model, which it holds; it is sent w̄ and sends back what it trained. Clients that do
    not take part count in w̄ with the model that they had.

    coupling: λ. 0 is local-only training.
    participation: all who can be reached, or a cohort of them.
    """

    def __init__(
        self, setting: Setting, model: Tensor, *, coupling: float = 0.1, participation: Participation = "all"
    ) -> None:
        super().__init__(setting, model, participation)
        require(coupling >= 0, f"many.coupling must not be negative, not {coupling:g}.")
        require(
            setting.work.proximal == 0,
            "mocha-deep pulls towards the mean model (many.coupling); local.proximal, which pulls towards the model "
            "that a client starts from, must be 0.",
        )
        self.work = replace(setting.work, proximal=coupling)
        self.mean = model
        """w̄ `[d]`"""

    def order(self, t: int, candidates: IntArray) -> Order:
        clients = self.invited(t, candidates)
        start = self.personal[torch.from_numpy(clients)]
        return Order(t, clients, start, self.work, held=True, anchor=self.mean)

    def absorb(self, t: int, replies: Replies) -> None:
        super().absorb(t, replies)
        self.mean = self.personal.mean(dim=0)

    def figures(self) -> dict[str, object]:
        trainable = self.setting.layout.trainable
        apart = (self.personal - self.mean)[:, :trainable].norm(dim=1).mean()
        return {"distance_from_mean": float(apart)}

    def state_dict(self) -> State:
        return {**super().state_dict(), "mean": self.mean}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.mean = brought_back(state["mean"], state)
