"""A user's own files: a CSV table or an NPZ archive, optionally with each sample's client."""

import csv as csv_module
from collections.abc import Sequence
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
from covey.errors import Refusal, require
from covey.randomness import generator
from covey.registries import datasets

Row = tuple[int, list[str]]
"""A line of a CSV file: its number and its cells."""

CLIENT = "client"
"""Default name of the column or array with each sample's client."""


@datasets.add("csv")
def csv(
    data_dir: Path | None, /, *, path: str = "", label: str = "label", client: str = CLIENT, test: float = 0.2
) -> Dataset:
    """A CSV file with a header: a label, optionally a client, all others numbers; the share `test` is held out."""
    file = _find(path, data_dir, "csv")
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv_module.reader(lines)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv_module.Error) as error:
        raise Refusal(f"{file} cannot be read as CSV: {error}.") from error
    # Only the environment "natural" needs clients, so the column of the default name may be missing.
    named = [label, client] if client in header or client != CLIENT else [label]
    for column in named:
        require(
            column in header,
            f"{file} has no column '{column}' (it has: {', '.join(header)}); say which with dataset.label and "
            "dataset.client.",
        )
    require(len(rows) > 0, f"{file} has no rows.")
    features = [place for place, name in enumerate(header) if name not in named]
    require(len(features) > 0, f"{file} has no columns beside {' and '.join(map(repr, named))}.")
    hint = "" if client in named else "; if its column names the clients, say so with dataset.client"
    x = _numbers(file, header, rows, features, hint)
    words = {column: _column(file, header, rows, column) for column in named}
    return from_arrays(file.stem, x, words[label], words.get(client), test=test, source=str(file))


def _numbers(file: Path, header: list[str], rows: list[Row], places: list[int], hint: str) -> NDArray[np.float32]:
    """Return the columns at these places, `[rows, places]`; `hint` ends the refusal of a cell that is no number."""
    x = np.empty((len(rows), len(places)), dtype=np.float32)

    def cell(number: int, column: int) -> str:
        line, row = rows[number]
        return f"{file}, line {line}, column '{header[places[column]]}': '{row[places[column]]}'"

    with np.errstate(over="ignore"):
        for number, (line, row) in enumerate(rows):
            require(len(row) == len(header), f"{file}, line {line}: {len(row)} values for {len(header)} columns.")
            for column, place in enumerate(places):
                try:
                    x[number, column] = float(row[place])
                except ValueError:
                    raise Refusal(f"{cell(number, column)} is not a number{hint}.") from None
    for number, column in np.argwhere(~np.isfinite(x))[:1]:
        raise Refusal(f"{cell(number, column)} is not a finite float32 number.")
    return x


def _column(file: Path, header: list[str], rows: list[Row], name: str) -> NDArray[Any]:
    """Return the labels or clients; every row must have one."""
    place = header.index(name)
    for line, row in rows:
        require(row[place].strip() != "", f"{file}, line {line}: the column '{name}' is empty.")
    return np.array([row[place] for _, row in rows])


@datasets.add("npz")
def npz(data_dir: Path | None, /, *, path: str = "", test: float = 0.2) -> Dataset:
    """An NPZ file with arrays `x`, `y`, optionally `client`, `test_x`, `test_y`; else the share `test` is held out."""
    file = _find(path, data_dir, "npz")
    arrays = _arrays(file)
    for name in ("x", "y"):
        require(name in arrays, f"{file} has no array '{name}' (it has: {', '.join(sorted(arrays)) or 'none'}).")
    held_out = (arrays["test_x"], arrays["test_y"]) if {"test_x", "test_y"} <= set(arrays) else None
    return from_arrays(
        file.stem, arrays["x"], arrays["y"], arrays.get(CLIENT), test=test, held_out=held_out, source=str(file)
    )


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


def from_arrays(
    name: str,
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor | Sequence[Any],
    clients: NDArray[Any] | Tensor | Sequence[Any] | None,
    *,
    test: float = 0.2,
    held_out: tuple[Any, Any] | None = None,
    class_names: Sequence[str] | None = None,
    tokens: bool = False,
    source: str | None = None,
) -> Dataset:
    """Return a data set from arrays: samples `[n, ...]`, labels `[n]` of any kind, and the client of each sample.

    Labels and clients may be numbers or words. Without `held_out`, the share `test` of each client's samples is held
    out (of all samples, if there are no clients). uint8 samples stay as they are; others become float32 and are
    standardised per feature or channel; `tokens`, numbers of words, stay whole numbers. Refusals call the data
    `source`, or else by its name.
    """
    where = source or name
    x, labels = _samples(x, where, tokens), _words(y, where, "label", "x")
    require_finite(x, f"{where}: x")
    require(len(x) == len(labels), f"{where}: {len(x)} samples but {len(labels)} labels.")
    require(len(x) > 0, f"{where}: there are no samples.")
    every_label = labels
    if held_out is not None:
        every_label = np.concatenate([labels, _words(held_out[1], where, "label", "test_x")])
    if class_names is None:
        names, codes = _numbered(every_label, where, "labels")
    else:
        require(
            np.issubdtype(every_label.dtype, np.integer), f"{where}: with class names, labels must be whole numbers."
        )
        names, codes = tuple(class_names), every_label
    require(len(names) >= 2, f"{where}: there is only one class, '{names[0] if names else ''}'.")
    target = torch.from_numpy(codes.astype(np.int64).reshape(-1))
    groups, group_names = _groups(clients, len(x), where)
    if held_out is None:
        held = _held_out(groups, test, where)
        train_x, train_y, train_groups = x[~held], target[: len(x)][~held], groups[~held]
        test_x, test_y = x[held], target[: len(x)][held]
    else:
        train_x, train_y, train_groups = x, target[: len(x)], groups
        test_x, test_y = _samples(held_out[0], where, tokens), target[len(x) :]
        require_finite(test_x, f"{where}: test_x")
        require(test_x.shape[1:] == x.shape[1:], f"{where}: test samples have another shape than training samples.")
    mean, deviation = ((0.0,), (1.0,)) if tokens else channel_statistics(train_x)
    return Dataset(
        name, train_x, train_y, test_x, test_y, names, mean, deviation,
        train_groups if clients is not None else None, group_names,
    )  # fmt: skip


def _samples(x: NDArray[Any] | Tensor, name: str, tokens: bool) -> Tensor:
    array = _array(x, f"{name}: samples must be an array [n, ...], all of one shape.")
    require(array.ndim >= 2, f"{name}: samples must be an array [n, ...], not of shape {list(array.shape)}.")
    require(array.size > 0 or len(array) == 0, f"{name}: samples hold no values, of shape {list(array.shape)}.")
    require(
        array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer),
        f"{name}: samples must be numbers, not {array.dtype}.",
    )
    if tokens:
        whole = np.issubdtype(array.dtype, np.integer)
        require(whole and array.min(initial=0) >= 0, f"{name}: tokens must be whole numbers from 0.")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    if array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    with np.errstate(over="ignore"):  # Values too large for float32 become infinite, and are refused.
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _array(given: Any, sentence: str) -> NDArray[Any]:
    """Return as an array; refuse lists of different lengths with the sentence."""
    try:
        return given.numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError:
        raise Refusal(sentence) from None


def _groups(
    clients: NDArray[Any] | Tensor | Sequence[Any] | None, count: int, where: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the client of each sample as numbers, and the clients' names; one client if none are given."""
    if clients is None:
        return torch.zeros(count, dtype=torch.int64), ()
    given = _words(clients, where, "client", "x")
    require(len(given) == count, f"{where}: {count} samples but {len(given)} clients.")
    names, codes = _numbered(given, where, "clients")
    return torch.from_numpy(codes.astype(np.int64)), names


def _words(given: Any, where: str, what: str, samples: str) -> NDArray[Any]:
    """Return labels or clients `[n]`, numbers or words; refuse missing ones."""
    words = _array(given, f"{where}: {what}s must be one per sample.")
    require(words.ndim == 1, f"{where}: {what}s must be one per sample, not of shape {list(words.shape)}.")
    if words.dtype.kind in "biu":
        return words
    if words.dtype.kind == "f":
        missing = np.isnan(words)
    else:
        # Checked as given: in an array of words, NumPy turns NaN into text.
        missing = np.array([_is_missing(word) for word in np.asarray(given, dtype=object)], dtype=bool)
    for place in np.flatnonzero(missing)[:1]:
        raise Refusal(f"{where}: {samples}[{place}] has no {what}.")
    return words


def _is_missing(word: object) -> bool:
    """True if a label or a client is blank, or a None, NaN or NaT of Python or pandas."""
    return not word.strip() if isinstance(word, (str, bytes)) else str(word) in ("None", "nan", "NaT", "<NA>")


def _numbered(words: NDArray[Any], where: str, what: str) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the distinct words in order, and each word's number `[n]`."""
    try:
        different, codes = np.unique(words, return_inverse=True)
    except TypeError:
        raise Refusal(f"{where}: {what} must be all numbers or all words.") from None
    return tuple(str(word) for word in different), codes


def _held_out(groups: Tensor, share: float, name: str) -> Tensor:
    """Draw the test samples, a mask `[n]`: the same share of every client, but never all of a client's."""
    require(0 < share < 1, f"dataset.test is the share held out for testing, in (0, 1), not {share:g}.")
    held = np.zeros(len(groups), dtype=bool)
    rng = generator("own data", "test split")
    for group in range(int(groups.max()) + 1):
        members = rng.permutation(np.flatnonzero(groups.numpy() == group))
        held[members[: min(int(len(members) * share + 0.5), len(members) - 1)]] = True
    require(bool(held.any()), f"{name}: {share:g} of every client's samples is no sample at all; give test samples.")
    return torch.from_numpy(held)


def _find(path: str, data_dir: Path | None, kind: str) -> Path:
    require(path != "", f"Say which file: --set dataset.path=FILE.{kind}")
    for candidate in (Path(path), *([data_dir / path] if data_dir else [])):
        if candidate.is_file():
            return candidate
    raise Refusal(f"There is no file {path}" + (f", nor {data_dir / path}." if data_dir else "."))
