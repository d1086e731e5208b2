"""Data sets from a user's own arrays: in memory, in an NPZ archive, or in memory maps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from covey.data.dataset import Dataset, channel_statistics, require_finite
from covey.data.files import reason
from covey.data.labels import array_of, labels_of, targets_of, words_of
from covey.data.memory_map import READ_AT_ONCE, MappedSamples
from covey.data.own_split import OwnSplit, SplitKind, split_rows
from covey.data.sample_store import SampleStore, in_place_of_tensor, taken
from covey.errors import Refusal, require
from covey.registries import datasets

Statistics = Callable[[Tensor], tuple[tuple[float, ...], tuple[float, ...]]]

CLIENT = "client"
"""Default name of the column or array with each sample's client."""

_LAYOUT = {"split": "within"}
"""What held before a split could be chosen."""


@datasets.add("npz", earlier=_LAYOUT)
def npz(data_dir: Path | None, /, *, path: str = "", test: float = 0.2, split: SplitKind = "within") -> Dataset:
    """An NPZ file with arrays `x`, `y`, optionally `client`, `test_x`, `test_y`, `test_client`.

    Without test samples, the share `test` is held out: within every client, its last ones, or whole clients.
    """
    file = find(path, data_dir, "npz")
    return read_arrays(file, "npz", test, split).dataset(file.stem, None)


@datasets.add("npy", earlier=_LAYOUT)
def npy(data_dir: Path | None, /, *, path: str = "", test: float = 0.2, split: SplitKind = "within") -> Dataset:
    """A folder with `x.npy`, `y.npy`, optionally `client.npy`, `test_x.npy`, …, read where they are used.

    The samples may be larger than memory. Without test samples, the share `test` is held out.
    """
    require(path != "", "Say which folder: --set dataset.path=FOLDER")
    places = (Path(path), *([data_dir / path] if data_dir else []))
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise Refusal(f"There is no folder {path}" + (f", nor {data_dir / path}." if data_dir else "."))
    return read_arrays(folder, "npy", test, split).dataset(folder.name, None)


def read_arrays(place: Path, kind: str, test: float, split: SplitKind) -> "OwnArrays":
    """Read an NPZ file, or open a folder of .npy files."""
    arrays, source = _arrays(place) if kind == "npz" else _mapped(place), str(place)
    for needed in ("x", "y"):
        require(needed in arrays, f"{source} has no array '{needed}' (it has: {', '.join(sorted(arrays)) or 'none'}).")
    held_out = (arrays["test_x"], arrays["test_y"]) if {"test_x", "test_y"} <= set(arrays) else None
    return understood(
        source,
        arrays["x"],
        arrays["y"],
        arrays.get(CLIENT),
        test=test,
        held_out=held_out,
        test_clients=arrays.get(f"test_{CLIENT}") if held_out else None,
        split=split,
    )


def from_arrays(
    name: str,
    x: NDArray[Any] | Tensor | SampleStore,
    y: NDArray[Any] | Tensor | Sequence[Any],
    clients: NDArray[Any] | Tensor | Sequence[Any] | None,
    *,
    test: float = 0.2,
    held_out: tuple[Any, Any] | None = None,
    test_clients: NDArray[Any] | Tensor | Sequence[Any] | None = None,
    split: SplitKind = "within",
    class_names: Sequence[str] | None = None,
    tokens: bool = False,
    source: str | None = None,
    statistics: Statistics = channel_statistics,
) -> Dataset:
    """Return a data set from arrays: samples `[n, ...]`, labels `[n]` of any kind, and the client of each sample.

    Labels and clients may be numbers or words. Without `held_out`, the share `test` of each client's samples is held
    out (of all samples, if there are no clients); `split` says which. uint8 samples stay as they are; others become
    float32 and are standardised by `statistics`, mean and deviation of each feature or channel of the training samples;
    `tokens`, numbers of words, stay whole numbers.
    Large memory maps are read where they are used. Refusals call the data `source`, or else by its name.
    """
    found = understood(
        source or name,
        x,
        y,
        clients,
        test=test,
        held_out=held_out,
        test_clients=test_clients,
        split=split,
        tokens=tokens,
    )
    return found.dataset(name, class_names, (lambda train: ((0.0,), (1.0,))) if tokens else statistics)


@dataclass(frozen=True, eq=False)
class OwnArrays:
    """Arrays as they were understood."""

    source: str
    x: Tensor
    test_x: Tensor
    labels: NDArray[Any]
    """Of the training and the test samples, as `rows` numbers them."""
    clients: NDArray[Any] | None
    """Of the training samples and, where they are held out from them, of the test samples."""
    rows: OwnSplit

    def dataset(
        self, name: str, class_names: Sequence[str] | None, statistics: Statistics = channel_statistics
    ) -> Dataset:
        """Return the arrays as a data set."""
        names, target, note = targets_of(self.labels, class_names, self.source)
        if self.x.dtype == torch.int64 and names:
            note = ""  # Numbers of words are no amounts.
        rows = self.rows
        mean, deviation = statistics(self.x)
        return Dataset(
            name, self.x, target[rows.train], self.test_x, target[rows.test], names, mean, deviation, rows.groups,
            rows.names, test_groups=rows.test_groups, notes=(*rows.notes, *tested_alone(target, rows, names)),
            note=note,
        )  # fmt: skip


def stated_statistics(normalise: Any, name: str, *, tokens: bool) -> Statistics:
    """Return the mean and deviation that a user says: `False` for samples as they are, or a pair (mean, deviation)."""
    if normalise is False:
        return lambda train: ((0.0,), (1.0,))
    what = f"{name}: normalise must be True, False, or a pair (mean, deviation)"
    require(not tokens, f"{name}: tokens are words, which have no mean: leave normalise out.")
    require(isinstance(normalise, tuple | list) and len(normalise) == 2, f"{what}, not {normalise!r:.60}.")
    fault = f"{what} of finite numbers, with deviations above 0; it is {normalise!r:.80}."
    try:
        mean, deviation = (tuple(np.asarray(one, dtype=np.float64).reshape(-1).tolist()) for one in normalise)
    except (TypeError, ValueError) as error:
        raise Refusal(fault) from error
    require(bool(np.isfinite(mean + deviation).all()) and min(deviation, default=0) > 0, fault)

    def said(train: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
        channels = train.shape[1]
        for one in (mean, deviation):
            require(
                len(one) in (1, channels),
                f"{name}: normalise has {len(one)} numbers, and samples have {channels} channels or features: give one "
                "for each, or one for all.",
            )
        return mean * (channels // len(mean)), deviation * (channels // len(deviation))

    return said


def understood(
    where: str,
    x: Any,
    y: Any,
    clients: Any,
    *,
    test: float,
    held_out: tuple[Any, Any] | None,
    test_clients: Any,
    split: SplitKind,
    tokens: bool = False,
) -> OwnArrays:
    """Return arrays checked and split, as `from_arrays` takes them; refusals call them `where`."""
    x, labels = _samples(x, f"{where}: x", tokens), labels_of(y, where, "x")
    require_finite(x, f"{where}: x")
    require(len(x) == len(labels), f"{where}: {len(x)} samples but {len(labels)} labels.")
    require(len(x) > 0, f"{where}: there are no samples.")
    count = len(labels)
    if held_out is not None:
        held_labels = labels_of(held_out[1], where, "test_x")
        require(
            held_labels.shape[1:] == labels.shape[1:],
            f"{where}: labels have the shape {list(labels.shape)}, and test labels {list(held_labels.shape)}.",
        )
        labels = np.concatenate([labels, held_labels])
    given = None if clients is None else words_of(clients, where, "client", "x")
    if given is not None:
        require(len(given) == count, f"{where}: {count} samples but {len(given)} clients.")
    if held_out is None:
        rows = split_rows(given, count, test, where, how=split)
        return OwnArrays(where, taken(x, rows.train), taken(x, rows.test), labels, given, rows)
    test_x = _samples(held_out[0], f"{where}: test_x", tokens)
    require_finite(test_x, f"{where}: test_x")
    require(test_x.shape[1:] == x.shape[1:], f"{where}: test samples have another shape than training samples.")
    rows = _given_split(given, test_clients, count, len(labels) - count, where)
    return OwnArrays(where, x, test_x, labels, given, rows)


def _given_split(clients: NDArray[Any] | None, test_clients: Any, count: int, tests: int, where: str) -> OwnSplit:
    """Return the split of samples and test samples that are given apart; samples of both are numbered through."""
    marked = np.arange(count + tests) >= count
    if clients is None:
        return split_rows(None, count + tests, 0, where, marked=marked)
    if test_clients is None:
        # Nobody says whose the test samples are; any client stands for them.
        somebody = np.concatenate([clients, np.repeat(clients[:1], tests)])
        return replace(split_rows(somebody, count + tests, 0, where, marked=marked), test_groups=None, notes=())
    own = words_of(test_clients, where, "client", "test_x")
    require(len(own) == tests, f"{where}: {tests} test samples but {len(own)} clients of theirs.")
    return split_rows(np.concatenate([clients, own]), count + tests, 0, where, marked=marked)


def tested_alone(target: Tensor, rows: OwnSplit, names: Sequence[str]) -> tuple[str, ...]:
    """Return what to say about classes that the test samples have and the training samples lack."""
    return untrained_classes(target[rows.train], target[rows.test], names) if names else ()


def untrained_classes(y: Tensor, test_y: Tensor, names: Sequence[str]) -> tuple[str, ...]:
    """Return what to say about classes that `test_y` has and `y` lacks."""
    trained, tested = (torch.bincount(one, minlength=len(names)) for one in (y, test_y))
    alone = [names[label] for label in torch.nonzero((trained == 0) & (tested > 0)).flatten().tolist()]
    if not alone:
        return ()
    few = ", ".join(f"'{name}'" for name in alone[:3]) + (", …" if len(alone) > 3 else "")
    classes = "class is" if len(alone) == 1 else "classes are"
    return (f"{len(alone)} {classes} in the test samples alone ({few}): no model can learn them.",)


def _samples(x: Any, what: str, tokens: bool) -> Tensor:
    """Return samples as a tensor, or as a store in its place; `what` names them, such as `own data: x`."""
    if isinstance(x, SampleStore):
        return in_place_of_tensor(x)
    if isinstance(x, np.memmap) and x.nbytes > READ_AT_ONCE:
        return in_place_of_tensor(MappedSamples(x, what, tokens))
    name = what.rpartition(": ")[0]
    array = array_of(x, f"{name}: samples must be an array [n, ...], all of one shape.")
    require(array.ndim >= 2, f"{name}: samples must be an array [n, ...], not of shape {list(array.shape)}.")
    require(array.size > 0 or len(array) == 0, f"{name}: samples hold no values, of shape {list(array.shape)}.")
    # A pandas table of several types of numbers is an array of Python objects.
    if array.dtype == np.bool_ or (array.dtype == object and _all_numbers(array)):
        array = array.astype(np.float64)
    words = "; write words as columns of 0 and 1 (pandas.get_dummies), or give the table as a file: dataset='table.csv'"
    require(
        array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer),
        f"{name}: samples must be numbers, not {array.dtype}{words if array.dtype.kind in 'OUST' else ''}.",
    )
    if tokens:
        whole = np.issubdtype(array.dtype, np.integer)
        require(whole and array.min(initial=0) >= 0, f"{name}: tokens must be whole numbers from 0.")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    if array.dtype == np.uint8:
        return torch.from_numpy(np.require(array, requirements=("C", "W")))
    with np.errstate(over="ignore"):  # Values too large for float32 become infinite, and are refused.
        return torch.from_numpy(np.require(array, dtype=np.float32, requirements=("C", "W")))


def _all_numbers(array: NDArray[Any]) -> bool:
    """True for Python objects that all are numbers or truth values."""
    return all(issubclass(kind, Real | np.bool_) for kind in set(map(type, array.reshape(-1))))


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an NPZ file; Python objects, which can run code when loaded, are refused."""
    arrays: dict[str, NDArray[Any]] = {}
    fault = "is not an NPZ file, or not a whole one: numpy.savez(file, x=..., y=...) writes them"
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise BadZipFile("It is one array alone.")
        with archive:
            for name in archive.files:
                fault = f"cannot be read: its array '{name}' is damaged, or holds Python objects, not numbers or words"
                arrays[name] = archive[name]
    except OSError as error:
        raise Refusal(f"{file} cannot be read: {reason(error)}.") from error
    except Exception as error:
        # A damaged archive ends in errors of every kind: of zip, of zlib, of the array's header, of its size, ...
        raise Refusal(f"{file} {fault}.") from error
    return arrays


def _mapped(folder: Path) -> dict[str, NDArray[Any]]:
    """Open the arrays of a folder, samples as memory maps; Python objects are refused."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in ("x", "y", CLIENT, "test_x", "test_y", f"test_{CLIENT}"):
        file = folder / f"{name}.npy"
        if not file.is_file():
            continue
        try:
            arrays[name] = np.load(file, mmap_mode="r" if name.endswith("x") else None, allow_pickle=False)
        except Exception as error:
            # A damaged header ends in errors of several kinds.
            raise Refusal(
                f"{file} is not an array, or holds Python objects: numpy.save(file, array) writes them."
            ) from error
        require(isinstance(arrays[name], np.ndarray), f"{file} is not one array: numpy.save(file, array) writes them.")
    return arrays


def find(path: str, data_dir: Path | None, kind: str) -> Path:
    """Return the file at a path, or at a path in the folder of data sets."""
    require(path != "", f"Say which file: --set dataset.path=FILE.{kind}")
    for candidate in (Path(path), *([data_dir / path] if data_dir else [])):
        if candidate.is_file():
            return candidate
    raise Refusal(f"There is no file {path}" + (f", nor {data_dir / path}." if data_dir else "."))
