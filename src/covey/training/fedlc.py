"""FedLC (Zhang et al. 2022): logits are calibrated by how many samples of each class the client has."""

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.core.trainer import Batch, LocalClient, Net, Output, Trainer, Values
from covey.errors import require
from covey.model.trees import Tree
from covey.registries import trainers


@trainers.add("fedlc")
class FedLC(Trainer):
    """Lowers the logits of classes that the client has few samples of, so that training does not forget them.

    tau: τ, the strength of the calibration.
    """

    needs_classes = True

    def __init__(self, *, tau: float = 1.0) -> None:
        require(tau >= 0, f"trainer.tau must not be negative, not {tau:g}.")
        self.tau = tau

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        counts = client.class_counts
        # A class without samples would be infinitely low: it takes no part, like n → 0.
        margins = torch.where(counts > 0, self.tau * counts.clamp_min(1).pow(-0.25), torch.inf)
        margins = margins if self.tau else torch.zeros_like(margins)

        def calibrated(output: Output, y: Tensor) -> Tensor:
            # Equation 8: cross-entropy of f_c - τ·n_c^(-1/4). Outputs beyond the classes have no samples either.
            return F.cross_entropy(output.logits[:, : len(margins)] - margins, y, reduction="none")

        return net.gradient(w, batch, calibrated), carry
