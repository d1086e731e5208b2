"""FedDyn (Acar et al. 2021, Algorithm 1): a regulariser for each client that changes with its gradients.

At a stationary point of all clients' regularised objectives, the mean of their own objectives is stationary too.
"""

import torch
from torch import Tensor

from covey.arrays import State
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.core.trainer import MODEL, Batch, LocalClient, Net, Trainer, Values
from covey.errors import require
from covey.model.trees import Tree, map_tree
from covey.registries import trainers


@trainers.add("feddyn", earlier={"leak": 0.0})
class FedDyn(Trainer):
    """Regularises each client by its own past gradients, so that clients agree where the mean objective is lowest.

    Every client counts alike in h, and so it does in the paper's mean of models, which the method `feddyn` takes. With
    another selector, say `aggregator.weighted=false` too: `average` weighs models by samples unless told.

    alpha: α, the strength of the regulariser. Large values may diverge where few clients take part.
    leak: the share of h that is lost in each round. By default it is 0, as in the paper, where all clients are invited
        alike, and otherwise cohort / clients: clients that are invited often would make h grow without end.
    """

    kept = {"gradient": MODEL}
    aggregators = ("average",)

    def __init__(self, *, alpha: float = 0.05, leak: float | None = None) -> None:
        require(alpha > 0, f"trainer.alpha must be above 0, not {alpha:g}.")
        require(leak is None or 0 <= leak <= 1, f"trainer.leak is a share in [0, 1], or none, not {leak}.")
        self.alpha, self.leak = alpha, leak

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        # Equation 1: the gradient of L_k(θ) - ⟨g_k, θ⟩ + (α/2)·‖θ - θ⁰‖².
        def regularised(g: Tensor, own: Tensor, w: Tensor, start: Tensor) -> Tensor:
            return g - own + self.alpha * (w - start)

        return map_tree(regularised, net.gradient(w, batch), client.kept["gradient"], w, client.received), carry

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        # g_k ← g_k - α(θ_k - θ⁰).
        own = map_tree(
            lambda own, end, start: own - self.alpha * (end - start), client.kept["gradient"], w, client.received
        )
        return {}, {"gradient": own}

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        usual = 0.0 if setting.uniform_selection else setting.cohort / setting.clients
        self._stays = 1.0 - (usual if self.leak is None else self.leak)
        self._h: Tensor | None = None

    def finish(self, t: int, model: Tensor, found: Tensor, replies: Replies) -> Tensor:
        size = self.setting.layout.trainable
        before = torch.zeros_like(model[:size]) if self._h is None else self._h.to(model)
        moved = (replies.states[:, :size].to(model) - model[:size]).sum(dim=0)
        # h ← h - α·(1/m)·Σ(θ_k - θ) over all m clients; those that were not invited have not moved.
        self._h = self._stays * before - self.alpha * moved / self.setting.clients
        # θ ← the mean of the cohort - h/α.
        return torch.cat([found[:size] - self._h / self.alpha, found[size:]])

    def state_dict(self) -> State:
        return {} if self._h is None else {"h": self._h}

    def load_state_dict(self, state: State) -> None:
        self._h = state.get("h")
