"""FedCM (Xu et al. 2021, Algorithm 2): clients follow a momentum that the server keeps, and hold no state."""

import torch
from torch import Tensor

from covey.arrays import State
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.core.trainer import MODEL, Batch, LocalClient, Net, Trainer, Values, answers
from covey.errors import require
from covey.model.trees import Tree, map_tree
from covey.registries import trainers


@trainers.add("fedcm")
class FedCM(Trainer):
    """Mixes each client's gradient with the mean direction of the last round, which the server sends.

    The direction is the plain mean over clients, and the paper's step is along it. Here the aggregator makes the step:
    `average` weighs clients by samples, and with `aggregator.weighted=false` it is the paper's. Where all clients hold
    as many samples, the two are the same.

    alpha: α, the share of the client's own gradient; the rest is the server's direction.
    """

    sent = {"direction": MODEL}
    replied = {"length": ()}
    needs_length = True

    def __init__(self, *, alpha: float = 0.1) -> None:
        require(0 < alpha <= 1, f"trainer.alpha is a share in (0, 1], not {alpha:g}.")
        self.alpha = alpha

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        # Line 8: v = α·g + (1 - α)·Δ.
        def mixed(g: Tensor, direction: Tensor) -> Tensor:
            return self.alpha * g + (1 - self.alpha) * direction

        return map_tree(mixed, net.gradient(w, batch), client.sent["direction"]), carry

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        return {"length": client.length}, {}

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._direction: Tensor | None = None

    def send(self, t: int, model: Tensor) -> dict[str, Tensor]:
        size = self.setting.layout.trainable
        return {"direction": torch.zeros_like(model[:size]) if self._direction is None else self._direction.to(model)}

    def finish(self, t: int, model: Tensor, found: Tensor, replies: Replies) -> Tensor:
        size = self.setting.layout.trainable
        lengths = answers(replies)["length"].to(model)
        # Line 13: Δ ← the mean of (x - x_k)/(η·K), for steps of any length.
        self._direction = ((model[:size] - replies.states[:, :size].to(model)) / lengths[:, None]).mean(dim=0)
        return found

    def state_dict(self) -> State:
        return {} if self._direction is None else {"direction": self._direction}

    def load_state_dict(self, state: State) -> None:
        self._direction = state.get("direction")
