"""FedDRL's Pareto partition (PA)."""

import numpy as np

from covey.arrays import IntArray
from covey.environment.partition import Deal, allot, normalised_powers, require_labels, split_by_class
from covey.errors import require
from covey.registries import environments


@environments.add("pareto")
def pareto(
    y: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    /,
    *,
    labels: int = 2,
    shape: float = 1.0,
) -> Deal:
    """FedDRL's PA: `labels` random labels per client, sizes by a power law; disjoint.

    Every client draws a weight from a Pareto law of tail index `shape` (the smaller, the more unequal), and
    all samples of each label go to its holders in proportion, at least one to each. The labels of the
    next client are those held least so far, ties broken at random. The paper does not give the index; at
    1 the largest of 100 clients with MNIST holds about 7,000 samples, in the authors' files 6,432.
    """
    require_labels(labels, classes)
    require(shape > 0, f"environment.shape must be above 0, not {shape:g}.")
    log_weights = -np.log(1 - rng.random(clients))
    held = np.zeros((clients, classes), dtype=bool)
    holders_so_far = np.zeros(classes, dtype=np.int64)
    for client in range(clients):
        own = np.lexsort((rng.random(classes), holders_so_far))[:labels]
        held[client, own] = True
        holders_so_far[own] += 1
    counts = np.zeros((clients, classes), dtype=np.int64)
    for label, available in enumerate(np.bincount(y, minlength=classes)):
        holders = np.flatnonzero(held[:, label])
        require(
            len(holders) <= available,
            f"Class {label} has {available} training samples for {len(holders)} clients that hold it; "
            "lower --clients or environment.labels.",
        )
        if len(holders):
            shares = normalised_powers(log_weights[holders], 1 / shape)
            counts[holders, label] = 1 + allot(int(available) - len(holders), shares)
    return Deal(split_by_class(counts, y, rng), shared=False)
