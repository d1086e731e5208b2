"""Data sets: samples, labels and how they are normalised, and the loading of data sets by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.data.columns import Column
from covey.data.memory_map import READ_AT_ONCE, MappedSamples
from covey.data.sample_store import SampleStore, in_place_of_tensor, of_histogram, stored, stored_statistics
from covey.errors import Refusal, require
from covey.registries import datasets
from covey.task.classification import Classification
from covey.task.label_kinds import Labels, infer, labels_as, named_task, raw_labels, require_numbers
from covey.task.learning_task import Task
from covey.task.regression import Regression

DatasetLoader = Callable[..., "Dataset"]
"""`load(data_dir, *, option=default, ...)`; `data_dir` is the user's folder of data sets, or None."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as stored: `x` `[n, ...]` (uint8 for images), `y` `[n]`, or `[n, targets]` where there are no classes."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def split(self, counts: Sequence[int]) -> "list[Samples]":
        """Split samples that lie client after client into one `Samples` per client."""
        pieces = zip(torch.split(self.x, list(counts)), torch.split(self.y, list(counts)), strict=True)
        return [Samples(x, y) for x, y in pieces]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples and labels. Images are stored as uint8 `[n, channels, height, width]` and normalised per batch.

    Tokens are int64 `[n, length]` and reach the model unchanged. NumPy arrays become tensors.

    Labels are whole numbers int64 `[n]` with a name for each class; or numbers `[n]` or `[n, targets]` without names,
    which are for regression, or for several labels where they are 0 and 1. `task` says what they are for, and by
    default follows from them. Labels are kept in the unit that models are trained in: regression's are standardised,
    and `task.original` gives them in their own.

    `mean` and `deviation` are per channel, in the unit of the stored values (0-255 for most images).

    A `SampleStore` may stand in the place of `x` and `test_x`: its rows are read where they are used.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...] = ()
    """Names of the classes; empty if there are none."""
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    groups: Tensor | None = None
    """Natural client (a user, a site) of each training sample `[n]`, 0 … m-1; None if the data names none."""
    group_names: tuple[str, ...] = ()
    """Names of the natural clients."""
    test_groups: Tensor | None = None
    """Natural client of each test sample `[n]`, numbered as in `groups`; -1 for one that has no training samples."""
    notes: tuple[str, ...] = ()
    """Sentences about what was read and how it was converted."""
    never: tuple[int, ...] = ()
    """Classes that are never a right answer (padding, unknown words); evaluation rules them out."""
    stop_words: tuple[int, ...] = ()
    """Classes that are stop words. They are learned as any other; fingerprints of texts leave them out."""
    blank: bool = False
    """True if the training samples are placeholders for those that clients hold."""
    untested: bool = False
    """True if the test samples are placeholders, too."""
    task: Task | None = None
    """What models learn; completed by the labels when the data set is made."""
    note: str = ""
    """A sentence about a task that was inferred; empty if it is plain classes, or was said."""
    columns: tuple[Column, ...] = ()
    """Of a table: its columns, in the order of their features."""
    stated_scale: bool = False
    """True if mean and deviation were said, and do not follow from the samples."""

    def __post_init__(self) -> None:
        for field in ("x", "test_x"):
            object.__setattr__(self, field, _tensor(getattr(self, field), f"{self.name}: {field}"))
        for field in ("y", "test_y"):
            object.__setattr__(
                self, field, _label_tensor(getattr(self, field), bool(self.class_names), self.name, field)
            )
        for field in ("groups", "test_groups"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, _whole_numbers(getattr(self, field), f"{self.name}: {field}"))
        for part, field, x, y in (("training", "x", self.x, self.y), ("test", "test_x", self.test_x, self.test_y)):
            require(len(x) == len(y), f"{self.name}: {len(x)} {part} samples but {len(y)} labels.")
            require(len(x) > 0, f"{self.name}: there are no {part} samples.")
            if self.class_names:
                low, high = int(y.min()), int(y.max())
                require(
                    low >= 0 and high < self.classes,
                    f"{self.name}: {part} labels run from {low} to {high}, but there are {self.classes} classes "
                    f"(0 to {self.classes - 1}).",
                )
            require_finite(x, f"{self.name}: {field}")
        self._complete_task()
        if self.groups is not None:
            require(
                len(self.groups) == len(self.x) and int(self.groups.min()) >= 0,
                f"{self.name}: groups must be the client of each of the {len(self.x)} training samples, from 0.",
            )
        require(
            self.test_groups is None or len(self.test_groups) == len(self.test_x),
            f"{self.name}: test_groups must be the client of each of the {len(self.test_x)} test samples.",
        )

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"Dataset({self.name}: {len(self.y):,} samples of {shape}, {len(self.test_y):,} for tests)"

    def _complete_task(self) -> None:
        """Infer the task unless it is given, and bring the labels into its unit."""
        if self.task is not None and self.task.complete and (self.class_names or not self.task.has_classes):
            return
        task = self.task or Classification()
        if self.task is None and not self.class_names:
            name, note = infer(self.y.numpy(), self.name)
            task = named_task({"name": name})
            object.__setattr__(self, "note", self.note or note)
        if not self.class_names:
            # As they were given, to the bit, for another task that is named later.
            object.__setattr__(self, "_given", (self.y, self.test_y))
        self._take(labels_as(task, self.y, self.test_y, self.class_names, self.name))

    def _take(self, labels: Labels) -> None:
        object.__setattr__(self, "note", self.note or labels.note)
        for field, value in (
            ("task", labels.task),
            ("y", labels.y),
            ("test_y", labels.test_y),
            ("class_names", labels.names),
        ):
            object.__setattr__(self, field, value)

    @property
    def learns(self) -> Task:
        """The task, completed."""
        assert self.task is not None
        return self.task

    @cached_property
    def bins(self) -> IntArray:
        """The class of each training sample `[n]`, or the group that environments deal in its place."""
        return self.learns.bins(self.y)

    @property
    def bin_count(self) -> int:
        """The number of classes, or of groups in their place."""
        return self.classes if self.learns.has_classes else int(self.bins.max()) + 1

    @cached_property
    def bin_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the groups in their place."""
        return self.class_names if self.learns.has_classes else self.learns.bin_names(self.y, self.bins)

    @property
    def class_count(self) -> int:
        """The number of classes that clients have shares of; 0 for a task without."""
        return self.classes if self.learns.has_classes else 0

    @property
    def outputs(self) -> int:
        """The number of a model's outputs."""
        return self.learns.outputs or self.classes

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
    if isinstance(values, SampleStore):
        return in_place_of_tensor(values)
    if isinstance(values, np.memmap) and values.nbytes > READ_AT_ONCE:
        return in_place_of_tensor(MappedSamples(values, what))
    try:
        return torch.as_tensor(np.ascontiguousarray(values))
    except (TypeError, ValueError):
        kind = getattr(values, "dtype", type(values).__name__)
        raise Refusal(f"{what} must be a tensor or an array of numbers, not {kind}.") from None


def _label_tensor(values: Any, classes: bool, name: str, field: str) -> Tensor:
    """Return labels as whole numbers int64 `[n]` if there are classes, else finite numbers `[n]` or `[n, targets]`."""
    if classes:
        return _whole_numbers(values, f"{name}: {field}")
    labels = _tensor(values, f"{name}: {field}")
    require(
        labels.ndim in (1, 2) and not labels.is_complex() and labels.shape[-1:] != (0,),
        f"{name}: {field} must be a number or several per sample, not of shape {list(labels.shape)}.",
    )
    require_numbers(labels.numpy(), name, "test_x" if field == "test_y" else "x")
    return labels if labels.is_floating_point() else labels.to(torch.int64)


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
    """Refuse samples `[n, ...]` that hold NaN or an infinity, and name the first; a store does when it is read."""
    if stored(x) is not None or not x.is_floating_point() or x.numel() == 0:
        return
    rows = max(1, _PIECE * len(x) // x.numel())
    for number, piece in enumerate(torch.split(x, rows)):
        # Minimum and maximum are NaN if any value is; this is many times faster than testing each value.
        if not torch.isfinite(torch.stack(torch.aminmax(piece))).all():
            row = number * rows + int(torch.nonzero(~torch.isfinite(piece))[0, 0])
            kind = str(x.dtype).removeprefix("torch.")
            raise Refusal(f"{what}[{row}] holds a value that is not a finite {kind} number.")


def require_class_shares(dataset: Dataset, what: str, wanted: bool = True) -> None:
    """Refuse what is about mixes of classes, where the task has none."""
    require(
        not wanted or dataset.class_count > 0,
        f"{what} are mixes of classes, and the task of '{dataset.name}' is {dataset.learns.name}, which has none.",
    )


def load_dataset(name: str, data_dir: Path | None, options: dict[str, Any]) -> Dataset:
    """Load the data set called `name`, its options checked. The last one loaded is cached."""
    checked = datasets.options(name, options)
    return _load(name, data_dir, tuple(sorted(checked.items())), _stamps(checked, data_dir))


def _stamps(options: dict[str, Any], data_dir: Path | None) -> tuple[tuple[int, int], ...]:
    """Return time and size of the files that options name: one that was written anew is read anew."""
    named = [Path(value) for value in options.values() if isinstance(value, str) and value]
    places = [*named, *(data_dir / path for path in named if data_dir)]
    found = [place.stat() for place in places if place.exists()]
    return tuple((one.st_mtime_ns, one.st_size) for one in found)


@lru_cache(maxsize=1)
def _load(
    name: str, data_dir: Path | None, options: tuple[tuple[str, Any], ...], stamps: tuple[tuple[int, int], ...]
) -> Dataset:
    dataset = datasets[name].part(data_dir, **dict(options))
    require(isinstance(dataset, Dataset), f"The dataset '{name}' returned a {type(dataset).__name__}, not a Dataset.")
    return dataset


def for_task(dataset: Dataset, chosen: Mapping[str, Any]) -> Dataset:
    """Return the data set for a task by name and options; for `auto`, as it is. The last ones made are cached."""
    if chosen["name"] == "auto":
        return dataset
    return _for_task(dataset, tuple(sorted(chosen.items())))


@lru_cache(maxsize=4)
def _for_task(dataset: Dataset, chosen: tuple[tuple[str, Any], ...]) -> Dataset:
    task = named_task(dict(chosen))
    if task.agrees_with(dataset.learns):
        return replace(dataset, note="")
    y, test_y = (raw_labels(dataset.task, one) for one in (dataset.y, dataset.test_y))
    # A regression in another unit is one of rounded targets, so that its runs keep their bits.
    if not isinstance(task, Regression):
        y, test_y = getattr(dataset, "_given", (y, test_y))
    labels = labels_as(task, y, test_y, dataset.class_names, dataset.name)
    return replace(
        dataset, y=labels.y, test_y=labels.test_y, class_names=labels.names, task=labels.task, note=labels.note
    )


def channel_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of samples `[n, channels, ...]`, in their own unit."""
    store = stored(x)
    if store is not None:
        return stored_statistics(store)
    channels = x.transpose(0, 1)
    if x.dtype == torch.uint8:
        # From the histogram: exact, without a float copy of all images.
        counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels])
        mean, variance = of_histogram(counts)
    else:
        flat = channels.flatten(1).double()
        mean, variance = flat.mean(dim=1), flat.var(dim=1, correction=0)
    # A constant channel is not scaled: its deviation is zero.
    deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
    return tuple(mean.tolist()), tuple(deviation.tolist())
