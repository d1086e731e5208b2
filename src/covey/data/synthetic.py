"""A synthetic data set of any shape, number of classes and difficulty, for benchmarks and tests."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covey.data.dataset import Dataset
from covey.errors import require
from covey.randomness import generator
from covey.registries import datasets

_LATENT = 16
_MODES = 3


@datasets.add("synthetic")
def synthetic(
    data_dir: Path | None,
    /,
    *,
    shape: tuple[int, ...] = (1, 16, 16),
    classes: int = 10,
    train: int = 10_000,
    test: int = 2_000,
    difficulty: float = 0.5,
    seed: int = 0,
) -> Dataset:
    """Gaussian mixtures drawn as images of any shape; `difficulty` 0 is separable, 1 mostly noise.

    Each class is three clusters in 16 dimensions; a smooth random basis turns a point into an image. The clusters'
    spread is `difficulty` times the spread of their centres, so the task is as hard in 32 x 32 pixels as in 8 x 8.
    """
    require(len(shape) >= 1 and min(shape) >= 1, f"dataset.shape must be positive numbers, not {shape}.")
    require(classes >= 2, f"dataset.classes must be at least 2, not {classes}.")
    require(train >= classes and test >= classes, "dataset.train and dataset.test must each be at least the classes.")
    require(difficulty >= 0, f"dataset.difficulty must not be negative, not {difficulty}.")
    rng = generator(seed, "synthetic")
    centres = rng.standard_normal((classes, _MODES, _LATENT), dtype=np.float32)
    basis = _smooth(rng.standard_normal((_LATENT, *shape), dtype=np.float32)).reshape(_LATENT, -1)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = rng.permutation(np.arange(count) % classes)
        mode = rng.integers(_MODES, size=count)
        x = np.empty((count, basis.shape[1]), dtype=np.uint8)
        for at in range(0, count, 4096):
            here = slice(at, at + 4096)
            spread = rng.standard_normal((len(y[here]), _LATENT), dtype=np.float32)
            image = (centres[y[here], mode[here]] + difficulty * spread) @ basis
            x[here] = np.clip(128 + 32 * image, 0, 255).astype(np.uint8)
        return torch.from_numpy(x.reshape(count, *shape)), torch.from_numpy(y.astype(np.int64))

    x, y = draw(train)
    test_x, test_y = draw(test)
    channels = shape[0] if len(shape) > 1 else 1
    names = tuple(f"class {label}" for label in range(classes))
    return Dataset("synthetic", x, y, test_x, test_y, names, (128.0,) * channels, (48.0,) * channels)


def _smooth(basis: np.ndarray) -> np.ndarray:
    """Blur each basis image over its last two axes, and scale pixels to unit variance over the basis."""
    if basis.ndim >= 4:
        for axis in (-2, -1):
            basis = basis + np.roll(basis, 1, axis) + np.roll(basis, -1, axis)
    return np.asarray(basis / np.sqrt((basis**2).sum(axis=0, keepdims=True)), dtype=np.float32)
