"""What a data set is, and the registry of loaders."""

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
"""`load(data_dir, *, option=default, ...)`; `data_dir` is where the user keeps data sets, or None."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as they are stored: `x` `[n, ...]` (uint8 for images), `y` `[n]`."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def split(self, counts: Sequence[int]) -> "list[Samples]":
        """Samples of several clients, which lie one after another, client by client."""
        pieces = zip(torch.split(self.x, list(counts)), torch.split(self.y, list(counts)), strict=True)
        return [Samples(x, y) for x, y in pieces]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels. Images live as uint8 `[n, channels, height, width]` and are normalised in the batch.

    Tokens are int64 `[n, length]`, and go to the model as they are. NumPy arrays become tensors, and labels int64.

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
    """Natural client of each training sample `[n]`, 0 … m-1, where the data has one (a user, a site)."""
    group_names: tuple[str, ...] = ()
    """What the data calls its natural clients."""
    never: tuple[int, ...] = ()
    """Classes that are never a right answer (padding, unknown words): evaluation neither gives nor accepts them."""
    blank: bool = False
    """Whether the training samples only stand for those that clients hold, and say nothing of them."""
    untested: bool = False
    """Whether the test samples are such blanks, too."""

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
        """Refuse to score models on blanks."""
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
    """A tensor as it is, and an array as a tensor, on the same memory where it can be."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(np.ascontiguousarray(values))
    except (TypeError, ValueError):
        kind = getattr(values, "dtype", type(values).__name__)
        raise Refusal(f"{what} must be a tensor or an array of numbers, not {kind}.") from None


def _whole_numbers(values: Any, what: str) -> Tensor:
    """One whole number for each sample, int64 `[n]`."""
    numbers = _tensor(values, what)
    require(numbers.ndim == 1, f"{what} must be one number per sample, not of shape {list(numbers.shape)}.")
    whole = not numbers.is_floating_point() and not numbers.is_complex()
    require(whole, f"{what} must be whole numbers, not {str(numbers.dtype).removeprefix('torch.')}.")
    return numbers.to(torch.int64)


_PIECE = 1 << 22
"""Values that are looked at together, so that looking takes little memory however large the data are."""


def require_finite(x: Tensor, what: str) -> None:
    """Refuse samples `[n, ...]` that hold NaN or an infinity, with the first of them."""
    if not x.is_floating_point() or x.numel() == 0:
        return
    rows = max(1, _PIECE * len(x) // x.numel())
    for number, piece in enumerate(torch.split(x, rows)):
        # NaN is both the least and the greatest value of what it is in; this is many times faster than to ask each.
        if not torch.isfinite(torch.stack(torch.aminmax(piece))).all():
            row = number * rows + int(torch.nonzero(~torch.isfinite(piece))[0, 0])
            kind = str(x.dtype).removeprefix("torch.")
            raise Refusal(f"{what}[{row}] holds a value that is not a finite {kind} number.")


def load_dataset(name: str, data_dir: Path | None, options: dict[str, Any]) -> Dataset:
    """The data set called `name`, with options checked against its loader. The last one loaded is kept."""
    return _load(name, data_dir, tuple(sorted(datasets.options(name, options).items())))


@lru_cache(maxsize=1)
def _load(name: str, data_dir: Path | None, options: tuple[tuple[str, Any], ...]) -> Dataset:
    dataset = datasets[name].part(data_dir, **dict(options))
    require(isinstance(dataset, Dataset), f"The dataset '{name}' returned a {type(dataset).__name__}, not a Dataset.")
    return dataset


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of samples `[n, channels, ...]`, in their own unit."""
    channels = x.transpose(0, 1)
    if x.dtype == torch.uint8:
        # From the histogram: exact, and without a float copy of all images.
        values = torch.arange(256, dtype=torch.float64)
        share = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels]).double()
        share /= share.sum(dim=1, keepdim=True)
        mean = share @ values
        variance = (share * (values - mean[:, None]) ** 2).sum(dim=1)
    else:
        flat = channels.flatten(1).double()
        mean, variance = flat.mean(dim=1), flat.var(dim=1, correction=0)
    # A channel that never changes is left as it is rather than divided by zero.
    deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
    return tuple(mean.tolist()), tuple(deviation.tolist())
