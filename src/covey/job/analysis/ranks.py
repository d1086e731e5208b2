"""Rank statistics that compare estimates of skew with the truth and between rounds.

SciPy's statistics are imported where they are used: that takes half a second, and most commands do without.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from covey.arrays import FloatArray, IntArray


def rank_correlation(one: FloatArray | IntArray, other: FloatArray | IntArray) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three values, or if all are equal."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    from scipy import stats

    return float(stats.spearmanr(one, other).statistic)


def mean_ranks(values: FloatArray) -> FloatArray:
    """Return ranks, 1 for the lowest; equal values share the mean of theirs."""
    from scipy import stats

    return stats.rankdata(values)


def places(values: FloatArray) -> IntArray:
    """Return ranks, 1 for the lowest; equal values share the lower rank."""
    from scipy import stats

    return stats.rankdata(values, method="min").astype(np.int64)


def agreement(clients: Sequence[IntArray], estimates: Sequence[FloatArray]) -> float | None:
    """Return the mean rank correlation of any two rounds, over the clients that answered in both."""
    found = []
    for (some, one), (others, other) in combinations(zip(clients, estimates, strict=True), 2):
        _, here, there = np.intersect1d(some, others, return_indices=True)
        found.append(rank_correlation(one[here], other[there]))
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None
