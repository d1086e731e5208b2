"""Models of a user's own, of every kind that is taken, for tests."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Plain(nn.Module):
    """Called with shape and classes; its last layer is found."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Linear(torch.Size(shape).numel(), hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Any:
        return self.last(F.relu(self.body(x.flatten(1))))


class InDict(Plain):
    def forward(self, x: Tensor) -> Any:
        return {"hidden": x.flatten(1), "logits": super().forward(x)}


class OnlyTensor(Plain):
    def forward(self, x: Tensor) -> Any:
        return {"answer": super().forward(x), "name": "only"}


class InTuple(Plain):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class InObject(Plain):
    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(loss=None, logits=super().forward(x))


class Unclear(Plain):
    def forward(self, x: Tensor) -> Any:
        return {"one": super().forward(x), "other": x}


class Spare(Plain):
    """Has parameters that its output does not depend on: a layer that is not called, and one without numbers."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        self.pooler, self.none = nn.Linear(8, 8), nn.Parameter(torch.zeros(0))


class Detached(Plain):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).detach()


class Alone(nn.Module):
    """Called without arguments; for 8 x 8 images of ten classes."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Headless(Alone):
    """Ends in a product with a parameter, not in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.temperature


class Tied(nn.Module):
    """Encodes and decodes pixels by one matrix, and classifies by another that two layers share."""

    head = "decoder"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        size = torch.Size(shape).numel()
        self.encoder = nn.Linear(size, classes, bias=False)
        self.back = nn.Linear(classes, size)
        self.decoder = nn.Linear(size, classes, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(torch.tanh(self.back(self.encoder(x.flatten(1)))))
        return out


class Indexed(Alone):
    """Has a buffer of whole numbers that it reads, and one that is not saved."""

    order: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(64).flip(0))
        self.register_buffer("scale", torch.full((64,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)[:, self.order] * self.scale)


class Counting(Alone):
    """Counts its batches in whole numbers."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return super().forward(x)


class Random(Alone):
    """Draws from torch's generator."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.1, self.training))


class Transfer(nn.Module):
    """A frozen body with batch norm and dropout, and a head that is trained; for 8 x 8 images of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
        ).requires_grad_(False)
        self.fc = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.backbone(x))
        return out


class Lora(nn.Module):
    """A frozen layer with a trained product of two thin matrices beside it, and a frozen head."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 32).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, 64) / 8)
        self.up = nn.Parameter(torch.zeros(32, 4))
        self.out = nn.Linear(32, 10).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.out(F.relu(self.base(x) + F.linear(F.linear(x, self.down), self.up)))
        return out


def frozen_whole() -> nn.Module:
    """Make a model with nothing to train."""
    return Alone().requires_grad_(False)
