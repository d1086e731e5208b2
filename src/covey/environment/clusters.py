"""FedDRL's cluster skew: one large group of clients with the same labels, the others spread over the rest."""

from typing import Literal

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.environment.client_parts import Slices
from covey.environment.partition import Deal, require_labels, split_by_class
from covey.errors import require
from covey.registries import environments

Groups = Literal["disjoint", "overlapping"]


@environments.add("clustered-equal")
def clustered_equal(
    y: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    /,
    *,
    delta: float = 0.6,
    labels: int = 2,
    groups: Groups = "disjoint",
    samples: int | None = None,
) -> Deal:
    """FedDRL's CE: a share `delta` of the clients holds the same labels, sizes equal; disjoint samples.

    The first δ·clients clients, as the environment orders them, are the main group and hold the first
    `labels` labels; the seed then numbers the clients. With disjoint
    groups (the authors' files for 10 clients) the others form equal groups, each with labels of its own:
    {2, 3}, {4, 5}, ...; the last group takes the remaining labels. With overlapping groups (the authors'
    files for 100 clients) each of the others holds labels drawn at random from those the main group does
    not hold. A client's samples are spread evenly over its labels; it holds `samples`, or as many as the
    scarcest label allows.
    """
    held = cluster_labels(classes, clients, delta, labels, groups, rng)
    return Deal(_split_by_size(y, held, np.ones(clients), samples, rng), shared=False)


@environments.add("clustered-unequal")
def clustered_unequal(
    y: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    /,
    *,
    delta: float = 0.6,
    labels: int = 2,
    groups: Groups = "disjoint",
    spread: float = 0.2,
    samples: int | None = None,
) -> Deal:
    """FedDRL's CN: groups as in clustered-equal, sizes differ by up to ±`spread`; disjoint samples.

    A client holds a uniform multiple in [1 - spread, 1 + spread] of `samples`, or of as many as the
    scarcest label allows (±20 % in the authors' Fashion-MNIST files).
    """
    require(0 <= spread < 1, f"environment.spread must be from 0 to below 1, not {spread:g}.")
    held = cluster_labels(classes, clients, delta, labels, groups, rng)
    return Deal(_split_by_size(y, held, rng.uniform(1 - spread, 1 + spread, clients), samples, rng), shared=False)


def cluster_labels(
    classes: int, clients: int, delta: float, labels: int, groups: Groups, rng: np.random.Generator
) -> IntArray:
    """Return which labels each client holds: 0 or 1, `[clients, classes]`; the main group comes first."""
    require_labels(labels, classes)
    require(0 < delta <= 1, f"environment.delta must be above 0 and at most 1, not {delta:g}.")
    main = max(1, int(delta * clients + 0.5))
    others, remaining = clients - main, classes - labels
    needed = 1 if groups == "disjoint" else labels
    require(
        others == 0 or remaining >= needed,
        f"The main group holds {labels} of {classes} classes, which leaves too few for the {others} other clients; "
        "lower environment.labels or set environment.delta=1.",
    )
    held = np.zeros((clients, classes), dtype=np.int64)
    held[:main, :labels] = 1
    if groups == "disjoint":
        starts = range(labels, classes, labels)
        for members, start in zip(np.array_split(np.arange(main, clients), len(starts) or 1), starts, strict=False):
            held[members, start : start + labels] = 1
    else:
        for client in range(main, clients):
            held[client, labels + rng.permutation(remaining)[:labels]] = 1
    return held


def _split_by_size(
    y: IntArray, held: IntArray, factors: FloatArray, samples: int | None, rng: np.random.Generator
) -> Slices:
    """Return disjoint samples for clients that hold the given labels and ⌊`samples` · factor⌋ samples each."""
    available = np.bincount(y, minlength=held.shape[1])
    most = _most_samples(held, factors, available)
    scarce = int(np.argmax(held.sum(axis=0) / np.maximum(available, 0.5)))
    bound = (
        f"class {scarce} has {available[scarce]} training samples for {held[:, scarce].sum()} clients that hold it, "
        "and clients do not share samples here"
    )
    size = most if samples is None else samples
    require(size <= most, f"environment.samples={size} is too many: {bound}; at most {most} fit.")
    counts = _counts(held, factors, size)
    # Every client must hold all of its labels: a sample of each.
    require(
        bool((counts[held > 0] >= 1).all()),
        (f"There are too few samples: {bound}; lower --clients, or change environment.delta or environment.labels.")
        if samples is None
        else f"environment.samples={size} does not give a client one sample of each of its labels; raise it.",
    )
    return split_by_class(counts, y, rng)


def _counts(held: IntArray, factors: FloatArray, samples: int) -> IntArray:
    """Return the samples per client and class if client k holds ⌊samples · factor_k⌋, spread evenly over its labels."""
    sizes = np.floor(samples * factors).astype(np.int64)[:, None]
    number = held.sum(axis=1, keepdims=True)
    # The first labels take the remainder: the r-th of L labels gets ⌈(size - r)/L⌉.
    rank = np.cumsum(held, axis=1) - 1
    counts: IntArray = held * (np.maximum(sizes - rank, 0) + number - 1) // number
    return counts


def _most_samples(held: IntArray, factors: FloatArray, available: IntArray) -> int:
    """Return the largest `samples` for which every label suffices; by bisection."""
    low, high = 0, int((available.sum() + len(factors)) / factors.sum()) + 2
    while high - low > 1:
        middle = (low + high) // 2
        if (_counts(held, factors, middle).sum(axis=0) <= available).all():
            low = middle
        else:
            high = middle
    return low
