"""Your own data set: points on three rings. Use it with --dataset rings:load."""

from pathlib import Path

import numpy as np
import torch

from covey import Dataset


def load(data_dir: Path | None, /, *, noise: float = 0.1) -> Dataset:
    """Points on three noisy rings; the ring is the class."""
    rng = np.random.default_rng(0)
    ring = rng.integers(3, size=1500)
    angle = rng.uniform(0, 2 * np.pi, size=1500)
    radius = 1 + ring + noise * rng.standard_normal(1500)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    x, y = torch.tensor(points, dtype=torch.float32), torch.tensor(ring)
    return Dataset("rings", x[:1200], y[:1200], x[1200:], y[1200:], ("inner", "middle", "outer"))
