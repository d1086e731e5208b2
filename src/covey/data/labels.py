"""Labels and clients as they come: numbers or words, one for each sample. They become numbers from 0 with names."""

import datetime
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.data.written_values import days_of, is_missing_name
from covey.errors import Refusal, require
from covey.task.label_kinds import MANY, infer, infer_words, require_numbers

Place = Callable[[int], str]
"""Returns what a refusal calls a row."""


class Targets(NamedTuple):
    """Labels as classes, or as numbers to predict."""

    names: tuple[str, ...]
    """Of the classes; empty if there are none."""
    values: Tensor
    """`[n]`, int64, numbers of classes; or float64 `[n]` or `[n, targets]`."""
    note: str
    """A sentence about the task, if it was inferred."""


def targets_of(labels: NDArray[Any], class_names: Sequence[str] | None, where: str, note: str = "") -> Targets:
    """Return labels as classes, the different ones in order or those that are named; or as numbers, as they are.

    Numbers tell which of the two they are; `note` is a sentence about that, if it is known already.
    """
    if class_names is not None:
        whole = np.issubdtype(labels.dtype, np.integer) and labels.ndim == 1
        require(whole, f"{where}: with class names, labels must be whole numbers.")
        names, codes = tuple(class_names), labels
    else:
        task = "classification"
        if labels.dtype.kind in "biuf":
            task, inferred = infer(labels, where)
            note = note or inferred
        if task != "classification":
            return Targets((), torch.from_numpy(np.array(labels, dtype=np.float64)), note)
        if all(isinstance(word, str) for word in labels.tolist()):
            found, inferred = infer_words(np.asarray(labels, dtype=np.str_), where)[1:]
            note = note or (inferred if found == "classification" else "")
        names, codes = numbered(labels, where, "labels")
    require(len(names) >= 2, f"{where}: there is only one class, '{names[0] if names else ''}'.")
    return Targets(names, torch.from_numpy(codes.astype(np.int64).reshape(-1)), note)


def labels_of(y: Any, where: str, samples: str) -> NDArray[Any]:
    """Return labels `[n]`, numbers or words, or `[n, targets]`, numbers; refuse missing ones.

    Words that are numbers with decimals, and numbers of any Python type, become numbers.
    """
    given = array_of(y, f"{where}: labels must be one per sample, or the same number of them for each.")
    if given.ndim == 2 and given.dtype.kind in "biuf" and given.shape[1] >= 1:
        require_numbers(given, where, samples)
        return given[:, 0] if given.shape[1] == 1 else given
    labels = _plain(words_of(y, where, "label", samples))
    if labels.dtype.kind == "f":
        require_numbers(labels, where, samples)
    elif labels.dtype.kind not in "biu":
        words = np.array([str(word) for word in labels.tolist()])
        instead = "if labels are words, number them and give class_names"
        if labels.dtype.kind == "M" or all(isinstance(word, str | datetime.date) for word in labels.tolist()):
            require_one_kind(words, lambda row: f"{where}: {samples}[{row}]", instead)
            numbers = infer_words(words, where)[0]
            return numbers if numbers.dtype.kind == "f" else labels
    return labels


def _plain(labels: NDArray[Any]) -> NDArray[Any]:
    """Return Python's numbers as numbers of NumPy; words, and a mixture, as they are."""
    if labels.dtype.kind != "O":
        return labels
    if all(isinstance(one, bool | np.bool_) for one in labels):
        return labels.astype(np.bool_)
    if all(isinstance(one, Integral) for one in labels):
        return np.array(labels.tolist())
    return labels.astype(np.float64) if all(isinstance(one, Real | Decimal) for one in labels) else labels


def require_one_kind(words: NDArray[Any], place: Place, instead: str) -> None:
    """Refuse the first label that is not a number where most are amounts, and labels that are dates.

    `instead` says what to do if the labels are names of classes nevertheless.
    """
    different, codes = np.unique(words, return_inverse=True)
    numbers = np.array([_number(word) for word in different.tolist()])[codes]
    finite = np.isfinite(numbers)
    amounts = np.unique(numbers[finite])
    if 2 * int(finite.sum()) > len(words):
        several = len(amounts) > MANY or bool((amounts != np.floor(amounts)).any())
        odd = ~finite if several else np.isinf(numbers)
        for row in np.flatnonzero(odd)[:1].tolist():
            raise Refusal(
                f"{place(row)}: the label '{words[row]}' is not a finite number, as most labels are; correct it, or "
                f"leave the row out ({instead})."
            )
    elif days_of([word.strip() for word in words.tolist()]) is not None:
        raise Refusal(
            f"{place(0)}: the label '{words[0]}' is a date, as all labels are: give what a model can learn, such as a "
            f"number of days ({instead})."
        )


def _number(word: str) -> float:
    """Return a word as a number; NaN if it is none."""
    try:
        return float(word)
    except ValueError:
        return float("nan")


def label_values(
    columns: Sequence[NDArray[Any]],
    names: Sequence[str],
    where: str,
    place: Place,
    words: Collection[str] = (),
    instead: str = "",
) -> tuple[NDArray[Any], str]:
    """Return the labels of a table's columns, and a sentence about their task: words or numbers, or numbers of many.

    `words` are columns whose labels are words in any case; `instead` says how a column becomes one of them.
    """
    if len(columns) == 1:
        if columns[0].dtype.kind in "biuf" or names[0] in words:
            return columns[0], ""
        require_one_kind(columns[0], place, instead)
        values, _, note = infer_words(columns[0], f"{where}, column '{names[0]}'")
        return values, note
    stacked = np.stack([_amounts(column, name, place) for column, name in zip(columns, names, strict=True)], axis=1)
    return stacked, ""


def _amounts(column: NDArray[Any], name: str, place: Place) -> NDArray[np.float64]:
    """Return one of several labels as finite numbers `[n]`."""
    require(column.ndim == 1, f"The column '{name}' is one of several labels, and holds lists.")
    numbers = np.array([_number(word) for word in column.tolist()], dtype=np.float64)
    for row in np.flatnonzero(~np.isfinite(numbers))[:1].tolist():
        raise Refusal(f"{place(row)}: the column '{name}' is one of several labels, and '{column[row]}' is no number.")
    return numbers


class Guess(NamedTuple):
    """What labels seem to be for, and a sentence that says why."""

    task: str
    why: str


def guessed_task(labels: NDArray[Any]) -> Guess:
    """Return the task that labels are for as they come, `[n]` or `[n, k]`; words of a CSV file may be numbers."""
    if labels.ndim == 2:
        return Guess(infer(labels, "")[0], f"each sample has {labels.shape[1]} labels")
    task, kind = "classification", "words"
    if labels.dtype.kind in "biuf":
        task = infer(labels, "")[0]
        kind = "fractions" if task == "regression" else "whole numbers"
    elif all(np.isfinite(_number(str(word))) for word in np.unique(labels)):
        kind = "whole numbers"
    return Guess(task, f"labels are {kind}, {len(np.unique(labels)):,} different ones")


def array_of(given: Any, sentence: str) -> NDArray[Any]:
    """Return as an array; refuse lists of different lengths with the sentence."""
    try:
        return numpy_of(given) if isinstance(given, Tensor) else np.asarray(given)
    except ValueError:
        raise Refusal(sentence) from None


def numpy_of(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor of any kind as an array; a number type that NumPy lacks becomes float32."""
    known = not tensor.is_floating_point() or tensor.dtype in (torch.float16, torch.float32, torch.float64)
    return (tensor if known else tensor.float()).detach().cpu().numpy()


def words_of(given: Any, where: str, what: str, samples: str) -> NDArray[Any]:
    """Return labels or clients `[n]`, numbers or words; refuse missing ones, by the name of the samples."""
    words = array_of(given, f"{where}: {what}s must be one per sample.")
    require(words.ndim == 1, f"{where}: {what}s must be one per sample, not of shape {list(words.shape)}.")
    if words.dtype.kind in "biu":
        return words
    if words.dtype.kind == "f":
        missing = np.isnan(words)
    else:
        # Checked as given: in an array of words, NumPy turns NaN into text.
        missing = np.array([is_missing(word) for word in np.asarray(given, dtype=object)], dtype=bool)
    for place in np.flatnonzero(missing)[:1]:
        raise Refusal(f"{where}: {samples}[{place}] has no {what}.")
    return words


def is_missing(word: object) -> bool:
    """True if a label or a client is blank or a word for a missing value, or a None, NaN or NaT of Python or pandas."""
    return word is None or is_missing_name(word.decode("latin-1") if isinstance(word, bytes) else str(word))


def numbered(words: NDArray[Any], where: str, what: str) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the distinct words in order, and each word's number `[n]`."""
    try:
        different, codes = np.unique(words, return_inverse=True)
    except TypeError:
        raise Refusal(f"{where}: {what} must be all numbers or all words.") from None
    return tuple(str(word) for word in different), codes
