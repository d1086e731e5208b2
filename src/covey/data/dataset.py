"""What a data set is, and the registry of loaders."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.errors import require
from covey.registry import Registry

DatasetLoader = Callable[..., "Dataset"]
"""`load(data_dir, *, option=default, ...)`; `data_dir` is where the user keeps data sets, or None."""

datasets: Registry[DatasetLoader] = Registry("dataset", "datasets", parts_of_users=True)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels. Images live as uint8 `[n, channels, height, width]` and are normalised in the batch.

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

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.test_x, self.test_y)):
            require(len(x) == len(y), f"{self.name}: {len(x)} {part} samples but {len(y)} labels.")
            require(len(x) > 0, f"{self.name}: there are no {part} samples.")
            low, high = int(y.min()), int(y.max())
            require(
                low >= 0 and high < self.classes,
                f"{self.name}: {part} labels run from {low} to {high}, but there are {self.classes} classes "
                f"(0 to {self.classes - 1}).",
            )

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])


def load_dataset(name: str, data_dir: Path | None, options: dict[str, Any]) -> Dataset:
    """The data set called `name`, with options checked against its loader."""
    dataset = datasets[name].part(data_dir, **datasets.options(name, options))
    require(isinstance(dataset, Dataset), f"The dataset '{name}' returned a {type(dataset).__name__}, not a Dataset.")
    return dataset


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images `[n, channels, ...]`, in their own unit."""
    flat = x.transpose(0, 1).reshape(x.shape[1], -1).to(torch.float64)
    deviation = flat.std(dim=1, correction=0).clamp_min(1e-6)
    return tuple(flat.mean(dim=1).tolist()), tuple(deviation.tolist())
