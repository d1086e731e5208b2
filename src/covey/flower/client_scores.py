"""The mean of what clients report of the models that they use, as a Flower strategy returns it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.core.guard import bounded_shares
from covey.flower.plain_messages import PlainScores, averaged


def shares(counts: FloatArray, *, bounded: bool) -> FloatArray:
    """Return clients' weights in a mean by samples; bounded, none is more than twice that of the mean client."""
    return bounded_shares(counts) if bounded else counts / counts.sum()


def mean_scores(found: Mapping[int, PlainScores], *, bounded: bool) -> dict[str, Any]:
    """Return means over clients, weighted by their samples: loss, accuracy, and metrics by clients' own names.

    bounded: no client weighs more than twice the mean client, as nobody can check what it says.
    """
    rows = [found[client] for client in sorted(found)]
    counts = np.array([row.samples for row in rows], dtype=np.float64)
    weights = shares(counts, bounded=bounded)
    means: dict[str, Any] = averaged([row.metrics for row in rows], weights)
    for name in ("loss", "accuracy"):
        told = [getattr(row, name) for row in rows]
        if all(value is not None for value in told):
            mean = float(weights @ np.array(told))
            means |= {name: mean} if math.isfinite(mean) else {}
    return {**means, "clients": len(rows), "num-examples": int(counts.sum())}
