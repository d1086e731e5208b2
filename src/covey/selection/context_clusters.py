"""k-means clusters of clients' contexts (NCCB, Algorithm 1, line 2)."""

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.probe.simhash import Packed, unpacked

_GROUPED = 50_000
"""Most clients whose contexts the clusters are computed from; the others join the nearest cluster."""

_EXACT = 2_000
"""Up to this many different contexts, k-means uses all of them in every step."""


def distinct_contexts(rng: np.random.Generator, contexts: Packed) -> tuple[FloatArray, IntArray]:
    """Return the different contexts `[n, bits]` of clients, or of a sample of them, and how often each occurs `[n]`."""
    if len(contexts) > _GROUPED:
        contexts = rng.choice(contexts, size=_GROUPED, replace=False)
    different, counts = np.unique(contexts, axis=0, return_counts=True)
    return unpacked(different).astype(np.float64), counts


def cluster_centres(contexts: FloatArray, counts: IntArray, number: int, seed: int) -> FloatArray:
    """Return the centres `[number, bits]` of k-means on different contexts `[n, bits]` that occur `counts` times."""
    if number == len(contexts):
        return contexts
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(contexts) <= _EXACT:
        means = KMeans(number, n_init=10, random_state=seed)
    else:
        means = MiniBatchKMeans(number, n_init=3, batch_size=4096, random_state=seed)
    # One thread sums in one order, so that the same seed gives the same clusters.
    with threadpool_limits(1):
        means.fit(contexts, sample_weight=counts)
    centres: FloatArray = means.cluster_centers_.astype(np.float64)
    return centres


def nearest_centre(contexts: FloatArray, centres: FloatArray) -> IntArray:
    """Return the position of each context's nearest centre, the first of equals: `[n]`."""
    distances = np.square(centres).sum(axis=1) - 2 * contexts @ centres.T
    closest: IntArray = np.round(distances, 9).argmin(axis=1)
    return closest
