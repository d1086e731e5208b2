"""McMahan's shards, as FedDRL uses them (section 5.1): samples sorted by label, cut, and assigned at random."""

import numpy as np

from covey.arrays import IntArray
from covey.environment.client_parts import Slices
from covey.environment.partition import Deal
from covey.errors import require
from covey.registries import environments


@environments.add("shards-equal")
def shards_equal(labels: IntArray, classes: int, clients: int, rng: np.random.Generator, *, shards: int = 2) -> Deal:
    """McMahan's shards: samples sorted by label and cut into `shards` pieces per client; disjoint, equal sizes.

    All samples are assigned. Pieces differ by at most one sample where their number does not divide the data.
    """
    require(shards >= 1, f"environment.shards must be at least 1, not {shards}.")
    return Deal(_assign_shards(labels, np.full(clients, shards), rng), shared=False)


@environments.add("shards-unequal")
def shards_unequal(
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    shards: int = 10,
    spread: int = 4,
) -> Deal:
    """McMahan's shards, a random number of them per client (6 to 14 of 10 per client); disjoint, sizes differ.

    A client gets from `shards` - `spread` to `shards` + `spread` pieces, each number as likely as any
    other. All samples are assigned: clients are paired at random, and what one gets above the mean the
    other gets below it (with an odd number of clients, one gets the mean).
    """
    require(shards >= 1, f"environment.shards must be at least 1, not {shards}.")
    require(
        0 <= spread < shards,
        f"environment.spread must be from 0 to environment.shards - 1 = {shards - 1}, not {spread}.",
    )
    above = rng.integers(-spread, spread, size=clients // 2, endpoint=True)
    numbers = shards + rng.permutation(np.concatenate([above, -above, np.zeros(clients % 2, dtype=np.int64)]))
    return Deal(_assign_shards(labels, numbers, rng), shared=False)


def _assign_shards(labels: IntArray, numbers: IntArray, rng: np.random.Generator) -> Slices:
    """Assign `numbers` `[clients]` random shards to the clients, and return their samples."""
    total = int(numbers.sum())
    require(
        len(labels) >= total,
        f"{len(labels)} training samples cannot be cut into {total} shards; lower --clients or environment.shards.",
    )
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # Shards as np.array_split cuts them: the first ones are a sample larger.
    sizes = np.full(total, len(labels) // total)
    sizes[: len(labels) % total] += 1
    begin = np.cumsum(sizes) - sizes
    order = rng.permutation(total)
    taken = sizes[order]
    ends = np.cumsum(taken)
    within = np.arange(len(labels)) - np.repeat(ends - taken, taken)
    held = by_label[np.repeat(begin[order], taken) + within]
    bounds = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(numbers)])]
    return Slices(held, bounds, ascending=True)
