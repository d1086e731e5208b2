"""Labels of every kind: which task they are for, and how they become tensors that a model is trained on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.errors import Refusal, require
from covey.registries import tasks
from covey.task.classification import Classification
from covey.task.custom import Custom
from covey.task.learning_task import Task
from covey.task.multilabel import MultiLabel
from covey.task.regression import Regression

FEW = 20
"""Numbers such as 1.0 and 2.0 are classes if there are at most so many different ones, and none has decimals."""

MANY = 50
"""More whole numbers than these may well be amounts and not classes."""


PLAIN_TASK: Mapping[str, Any] = {"name": "classification"}
"""The task where nobody says or shows another."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a data set: int64 `[n]` for classes, float32 `[n, targets]` otherwise."""

    task: Task
    y: Tensor
    test_y: Tensor
    names: tuple[str, ...]
    """Of the classes; empty if there are none."""
    note: str = ""
    """A sentence about labels that are not what they were."""


def named_task(mapping: Mapping[str, Any]) -> Task:
    """Return the task of `Task.as_mapping`'s result, or one made from its name and options."""
    options = {name: tuple(one) if isinstance(one, list) else one for name, one in mapping.items() if name != "name"}
    name = str(mapping["name"])
    require(name != "auto", "The task 'auto' follows from labels, and there are none here.")
    task = tasks.make(name, options)
    if not isinstance(task, Task):
        raise Refusal(f"The task '{name}' is a {type(task).__name__}, not a Task.")
    return task


def infer(values: NDArray[Any], where: str) -> tuple[str, str]:
    """Return the task of labels `[n]` or `[n, targets]`, and a sentence that says so; it is empty for plain classes."""
    if values.ndim == 2:
        columns = values.shape[1]
        if columns > 1 and bool(np.isin(values, (0, 1)).all()):
            one_hot = bool((values.sum(axis=1) == 1).all())
            hint = "--task classification if each row's one is its class" if one_hot else "--task regression otherwise"
            return (
                "multilabel",
                f"{where}: labels are a 0/1 matrix of {columns} columns, so the task is multilabel; {hint}.",
            )
        return "regression", f"{where}: labels are {_targets(columns)}, so the task is regression."
    different = np.unique(values)
    if values.dtype.kind == "f":
        if len(different) > FEW or bool((different != np.floor(different)).any()):
            found = f"{len(different)} different decimal numbers" if len(different) > 1 else f"all {different[0]:g}"
            return "regression", (
                f"{where}: labels are {found}, so the task is regression; --task classification makes each a class."
            )
        return "classification", (
            f"{where}: labels are {len(different)} different whole numbers, so the task is classification; "
            "--task regression predicts them as numbers."
        )
    return "classification", _many(len(different), where) if values.dtype.kind in "iu" else ""


def infer_words(words: NDArray[Any], where: str) -> tuple[NDArray[Any], str, str]:
    """Return the labels of a text file, numbers where they are written with decimals; their task, and a sentence."""
    try:
        numbers = words.astype(np.float64)
    except ValueError:
        return words, "classification", ""
    if not np.isfinite(numbers).all():
        return words, "classification", ""
    if any("." in word or "e" in word.lower() for word in words.tolist()):
        return numbers, *infer(numbers, where)
    return words, "classification", _many(len(np.unique(numbers)), where)


def _many(different: int, where: str) -> str:
    """Return a sentence about whole numbers that may be amounts; empty if there are few of them."""
    if different <= MANY:
        return ""
    return (
        f"{where}: labels are {different} different whole numbers, each taken as a class; if they are amounts, say "
        "--task regression."
    )


def _targets(columns: int) -> str:
    return "a column of numbers" if columns == 1 else f"{columns} columns of numbers"


def require_numbers(values: NDArray[Any], where: str, samples: str) -> None:
    """Refuse labels `[n]` or `[n, targets]` that are missing or not finite, and name the first."""
    bad = np.argwhere(~np.isfinite(values.astype(np.float64)))[:1]
    for place in bad:
        column = f", column {place[1]}" if values.ndim == 2 else ""
        value = values[tuple(place)]
        fault = "has no label" if np.isnan(value) else f"has the label {value}, which is not finite"
        raise Refusal(f"{where}: {samples}[{place[0]}] {fault}{column}.")


def labels_as(task: Task, y: Tensor, test_y: Tensor, names: tuple[str, ...], where: str) -> Labels:
    """Return labels for a task: completed with what training labels tell, and in the unit that models are trained in.

    `y` and `test_y` are int64 `[n]`, numbers of the classes in `names`; or numbers `[n]` or `[n, targets]`.
    """
    if isinstance(task, Classification):
        return _classes(task, y, test_y, names, where)
    if isinstance(task, Custom) and names:
        return _for_own_loss(task, y, test_y, names, where)
    numbers, test = (_numbers(one, names, task, where) for one in (y, test_y))
    require(
        numbers.shape[1] == test.shape[1],
        f"{where}: training samples have {numbers.shape[1]} labels each, and test samples {test.shape[1]}.",
    )
    if isinstance(task, Regression):
        done = task.completed(numbers)
        return Labels(done, done.standardised(numbers), done.standardised(test), ())
    if isinstance(task, MultiLabel):
        for part, values in (("", numbers), ("test ", test)):
            for place in torch.nonzero((values != 0) & (values != 1))[:1].tolist():
                raise Refusal(
                    f"{where}: the task multilabel takes labels that are 0 or 1, and the {part}sample {place[0]} has "
                    f"{float(values[tuple(place)]):g} in column {place[1]}."
                )
        return Labels(task.completed(numbers), numbers.float(), test.float(), ())
    assert isinstance(task, Custom)
    return Labels(task.completed(numbers.shape[1]), numbers.float(), test.float(), ())


def _for_own_loss(task: Custom, y: Tensor, test_y: Tensor, names: tuple[str, ...], where: str) -> Labels:
    """Return classes for a loss of one's own: by number; or as they are, if a model with few outputs has to meet them.

    Words are no amounts, and whole numbers from 0 without a gap are their classes' numbers.
    """
    values = [float(name) if _is_number(name) else math.nan for name in names]
    if math.isnan(sum(values)) or values == list(range(len(names))):
        return Labels(task.completed(len(names)), y, test_y, names)
    if 0 < task.outputs < len(names):
        whole = all(value.is_integer() for value in values)
        amounts = torch.tensor(values, dtype=torch.float64).to(torch.int64 if whole else torch.float32)
        return Labels(task.completed(1), amounts[y], amounts[test_y], ())
    return Labels(
        task.completed(len(names)), y, test_y, names,
        f"{where}: labels such as {names[-1]} are taken as classes, and the loss gets their numbers, 0 to "
        f"{len(names) - 1}; if labels are amounts, say how many outputs the model has, such as task.outputs=1.",
    )  # fmt: skip


def raw_labels(task: Task | None, y: Tensor) -> Tensor:
    """Return labels as they were given: the reverse of `labels_as`, but for the numbers of classes."""
    return task.original(y) if isinstance(task, Regression) and task.centre else y


def _numbers(y: Tensor, names: tuple[str, ...], task: Task, where: str) -> Tensor:
    """Return labels as numbers float64 `[n, targets]`; classes become the numbers that are their names."""
    if not names:
        return y.double().reshape(len(y), -1)
    try:
        values = torch.tensor([float(name) for name in names], dtype=torch.float64)
    except ValueError:
        words = [name for name in names if not _is_number(name)]
        raise Refusal(
            f"{where}: the task {task.name} needs numbers as labels, and they are words such as '{words[0]}'."
        ) from None
    require(
        not isinstance(task, MultiLabel),
        f"{where}: the task multilabel needs a 0/1 matrix [samples, labels], and there is one label a sample.",
    )
    return values[y][:, None]


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _classes(task: Task, y: Tensor, test_y: Tensor, names: tuple[str, ...], where: str) -> Labels:
    """Return numbers or one-hot rows as classes."""
    if names:
        return Labels(task, y, test_y, names)
    if y.dim() == 2 and y.shape[1] > 1:
        for part, values in (("", y), ("test ", test_y)):
            odd = torch.nonzero(((values != 0) & (values != 1)).any(dim=1) | (values.sum(dim=1) != 1))
            for place in odd[:1].flatten().tolist():
                some = ", ".join(f"{value:g}" for value in values[place, :4].tolist())
                instead = ": give the word that follows the sample" if task.name == "next-token" else ""
                raise Refusal(
                    f"{where}: the task {task.name} takes one class a sample, and the {part}sample {place} has "
                    f"{values.shape[1]} labels ({some}{', …' if values.shape[1] > 4 else ''}){instead}."
                )
        return Labels(task, y.argmax(dim=1), test_y.argmax(dim=1), tuple(map(str, range(y.shape[1]))))
    flat = torch.cat([y.reshape(-1), test_y.reshape(-1)])
    if not flat.is_floating_point():
        return Labels(task, y.reshape(-1), test_y.reshape(-1), tuple(map(str, range(int(flat.max()) + 1))))
    different, codes = torch.unique(flat, return_inverse=True)
    require(len(different) >= 2, f"{where}: there is only one class, '{float(different[0]):g}'.")
    return Labels(task, codes[: len(y)], codes[len(y) :], tuple(f"{one:g}" for one in different.tolist()))
