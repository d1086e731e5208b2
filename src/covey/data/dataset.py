"""Data sets: samples, labels and how they are normalised, and the loading of data sets by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.errors import Refusal, require
from covey.registries import datasets

DatasetLoader = Callable[..., "Dataset"]
"""`load(data_dir, *, option=default, ...)`; `data_dir` is the user's folder of data sets, or None."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as stored: `x` `[n, ...]` (uint8 for images), `y` `[n]`."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def split(self, counts: Sequence[int]) -> "list[Samples]":
        """Split samples that lie client after client into one `Samples` per client."""
        pieces = zip(torch.split(self.x, list(counts)), torch.split(self.y, list(counts)), strict=True)
        return [Samples(x, y) for x, y in pieces]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels. Images are stored as uint8 `[n, channels, height, width]` and normalised per batch.

    Tokens are int64 `[n, length]` and reach the model unchanged. NumPy arrays become tensors, labels int64.

    `mean` and `deviation` are per channel, in the unit of the stored values (0-255 for most images).
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    groups: Tensor | None = None
    """Natural client (a user, a site) of each training sample `[n]`, 0 … m-1; None if the data names none."""
    group_names: tuple[str, ...] = ()
    """Names of the natural clients."""
    never: tuple[int, ...] = ()
    """Classes that are never a right answer (padding, unknown words); evaluation rules them out."""
    stop_words: tuple[int, ...] = ()
    """Classes that are stop words. They are learned as any other; fingerprints of texts leave them out."""
    blank: bool = False
    """True if the training samples are placeholders for those that clients hold."""
    untested: bool = False
    """True if the test samples are placeholders, too."""

    def __post_init__(self) -> None:
        for field in ("x", "test_x"):
            object.__setattr__(self, field, _tensor(getattr(self, field), f"{self.name}: {field}"))
        for field in ("y", "test_y", "groups"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, _whole_numbers(getattr(self, field), f"{self.name}: {field}"))
        for part, field, x, y in (("training", "x", self.x, self.y), ("test", "test_x", self.test_x, self.test_y)):
            require(len(x) == len(y), f"{self.name}: {len(x)} {part} samples but {len(y)} labels.")
            require(len(x) > 0, f"{self.name}: there are no {part} samples.")
            low, high = int(y.min()), int(y.max())
            require(
                low >= 0 and high < self.classes,
                f"{self.name}: {part} labels run from {low} to {high}, but there are {self.classes} classes "
                f"(0 to {self.classes - 1}).",
            )
            require_finite(x, f"{self.name}: {field}")
        if self.groups is not None:
            require(
                len(self.groups) == len(self.x) and int(self.groups.min()) >= 0,
                f"{self.name}: groups must be the client of each of the {len(self.x)} training samples, from 0.",
            )

    def require_tests(self) -> None:
        """Refuse to score models on placeholders."""
        require(
            not self.untested,
            "Models are scored on the server, and the server has no test samples of these clients' kind. Give it test "
            'samples: test = "test.npz" under [data] in fleet.toml, a file with arrays x and y.',
        )

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])


def _tensor(values: Any, what: str) -> Tensor:
    """Return values as a tensor, on the same memory if possible."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(np.ascontiguousarray(values))
    except (TypeError, ValueError):
        kind = getattr(values, "dtype", type(values).__name__)
        raise Refusal(f"{what} must be a tensor or an array of numbers, not {kind}.") from None


def _whole_numbers(values: Any, what: str) -> Tensor:
    """Return one whole number per sample, int64 `[n]`."""
    numbers = _tensor(values, what)
    require(numbers.ndim == 1, f"{what} must be one number per sample, not of shape {list(numbers.shape)}.")
    whole = not numbers.is_floating_point() and not numbers.is_complex()
    require(whole, f"{what} must be whole numbers, not {str(numbers.dtype).removeprefix('torch.')}.")
    return numbers.to(torch.int64)


_PIECE = 1 << 22
"""Values checked at a time; bounds the memory of a check, however large the data."""


def require_finite(x: Tensor, what: str) -> None:
    """Refuse samples `[n, ...]` that hold NaN or an infinity, and name the first."""
    if not x.is_floating_point() or x.numel() == 0:
        return
    rows = max(1, _PIECE * len(x) // x.numel())
    for number, piece in enumerate(torch.split(x, rows)):
        # Minimum and maximum are NaN if any value is; this is many times faster than testing each value.
        if not torch.isfinite(torch.stack(torch.aminmax(piece))).all():
            row = number * rows + int(torch.nonzero(~torch.isfinite(piece))[0, 0])
            kind = str(x.dtype).removeprefix("torch.")
            raise Refusal(f"{what}[{row}] holds a value that is not a finite {kind} number.")


def load_dataset(name: str, data_dir: Path | None, options: dict[str, Any]) -> Dataset:
    """Load the data set called `name`, its options checked. The last one loaded is cached."""
    return _load(name, data_dir, tuple(sorted(datasets.options(name, options).items())))


@lru_cache(maxsize=1)
def _load(name: str, data_dir: Path | None, options: tuple[tuple[str, Any], ...]) -> Dataset:
    dataset = datasets[name].part(data_dir, **dict(options))
    require(isinstance(dataset, Dataset), f"The dataset '{name}' returned a {type(dataset).__name__}, not a Dataset.")
    return dataset


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of samples `[n, channels, ...]`, in their own unit."""
    channels = x.transpose(0, 1)
    if x.dtype == torch.uint8:
        # From the histogram: exact, without a float copy of all images.
        values = torch.arange(256, dtype=torch.float64)
        share = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels]).double()
        share /= share.sum(dim=1, keepdim=True)
        mean = share @ values
        variance = (share * (values - mean[:, None]) ** 2).sum(dim=1)
    else:
        flat = channels.flatten(1).double()
        mean, variance = flat.mean(dim=1), flat.var(dim=1, correction=0)
    # A constant channel is not scaled: its deviation is zero.
    deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
    return tuple(mean.tolist()), tuple(deviation.tolist())
