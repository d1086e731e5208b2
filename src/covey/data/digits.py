"""Handwritten digits from scikit-learn: 1,797 images of 8 x 8 pixels. The default data set; needs no file."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from covey.data.dataset import Dataset, channel_statistics
from covey.errors import require
from covey.randomness import generator
from covey.registries import datasets


@datasets.add("digits")
def digits(data_dir: Path | None, /, *, upscale: int = 1) -> Dataset:
    """Handwritten digits, 8 x 8, 10 classes, embedded; `upscale=4` repeats pixels to 32 x 32 for larger models."""
    require(1 <= upscale <= 8, f"dataset.upscale must be from 1 to 8, not {upscale}.")
    rows = np.loadtxt(_file(), delimiter=",")
    images = rows[:, :-1].reshape(-1, 8, 8).astype(np.uint8).repeat(upscale, axis=1).repeat(upscale, axis=2)
    x = torch.from_numpy(images).unsqueeze(1)
    y = torch.from_numpy(rows[:, -1].astype(np.int64))
    # One fixed split, independent of a run's seed: a fifth of each class is the test set.
    test = np.zeros(len(y), dtype=bool)
    rng = generator("digits", "test split")
    for label in range(10):
        members = rng.permutation(np.flatnonzero(y.numpy() == label))
        test[members[: len(members) // 5]] = True
    chosen = torch.from_numpy(test)
    mean, deviation = channel_statistics(x[~chosen])
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", x[~chosen], y[~chosen], x[chosen], y[chosen], names, mean, deviation)


def _file() -> Path:
    """Return the file that scikit-learn's own loader reads; to import that loader takes longer than a short run."""
    found = find_spec("sklearn")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
