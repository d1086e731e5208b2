"""The environment without skew."""

import numpy as np

from covey.arrays import IntArray
from covey.environment.partition import Deal, split_regardless_of_class
from covey.errors import require
from covey.registries import environments


@environments.add("iid")
def iid(labels: IntArray, classes: int, clients: int, rng: np.random.Generator, *, samples: int | None = None) -> Deal:
    """Every client draws from the same mix; disjoint, equal sizes (or `samples` each, shared if they run out)."""
    if samples is None:
        require(
            len(labels) >= clients,
            f"{len(labels)} training samples cannot give one to each of {clients} clients; lower --clients.",
        )
        return Deal([np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)], shared=False)
    require(samples >= 1, f"environment.samples must be at least 1, not {samples}.")
    return Deal(split_regardless_of_class(len(labels), [samples] * clients, rng), samples * clients > len(labels))
