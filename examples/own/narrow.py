"""Your own model: any nn.Module that names its head. Use it with --model narrow:Narrow."""

import math

from torch import Tensor, nn


class Narrow(nn.Module):
    """Two narrow layers with batch norm between them."""

    head = "output"

    def __init__(self, shape: tuple[int, ...], classes: int, *, width: int = 24) -> None:
        super().__init__()
        self.input = nn.Linear(math.prod(shape), width)
        self.norm = nn.BatchNorm1d(width)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.input(x.flatten(1))).relu()
        logits: Tensor = self.output(hidden)
        return logits
