"""FedNova (Wang et al. 2020): clients that take more steps no longer count more.

Each update is divided by the length of its client's steps, which with momentum is ‖a_k‖₁ of the paper, and all are
scaled by the mean length.
"""

from dataclasses import replace

import torch
from torch import Tensor

from covey.core.replies import Replies
from covey.core.trainer import LocalClient, Trainer, Values, answers
from covey.model.trees import Tree
from covey.registries import trainers


@trainers.add("fednova")
class FedNova(Trainer):
    """Normalises each update by the length of its client's steps before they are averaged.

    The length counts rates and momentum. What the paper's a_k make of a proximal term (`local.proximal`) is not in it.
    """

    replied = {"length": ()}
    needs_length = True

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        return {"length": client.length}, {}

    def prepare(self, t: int, model: Tensor, replies: Replies) -> Replies:
        size = self.setting.layout.trainable
        lengths = answers(replies)["length"].double()
        shares = replies.samples.double() / replies.samples.sum()
        # Equation 8: x ← x - τ_eff·Σ p_k·d_k, with d_k = (x - x_k)/‖a_k‖₁ and τ_eff = Σ p_k·‖a_k‖₁.
        factors = ((shares * lengths).sum() / lengths).to(replies.states)[:, None]
        before = model[:size].to(replies.states)
        moved = before + factors * (replies.states[:, :size] - before)
        return replace(replies, states=torch.cat([moved, replies.states[:, size:]], dim=1))
