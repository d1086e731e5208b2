"""The environment without skew."""

import numpy as np

from covey.arrays import IntArray
from covey.environment.client_parts import Slices
from covey.environment.partition import Deal, by_key, split_regardless_of_class
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
        sizes = np.full(clients, len(labels) // clients)
        sizes[: len(labels) % clients] += 1
        return Deal(Slices.cut(rng.permutation(len(labels)), sizes, ascending=True), shared=False)
    return _of_size(len(labels), clients, rng, samples)


@by_key("iid")
def iid_by_key(
    labels: IntArray, classes: int, clients: int, rng: np.random.Generator, *, samples: int | None = None
) -> Deal:
    """Draw each client's samples by its own key if they run out; else they are slices in any case."""
    if samples is None:
        return iid(labels, classes, clients, rng)
    return _of_size(len(labels), clients, rng, samples, keyed=True)


def _of_size(available: int, clients: int, rng: np.random.Generator, samples: int, *, keyed: bool = False) -> Deal:
    require(samples >= 1, f"environment.samples must be at least 1, not {samples}.")
    sizes = np.full(clients, samples, dtype=np.int64)
    return Deal(split_regardless_of_class(available, sizes, rng, keyed=keyed), samples * clients > available)
