"""Answers of a run's model for new rows of a table."""

import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.data.columns import MissingRule
from covey.data.dataset import Dataset
from covey.data.new_rows import new_features
from covey.errors import require
from covey.job.model_export import InOwnUnits

_AT_ONCE = 4096


def new_samples(dataset: Dataset, file: Path, options: Mapping[str, Any]) -> Tensor:
    """Return new rows of the table that a data set was read from as samples `[n, features]`; say what is odd."""
    require(
        len(dataset.columns) > 0,
        f"The data set '{dataset.name}' is no table: new rows are read for the data sets csv and parquet.",
    )
    missing: MissingRule = "refuse" if options.get("missing") == "refuse" else "median"
    features, notes = new_features(file, dataset.columns, missing)
    if notes:
        warnings.warn(f"{file}: {' '.join(notes)}", stacklevel=3)
    return torch.from_numpy(features)


def labels_in(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the label that a table's options name."""
    return tuple(name.strip() for name in str(options.get("label", "")).split(",") if name.strip())


def answers_for(
    module: nn.Module, dataset: Dataset, samples: Tensor, labels: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Return a model's answers for samples as they are stored: name of the answer → a value for each sample.

    Classes: the one that is most probable, and the probability of each. Several labels: the probability of each.
    Regression: each target in its own unit. Tasks of somebody's own: the model's outputs. `labels` names several
    labels or targets.
    """
    program, task = InOwnUnits(module, dataset).eval(), dataset.learns
    with torch.no_grad():
        output = torch.cat([program(piece).float() for piece in torch.split(samples, _AT_ONCE)])
    output = output.reshape(len(samples), -1)
    if task.has_classes and task.name != "custom":
        shares = output.softmax(dim=1)
        named = {"prediction": [dataset.class_names[place] for place in output.argmax(dim=1).tolist()]}
        return {**named, **_each("probability of ", dataset.class_names, shares)}
    kind = "label" if task.name == "multilabel" else "target"
    numbered = [f"{kind} {number}" for number in range(output.shape[1])]
    names = labels if len(labels) == output.shape[1] else numbered
    if task.name == "multilabel":
        return _each("probability of ", names, output.sigmoid())
    if output.shape[1] == 1:
        return {"prediction": output[:, 0].tolist()}
    return _each("prediction of ", names, output)


def answers_csv(answers: Mapping[str, Sequence[Any]]) -> str:
    """Return answers as CSV, a line for each row, which are numbered from 0."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", *answers])
    for row, values in enumerate(zip(*answers.values(), strict=True)):
        table.writerow([row, *(f"{value:.6g}" if isinstance(value, float) else value for value in values)])
    return text.getvalue()


def _each(prefix: str, names: Any, values: Tensor) -> dict[str, list[Any]]:
    return {f"{prefix}{name}": values[:, place].tolist() for place, name in enumerate(names)}
