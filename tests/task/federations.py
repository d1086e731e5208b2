"""Small federations of real data for the tests of tasks."""

from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_linnerud

import covey

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "cohort": 3,
    "workers": 1,
    "local": {"epochs": 1, "batch": 16, "rate": 0.05},
    "model": {"name": "mlp", "hidden": (8,)},
}


def diabetes() -> tuple[Any, Any]:
    """Ten measurements and the progression of the disease, of 442 patients."""
    x, y = load_diabetes(return_X_y=True)
    return x, y


def conditions() -> tuple[Any, Any]:
    """The same patients' measurements, and which of three values of theirs are above the median: several labels."""
    x, _ = load_diabetes(return_X_y=True)
    above = (x > np.median(x, axis=0)).astype(np.int64)
    return np.delete(x, (2, 3, 8), axis=1), above[:, (2, 3, 8)]


@cache
def regression(clients: int = 6) -> covey.Federation:
    x, y = diabetes()
    return covey.federation(x, y, np.arange(len(x)) % clients, name="diabetes")


@cache
def multilabel(clients: int = 6) -> covey.Federation:
    x, y = conditions()
    return covey.federation(x, y, np.arange(len(x)) % clients, name="conditions")


@cache
def exercise() -> covey.Federation:
    """Three targets a sample: weight, waist and pulse of twenty men."""
    x, y = load_linnerud(return_X_y=True)
    return covey.federation(x, y, np.arange(len(x)) % 2, name="linnerud")


FEDERATIONS = {"regression": regression, "multilabel": multilabel}


def squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss of one's own: that of regression, in the unit of the labels."""
    return (output - y).square().mean(dim=-1)


def branching(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss that many clients at once cannot compute."""
    return (output - y).square().mean(dim=-1) if output.sum() > 0 else output.square().mean(dim=-1)


def averaged(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss that is a mean already."""
    return (output - y).square().mean()


def median_error(output: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    errors = (output - y).abs()
    return {"median_error": float(errors.median()), "largest_error": float(errors.max())}
