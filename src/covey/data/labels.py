"""Labels and clients as they come: numbers or words, one for each sample. They become numbers from 0 with names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.errors import Refusal, require
from covey.task.label_kinds import infer, infer_words, require_numbers


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
            return Targets((), torch.from_numpy(np.ascontiguousarray(labels, dtype=np.float64)), note)
        names, codes = numbered(labels, where, "labels")
    require(len(names) >= 2, f"{where}: there is only one class, '{names[0] if names else ''}'.")
    return Targets(names, torch.from_numpy(codes.astype(np.int64).reshape(-1)), note)


def labels_of(y: Any, where: str, samples: str) -> NDArray[Any]:
    """Return labels `[n]`, numbers or words, or `[n, targets]`, numbers; refuse missing ones."""
    given = array_of(y, f"{where}: labels must be one per sample, or the same number of them for each.")
    if given.ndim == 2 and given.dtype.kind in "biuf" and given.shape[1] >= 1:
        require_numbers(given, where, samples)
        return given[:, 0] if given.shape[1] == 1 else given
    labels = words_of(y, where, "label", samples)
    if labels.dtype.kind == "f":
        require_numbers(labels, where, samples)
    return labels


def label_values(columns: Sequence[NDArray[Any]], names: Sequence[str], where: str) -> tuple[NDArray[Any], str]:
    """Return the labels of a table's columns, and a sentence about their task: words or numbers, or numbers of many."""
    if len(columns) == 1:
        if columns[0].dtype.kind in "biuf":
            return columns[0], ""
        values, _, note = infer_words(columns[0], f"{where}, column '{names[0]}'")
        return values, note
    numbers = []
    for column, name in zip(columns, names, strict=True):
        try:
            numbers.append(column.astype(np.float64))
        except ValueError:
            raise Refusal(f"{where}: the column '{name}' is one of several labels, and not all numbers.") from None
    stacked = np.stack(numbers, axis=1)
    require_numbers(stacked, where, "row ")
    return stacked, ""


class Guess(NamedTuple):
    """What labels seem to be for, and a sentence that says why."""

    task: str
    why: str


def guessed_task(labels: NDArray[Any]) -> Guess:
    """Return the task that labels are for as they come, `[n]` or `[n, k]`; words of a CSV file may be numbers."""
    if labels.ndim == 2:
        return Guess(infer(labels, "")[0], f"each sample has {labels.shape[1]} labels")
    count = len(np.unique(labels))
    if labels.dtype.kind in "biuf":
        task = infer(labels, "")[0]
        kind = "fractions" if task == "regression" else "whole numbers"
    else:
        task = infer_words(labels, "")[1]
        kind = "words" if not _all_numbers(labels) else "fractions" if task == "regression" else "whole numbers"
    return Guess(task, f"labels are {kind}, {count:,} different ones")


def _all_numbers(words: NDArray[Any]) -> bool:
    try:
        words.astype(np.float64)
    except ValueError:
        return False
    return True


def array_of(given: Any, sentence: str) -> NDArray[Any]:
    """Return as an array; refuse lists of different lengths with the sentence."""
    try:
        return given.numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError:
        raise Refusal(sentence) from None


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
    """True if a label or a client is blank, or a None, NaN or NaT of Python or pandas."""
    return not word.strip() if isinstance(word, (str, bytes)) else str(word) in ("None", "nan", "NaT", "<NA>")


def numbered(words: NDArray[Any], where: str, what: str) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the distinct words in order, and each word's number `[n]`."""
    try:
        different, codes = np.unique(words, return_inverse=True)
    except TypeError:
        raise Refusal(f"{where}: {what} must be all numbers or all words.") from None
    return tuple(str(word) for word in different), codes
