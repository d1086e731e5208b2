"""Dirichlet environments."""

import numpy as np

from covey.environments.dealing import Deal, IntArray, dirichlet_shares, environments, fill_up
from covey.errors import require


@environments.add("dirichlet")
def dirichlet(
    labels: IntArray, classes: int, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, minimum: int = 1
) -> Deal:
    """Each class is split over clients by shares from a Dirichlet(α); disjoint, sizes differ.

    As in On-Demand FL: for every class p ~ Dir(α·1) over clients, and the class's samples are cut at
    the cumulative shares. Clients left with fewer than `minimum` samples take the missing ones from
    the largest clients, so that everyone can train at any α.
    """
    require(alpha > 0, f"environment.alpha must be above 0, not {alpha}.")
    require(minimum >= 1, f"environment.minimum must be at least 1, not {minimum}.")
    require(
        len(labels) >= clients * minimum,
        f"{len(labels)} training samples cannot give {minimum} to each of {clients} clients; "
        "lower --clients or environment.minimum.",
    )
    hands: list[list[IntArray]] = [[] for _ in range(clients)]
    for label in range(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(dirichlet_shares(alpha, clients, rng))[:-1] * len(members)).astype(np.int64)
        for client, hand in enumerate(np.split(members, cuts)):
            hands[client].append(hand)
    parts = [np.concatenate(hand) for hand in hands]
    return Deal([np.sort(part) for part in fill_up(parts, minimum, rng)], shared=False)
