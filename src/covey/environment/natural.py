"""Clients that come with the data."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from covey.arrays import IntArray
from covey.data.dataset import Dataset, load_dataset
from covey.environment.client_parts import Slices
from covey.environment.partition import Deal
from covey.errors import Refusal, require
from covey.registries import environments


@environments.add("given")
def given(*asked: object) -> Deal:
    """Clients as they were passed in from Python with covey.run(federation=...)."""
    raise Refusal("The environment 'given' stands for a federation passed in from Python: covey.run(federation=...).")


@environments.add("natural", earlier={"tests": "shared"})
def natural(groups: IntArray, clients: int, *, tests: Literal["own", "shared"] = "own") -> Deal:
    """Clients that come with the data (users, sites), for data sets that name them; disjoint.

    `tests=own` gives clients the test samples that the data says are theirs; with `shared` nobody owns any.
    """
    count = int(groups.max()) + 1
    require(clients <= count, f"The data has {count} natural clients; {clients} were asked for.")
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(clients + 1))
    return Deal(Slices(order, bounds), shared=False)


def natural_clients(dataset: Dataset) -> int:
    """Return the number of clients that the data set names."""
    require(
        dataset.groups is not None,
        f"The dataset '{dataset.name}' does not say which client a sample belongs to, so the environment "
        f"'natural' cannot split it; choose another environment, or name the clients: a CSV file in a column "
        "(dataset.client=COLUMN), an NPZ file in an array 'client', a Dataset in groups.",
    )
    assert dataset.groups is not None
    return int(dataset.groups.max()) + 1


def count_clients(dataset: str, data_dir: str | None, options: dict[str, object]) -> int:
    """Load a data set and return the number of clients that it names."""
    return natural_clients(load_dataset(dataset, Path(data_dir) if data_dir else None, options))


def groups_of(dataset: Dataset) -> list[torch.Tensor]:
    """Return the training samples of each client that a data set names, in order."""
    assert dataset.groups is not None
    return _members(dataset.groups, len(dataset.group_names))


def own_tests(dataset: Dataset) -> list[torch.Tensor] | None:
    """Return the test samples of each client that a data set names, in order; None if no client has any."""
    if dataset.test_groups is None or not bool((dataset.test_groups >= 0).any()):
        return None
    return _members(dataset.test_groups, len(dataset.group_names))


def _members(groups: torch.Tensor, clients: int) -> list[torch.Tensor]:
    """Return the samples of each client; samples of none are numbered below 0."""
    known = torch.nonzero(groups >= 0).flatten()
    order = known[torch.argsort(groups[known], stable=True)]
    return list(torch.split(order, torch.bincount(groups[known], minlength=clients).tolist()))
