"""Alterations: clients whose images look different, or whose labels are wrong. They combine with any environment.

They apply when a client's samples are read, so that shared images are stored once. Altered clients are drawn once for
the federation; noisy labels depend on the client's key alone, so a client has the same wrong labels in every round.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from covey import randomness
from covey.config.sections import Alterations
from covey.errors import require
from covey.task.learning_task import Task

Feature = Literal["shifted", "blurred", "inverted"]
FEATURES: tuple[Feature, ...] = ("shifted", "blurred", "inverted")


@dataclass(frozen=True)
class Altered:
    """The altered clients of a federation."""

    features: tuple[Feature | None, ...]
    """`[clients]`: how the images are altered, or None."""
    poisoned: tuple[bool, ...]
    """`[clients]`: True if the labels are flipped."""


def assign(alterations: Alterations, clients: int, rng: np.random.Generator) -> Altered:
    """Draw the altered clients: share · clients of each kind, rounded; no client has two kinds of images.

    Clients with flipped labels are drawn independently of those with altered images.
    """
    features: list[Feature | None] = [None] * clients
    order, poison_order = rng.permutation(clients), rng.permutation(clients)
    at = 0
    for feature in FEATURES:
        number = _rounded(getattr(alterations, feature), clients)
        for client in order[at : at + number]:
            features[client] = feature
        at += number
    flipped = set(poison_order[: _rounded(alterations.poison, clients)].tolist())
    return Altered(tuple(features), tuple(client in flipped for client in range(clients)))


def alter_images(x: Tensor, kind: Feature | None, white: int = 255) -> Tensor:
    """Return images uint8 `[n, channels, height, width]` as a client of this kind sees them.

    `white` is the brightest value of the data set (images need not use all of 0-255), black is 0.
    """
    if kind is None:
        return x
    require(
        x.dtype == torch.uint8 and x.dim() == 4,
        f"Only images can be {kind}: uint8 of shape [n, channels, height, width], "
        f"not {str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}.",
    )
    if kind == "inverted":
        return white - x.clamp(max=white)
    return _shifted(x) if kind == "shifted" else _blurred(x)


def alter_labels(y: Tensor, classes: int, noise: float, flipped: bool, key: int, task: Task | None = None) -> Tensor:
    """Return a client's labels `[n, ...]`, all of them in their stored order, flipped and then noisy.

    Flipped: y becomes (y + 1) mod classes. Noise: round(noise · n) labels, chosen by `key`, become one of the
    other classes, with equal probability. Where there are no classes, both make labels wrong as the task does.
    """
    if task is not None and not task.has_classes:
        number = _rounded(noise, len(y))
        y = task.wrong(y) if flipped else y
        if number:
            wrong = randomness.permutation(randomness.key(key, "noisy"), len(y), y.device)[:number]
            y = y.index_copy(0, wrong, task.wrong(y[wrong]))
        return y
    if flipped:
        y = (y + 1) % classes
    number = _rounded(noise, len(y))
    if number and classes > 1:
        wrong = randomness.permutation(randomness.key(key, "noisy"), len(y), y.device)[:number]
        away = 1 + randomness.integers(randomness.key(key, "noise"), number, classes - 1, y.device)
        y = y.index_copy(0, wrong, (y[wrong] + away) % classes)
    return y


def _rounded(share: float, count: int) -> int:
    return int(share * count + 0.5)


def _shifted(x: Tensor) -> Tensor:
    """Move images right and down by an eighth, at least a pixel; black moves in."""
    height, width = x.shape[-2:]
    down, right = max(1, height // 8), max(1, width // 8)
    return F.pad(x, (right, 0, down, 0))[..., :height, :width].contiguous()


def _blurred(x: Tensor) -> Tensor:
    """Blur by the binomial kernel [1 2 1]/4 along both axes, twice for 32 pixels; in integers, equal on all devices."""
    height, width = x.shape[-2:]
    rows = torch.arange(-1, height + 1, device=x.device).clamp(0, height - 1)
    columns = torch.arange(-1, width + 1, device=x.device).clamp(0, width - 1)
    for _ in range(max(1, min(height, width) // 12)):
        z = x.to(torch.int16)[..., rows, :][..., columns]
        z = z[..., :-2, :] + 2 * z[..., 1:-1, :] + z[..., 2:, :]
        z = z[..., :-2] + 2 * z[..., 1:-1] + z[..., 2:]
        x = ((z + 8) >> 4).to(torch.uint8)
    return x
