"""Clients that come with the data."""

from pathlib import Path

import numpy as np

from covey.arrays import IntArray
from covey.data.dataset import Dataset, load_dataset
from covey.environment.partition import Deal
from covey.errors import Refusal, require
from covey.registries import environments


@environments.add("given")
def given(*asked: object) -> Deal:
    """Clients as they were passed in from Python with covey.run(federation=...)."""
    raise Refusal("The environment 'given' stands for a federation passed in from Python: covey.run(federation=...).")


@environments.add("natural")
def natural(groups: IntArray, clients: int) -> Deal:
    """Clients that come with the data (users, sites), for data sets that name them; disjoint."""
    count = int(groups.max()) + 1
    require(clients <= count, f"The data has {count} natural clients; {clients} were asked for.")
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(clients + 1))
    return Deal([order[bounds[client] : bounds[client + 1]] for client in range(clients)], shared=False)


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
