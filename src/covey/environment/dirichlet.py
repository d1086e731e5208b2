"""Dirichlet environments: On-Demand FL's split of classes, and FedACS's layers of β-Dirichlet clients."""

from dataclasses import replace

import numpy as np

from covey.arrays import IntArray
from covey.environment.keyed_parts import KeyedParts, KeyedShares
from covey.environment.partition import (
    ClassPools,
    Deal,
    allot,
    by_key,
    dirichlet_shares,
    fill_up,
    samples_per_client,
    split_by_class,
)
from covey.errors import require
from covey.registries import environments


@environments.add("dirichlet")
def dirichlet(
    labels: IntArray, classes: int, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, minimum: int = 1
) -> Deal:
    """Splits each class over clients by shares from a Dirichlet(α); disjoint, sizes differ.

    As in On-Demand FL: for every class p ~ Dir(α·1) over clients, and the class's samples are cut at
    the cumulative shares. Clients with fewer than `minimum` samples take the missing ones from the
    largest clients, so that every client can train at any α.
    """
    require(alpha > 0, f"environment.alpha must be above 0, not {alpha:g}.")
    require(minimum >= 1, f"environment.minimum must be at least 1, not {minimum}.")
    require(
        len(labels) >= clients * minimum,
        f"{len(labels)} training samples cannot give {minimum} to each of {clients} clients; "
        "lower --clients or environment.minimum.",
    )
    counts = np.empty((clients, classes), dtype=np.int64)
    for label, members in enumerate(np.bincount(labels, minlength=classes)):
        shares = dirichlet_shares(alpha, clients, rng)
        # A random phase: without it, at large α, every class would be rounded in favour of the same clients.
        cuts = np.minimum(np.cumsum(shares)[:-1] * members + rng.random(), members).astype(np.int64)
        counts[:, label] = np.diff(cuts, prepend=0, append=members)
    parts = fill_up(split_by_class(counts, labels, rng), minimum, rng)
    return Deal(replace(parts, ascending=True), shared=False)


@environments.add("dirichlet-layers")
def dirichlet_layers(
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    median: float = 0.2,
    maximum: float = 3.0,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """FedACS Definition 5: clients with a class mix from Dirichlet(β), half of them at low β; clients share samples.

    Clients 1, 3, 5, ... draw β from (0, `median`], clients 0, 2, 4, ... from (`median`, `maximum`]; the
    mix is one draw from Dirichlet(β·1) over the classes (Definition 2). Each client holds `samples`, or
    enough to use every training sample `reuse` times.
    """
    _require_layers(median, maximum)
    count = samples_per_client(labels, clients, samples, reuse)
    pools = ClassPools(labels, classes, rng)
    fractions = 1 - rng.random(clients)
    parts = []
    for client, fraction in enumerate(fractions):
        beta = median * fraction if client % 2 else median + (maximum - median) * fraction
        counts = allot(count, dirichlet_shares(float(beta), classes, rng))
        parts.append(np.concatenate([pools.take(label, int(own)) for label, own in enumerate(counts)]))
    return Deal(parts, shared=True)


@by_key("dirichlet-layers")
def dirichlet_layers_by_key(
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    median: float = 0.2,
    maximum: float = 3.0,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """Draw the class mixes in blocks of clients, and each client's samples by its own key."""
    _require_layers(median, maximum)
    count = samples_per_client(labels, clients, samples, reuse)

    def mixes(rng: np.random.Generator, places: IntArray) -> IntArray:
        fractions = 1 - rng.random(len(places))
        betas = np.where(places % 2 == 1, median * fractions, median + (maximum - median) * fractions)
        return np.stack([allot(count, dirichlet_shares(float(beta), classes, rng)) for beta in betas])

    mix_key, sample_key = (int(drawn) for drawn in rng.integers(2**63, size=2))
    counts = KeyedShares(mixes, clients, mix_key)
    sizes = np.full(clients, count, dtype=np.int64)
    return Deal(KeyedParts(labels, classes, sizes, counts, sample_key), shared=True)


def _require_layers(median: float, maximum: float) -> None:
    require(
        0 < median < maximum,
        "environment.median must be above 0 and below environment.maximum, "
        f"not {median:g} with a maximum of {maximum:g}.",
    )
