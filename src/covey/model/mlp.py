"""A multilayer perceptron."""

import math
from typing import Literal

from torch import Tensor, nn

from covey.errors import require
from covey.model.normalisation import BatchNorm1d
from covey.registries import models


@models.add("mlp", earlier={"norm": "none"})
class MLP(nn.Module):
    """Fully connected layers with ReLU in between; `hidden` gives the widths of the hidden layers.

    norm: normalisation before every ReLU.
    """

    head = "layers.head"
    tokens = False

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        hidden: tuple[int, ...] = (64,),
        norm: Literal["none", "batch", "layer"] = "none",
    ) -> None:
        super().__init__()
        require(all(width >= 1 for width in hidden), f"model.hidden must be positive widths, not {hidden}.")
        self.layers = nn.Sequential(nn.Flatten())
        width = math.prod(shape)
        for number, next_width in enumerate(hidden):
            self.layers.add_module(f"hidden{number}", nn.Linear(width, next_width))
            if norm != "none":
                layer = BatchNorm1d(next_width) if norm == "batch" else nn.LayerNorm(next_width)
                self.layers.add_module(f"norm{number}", layer)
            self.layers.add_module(f"relu{number}", nn.ReLU())
            width = next_width
        self.layers.add_module("head", nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits
