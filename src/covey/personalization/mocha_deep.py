"""MOCHA's mean-regularised objective for models that are not convex.

Smith, Chiang, Sanjabi and Talwalkar ("Federated Multi-Task Learning", NeurIPS 2017) solve it in the dual, which needs
convex losses (see `mocha`). Here local SGD minimises the same objective, which comparisons with deep models call MOCHA.
"""

from dataclasses import replace

import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.interfaces import Setting
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.errors import require
from covey.personalization.per_client import Participation, PersonalModels, on_saved_device
from covey.registries import manymodels


@manymodels.add("mocha-deep")
class DeepMocha(PersonalModels):
    """Trains each client's own model with a pull towards the mean of all clients' models (MOCHA for deep models).

    min over w_1 … w_m of Σ_t F_t(w_t) + (λ/2) Σ_t ‖w_t - w̄‖², F_t the client's mean loss and w̄ the mean of all w_t.
    Every local step follows its gradient for w_t, ∇F_t(w_t) + λ(w_t - w̄), with the w̄ of the round's start. A client
    starts from its own model, which it holds; it receives w̄ and sends its trained model. Clients that do not take part
    count in w̄ with their last model.

    coupling: λ. 0 is local-only training.
    participation: all reachable clients, or a cohort of them.
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
        self.mean = on_saved_device(state["mean"], state)
