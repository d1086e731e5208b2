"""Ditto (Li et al. 2021, Algorithm 1): beside the global model, each client trains one of its own, pulled to it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from covey.core.interfaces import Setting
from covey.core.trainer import MODEL, Batch, LocalClient, Net, Trainer, Values
from covey.errors import require
from covey.model.layout import Layout
from covey.model.trees import Tree, map_tree, zeros_like
from covey.registries import trainers


@trainers.add("ditto")
class Ditto(Trainer):
    """Trains a client's personal model beside the global one; the method `ditto` uses it.

    weight: λ, the strength of the pull towards the received model.
    momentum: momentum of the personal model's steps.
    weight_decay: L2 penalty on the personal model.
    """

    kept = {"model": MODEL}
    own_models = True

    def __init__(self, *, weight: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        require(weight >= 0, f"many.weight must not be negative, not {weight:g}.")
        self.weight, self.momentum, self.weight_decay = weight, momentum, weight_decay

    def client_init(self, client: LocalClient) -> Values:
        # A client's first personal model is the one that it receives.
        v = map_tree(lambda own, w: torch.where(client.age > 0, own, w), client.kept["model"], client.received)
        return {"v": v, **({"velocity": zeros_like(v)} if self.momentum else {})}

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        gradient = net.gradient(w, batch)
        v = carry["v"]

        # Line 6: v ← v - η(∇F(v) + λ(v - w⁰)).
        def pulled(g: Tensor, v: Tensor, start: Tensor) -> Tensor:
            return g + self.weight_decay * v + self.weight * (v - start)

        step, carried = map_tree(pulled, net.gradient(v, batch), v, client.received), {}
        if self.momentum:
            step = map_tree(lambda last, g: self.momentum * last + g, carry["velocity"], step)
            carried = {"velocity": step}
        return gradient, {"v": map_tree(lambda v, g: v - batch.rate * g, v, step), **carried}

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        return {}, {"model": carry["v"]}

    def client_model(self, model: Tensor, kept: Mapping[str, Tensor], layout: Layout) -> Tensor:
        return kept["model"].to(model)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        work = setting.work
        require(
            work.optimizer == "sgd" and not work.clip and not work.proximal,
            "ditto trains personal models by SGD with a pull of its own: it goes with local.optimizer=sgd, and clip "
            "and proximal of 0.",
        )
        require(
            not setting.layout.buffers,
            "ditto trains two models on each batch, and batch norm would have statistics of one alone: choose a model "
            "with group or layer norm, or without.",
        )
