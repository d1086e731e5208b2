"""FedRep (Collins et al. 2021, Algorithm 1): a shared body, and heads that clients fit to it before they change it."""

import torch
from torch import Tensor

from covey.core.interfaces import Setting
from covey.core.trainer import Batch, LocalClient, Net, Trainer, Values
from covey.errors import require
from covey.model.layout import Layout, Slot
from covey.model.trees import Tree
from covey.registries import trainers


def head_slots(layout: Layout) -> tuple[Slot, ...]:
    """Return the last layer's parameters."""
    return layout.head


@trainers.add("fedrep")
class FedRep(Trainer):
    """Trains the head of a client alone, then the shared body alone; the method `fedrep` uses it.

    head_epochs: the local epochs, first of all, in which the head is trained; the body is trained in the others.
    """

    kept = {"head": head_slots}
    personal = "head"
    own_models = True

    def __init__(self, *, head_epochs: int = 1) -> None:
        require(head_epochs >= 1, f"many.head_epochs must be at least 1, not {head_epochs}.")
        self.head_epochs = head_epochs

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        of_head = batch.epoch < self.head_epochs

        def moving(name: str, gradient: Tensor) -> Tensor:
            moves = of_head if name in client.kept["head"] else ~of_head
            return torch.where(moves, gradient, torch.zeros_like(gradient))

        return {name: moving(name, gradient) for name, gradient in net.gradient(w, batch).items()}, carry

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        setting.layout.require_head("The method 'fedrep'")
        work = setting.work
        require(
            self.head_epochs < work.epochs,
            f"many.head_epochs={self.head_epochs} leaves no local epoch for the body: local.epochs is {work.epochs}.",
        )
        # Momentum, decay and a pull would go on moving the part whose gradient is zero.
        require(
            work.optimizer == "sgd" and not (work.momentum or work.weight_decay or work.proximal),
            "fedrep freezes a part of the model, which goes with plain SGD: local.optimizer=sgd, and momentum, "
            "weight_decay and proximal of 0.",
        )
