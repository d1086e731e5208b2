"""Samples of a torch `Dataset`, read one by one where they are used."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from covey import randomness
from covey.data.dataset import channel_statistics
from covey.data.labels import array_of, numpy_of
from covey.data.sample_store import SampleStore, taken
from covey.errors import Refusal, require

LOOKED_AT = 10_000
"""Most images whose pixels tell mean and deviation."""

_COMPARED = 3
"""Samples whose labels are read and compared with those that a Dataset lists."""


class DatasetSamples(SampleStore):
    """Samples of a torch Dataset that gives pairs (x, y). Images as uint8 stay, other numbers become float32.

    Random transforms draw the same for a sample whenever it is read, from a key of its number: so the same seed gives
    the same run, on any number of workers.
    """

    def __init__(self, dataset: Any, labels: NDArray[Any], name: str, tokens: bool = False) -> None:
        self.dataset = dataset
        self.labels = labels
        self._tokens = tokens
        self.name = name
        first = self._sample(0)
        super().__init__((len(labels), *first.shape), first.dtype, name)

    def read(self, rows: Tensor) -> Tensor:
        found = torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        for place, row in enumerate(rows.tolist()):
            sample = self._sample(row)
            require(
                sample.shape == self.shape[1:] and sample.dtype == self.dtype,
                f"{self.name}[{row}] is {_kind(sample)}, and {self.name}[0] is {_kind(found[0])}; all samples must be "
                "alike.",
            )
            found[place] = sample
        return found

    def _sample(self, row: int) -> Tensor:
        where = f"{self.name}[{row}]"
        x, y = pair_of(self.dataset, row, where)
        known = self.labels[row]
        require(
            bool(np.all(y == known)),
            f"{where} has the label {y} now and had {known} before: labels must stay the same whenever they are read.",
        )
        return _values(x, where, self._tokens)


def is_torch_dataset(given: Any) -> bool:
    """True for a torch Dataset that is read by index; others, and loaders, are refused with what to give instead."""
    loader = isinstance(given, torch.utils.data.DataLoader)
    require(not loader, "A DataLoader is read in an order of its own; give its Dataset: loader.dataset.")
    if not isinstance(given, torch.utils.data.Dataset):
        return False
    by_index = not isinstance(given, torch.utils.data.IterableDataset) and isinstance(given, Sized)
    require(by_index, f"A {type(given).__name__} cannot be read by index: give a Dataset with __len__ and __getitem__.")
    return True


def pair_of(dataset: Any, row: int, where: str) -> tuple[Any, Any]:
    """Return sample and label as a Dataset gives them, its random draws keyed by the sample's number."""
    with _keyed_draws(randomness.key(row, "torch dataset")):
        try:
            given = dataset[row]
        except Refusal:
            raise
        except Exception as error:
            # Code of the user's own, which raises anything.
            raise Refusal(f"{where} cannot be read: {type(error).__name__}: {error}.") from error
    if not isinstance(given, tuple | list) or len(given) != 2:
        kind = type(given).__name__
        if isinstance(given, Mapping):
            kind += f" with {', '.join(map(str, given))}"
        elif isinstance(given, tuple | list):
            kind += f" of {len(given)}"
        raise Refusal(
            f"{where} is a {kind}; a Dataset must give pairs (sample, label), each one array: wrap it in one that "
            "does. Weights of samples go beside the labels, for a loss of your own."
        )
    x, y = given
    return x, _label(y, where)


def _label(y: Any, where: str) -> Any:
    if isinstance(y, Tensor):
        y = numpy_of(y)
    if isinstance(y, np.ndarray) and y.ndim == 0:
        y = y[()]
    plain = isinstance(y, str | bool | int | float | np.generic | np.ndarray | list)
    require(plain, f"{where} has a label of the type {type(y).__name__}; it must be a number or a word.")
    return y


def _values(x: Any, where: str, tokens: bool) -> Tensor:
    """Return a sample as a tensor: images as `[channels, height, width]`, uint8."""
    if hasattr(x, "getbands"):  # An image of PIL.
        pixels = np.asarray(x)
        x = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    array = array_of(x, f"{where} must be a tensor or an array of numbers.")
    numbers = array.dtype == np.bool_ or np.issubdtype(array.dtype, np.number)
    require(numbers and array.dtype.kind != "c", f"{where} must be numbers, not {array.dtype}.")
    require(
        array.ndim >= 1 and array.size > 0, f"{where} holds no values, or one without an axis: {list(array.shape)}."
    )
    if tokens:
        whole = np.issubdtype(array.dtype, np.integer) and array.min() >= 0
        require(whole, f"{where}: tokens must be whole numbers from 0.")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    with np.errstate(over="ignore"):  # Values too large for float32 become infinite, and are refused.
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"


@contextmanager
def _keyed_draws(key: int) -> Iterator[None]:
    """Seed the global generators, as transforms use them, and put them back afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(key)
        np.random.seed(key % (1 << 32))
        torch.default_generator.manual_seed(key % (1 << 63))
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def labels_of(dataset: Any, given: Any, name: str) -> NDArray[Any]:
    """Return the labels of a Dataset `[n]`: those given, those it lists (`targets`, `labels`), or else read all."""
    count = len(dataset)
    require(count > 0, f"{name}: there are no samples.")
    listed = given if given is not None else _listed(dataset)
    if listed is not None:
        labels = array_of(listed, f"{name}: labels must be one per sample.")
        require(len(labels) == count, f"{name}: {count} samples but {len(labels)} labels.")
        some = np.unique(np.linspace(0, count - 1, _COMPARED).astype(np.int64)).tolist()
        read = [pair_of(dataset, row, f"{name}: x[{row}]")[1] for row in some]
        if all(np.all(one == labels[row]) for row, one in zip(some, read, strict=True)):
            return labels
        require(given is None, f"{name}: labels are not those that the Dataset gives with its samples.")
    # A Dataset that transforms its labels, or lists none, tells them with its samples alone.
    return np.asarray([pair_of(dataset, row, f"{name}: x[{row}]")[1] for row in range(count)])


def _listed(dataset: Any) -> Any:
    """Return the labels that a Dataset lists without reading samples, as torchvision's do; None if it lists none."""
    if isinstance(dataset, torch.utils.data.Subset):
        whole = _listed(dataset.dataset)
        return None if whole is None else np.asarray(whole)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        parts = [_listed(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate([np.asarray(part) for part in parts])
    if isinstance(dataset, torch.utils.data.TensorDataset) and len(dataset.tensors) == 2:
        return numpy_of(dataset.tensors[1])
    for attribute in ("targets", "labels"):
        found = getattr(dataset, attribute, None)
        if found is not None and hasattr(found, "__len__") and len(found) == len(dataset):
            return numpy_of(found) if isinstance(found, Tensor) else np.asarray(found)
    return None


def class_names_of(dataset: Any, labels: NDArray[Any]) -> tuple[str, ...] | None:
    """Return the names that a Dataset lists for its classes 0, 1, …, as torchvision's do; None if it lists none."""
    names = getattr(dataset, "classes", None)
    if not isinstance(names, Sequence) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        return None
    whole = np.issubdtype(labels.dtype, np.integer)
    return tuple(names) if whole and labels.min() >= 0 and labels.max() < len(names) else None


def clients_of(given: Any, count: int, name: str) -> NDArray[Any]:
    """Return the client of each sample `[n]`: as it is given, or by a function of the sample's number."""
    if callable(given):
        call: Callable[[int], Any] = given
        given = [call(row) for row in range(count)]
    clients = array_of(given, f"{name}: clients must be one per sample.")
    require(
        clients.ndim == 1 and len(clients) == count,
        f"{name}: clients must say the client of each of the {count} samples, as an array or a function of the "
        f"sample's number; it has the shape {list(clients.shape)}.",
    )
    return clients


def statistics_of_images(train: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of the channels of a Dataset's training images, from at most `LOOKED_AT` of them.

    Numbers that are no images have been transformed by their Dataset, and stay as they are.
    """
    if train.dtype != torch.uint8:
        return (0.0,), (1.0,)
    some = torch.linspace(0, len(train) - 1, min(len(train), LOOKED_AT), dtype=torch.float64).long()
    return channel_statistics(taken(train, some))
