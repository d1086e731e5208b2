"""Cohorts whose joint class mix is near a target: greedy choice, and sampling in proportion to balance.

A client is a row of samples per class `[classes]`; a cohort's mix is the sum of its rows over its number of samples.
"""

from collections.abc import Sequence

import numpy as np

from covey.arrays import FloatArray

_SMALLEST = 1e-6
"""Imbalances below this count as this one: a perfect cohort has none, and chances are in proportion to its inverse."""


def imbalance(counts: FloatArray, target: FloatArray) -> FloatArray:
    """Return Σ_b (share_b - target_b)² of samples per class `[..., classes]`: `[...]`.

    With a uniform target it is the quadratic class-imbalance degree, QCID (Zhang et al. 2023, equation 1).
    """
    totals = counts.sum(axis=-1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    degree: FloatArray = np.square(shares - target).sum(axis=-1)
    return degree


def greedy_cohort(
    counts: FloatArray,
    size: int,
    target: FloatArray,
    first: Sequence[int] = (),
    uses: FloatArray | None = None,
    tolerance: float = 0.0,
) -> list[int]:
    """Return positions in `counts` `[k, classes]`: the `first` ones, then each time the one that comes nearest.

    The next client is the one with which the cohort's mix has the least imbalance; of those within `tolerance` of it,
    the one with the least `uses` `[k]`, and of equals the first.
    """
    chosen, left = list(first), np.ones(len(counts), dtype=np.bool_)
    left[chosen] = False
    total = counts[chosen].sum(axis=0)
    uses = np.zeros(len(counts)) if uses is None else uses
    while len(chosen) < min(size, len(counts)):
        degrees = np.where(left, imbalance(total + counts, target), np.inf)
        near = np.flatnonzero(degrees <= degrees.min() + tolerance)
        best = int(near[np.argmin(uses[near])])
        chosen.append(best)
        left[best] = False
        total = total + counts[best]
    return chosen


def sampled_cohort(
    rng: np.random.Generator,
    counts: FloatArray,
    size: int,
    target: FloatArray,
    first: Sequence[int] = (),
    bonus: FloatArray | None = None,
) -> list[int]:
    """Return positions in `counts` `[k, classes]`, drawn one after another in proportion to balance.

    The m-th client is drawn with P(c) ∝ 1/QCID(cohort with c)^β_m, β_m = m (Zhang et al. 2023, equations 4 and 5); the
    chance of the first has the `bonus` `[k]` added. The `first` positions are given.
    """
    chosen, left = list(first), np.ones(len(counts), dtype=np.bool_)
    left[chosen] = False
    total = counts[chosen].sum(axis=0)
    while len(chosen) < min(size, len(counts)):
        places = np.flatnonzero(left)
        degrees = np.maximum(imbalance(total + counts[places], target), _SMALLEST)
        power = len(chosen) + 1
        if bonus is not None and not chosen:
            chances = 1 / degrees + bonus[places]
        else:
            # Relative to the least, so that no power overflows.
            chances = (degrees.min() / degrees) ** power
        drawn = int(places[rng.choice(len(places), p=chances / chances.sum())])
        chosen.append(drawn)
        left[drawn] = False
        total = total + counts[drawn]
    return chosen
