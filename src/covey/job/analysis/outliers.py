"""Outliers: clients whose insight is far from what their class mix explains."""

import numpy as np
from torch import Tensor

from covey.arrays import FloatArray, IntArray

STANDS_OUT = 3.5
"""Outliers are this many median absolute deviations (scaled to a normal law's σ) above the median."""

CLEAR = 2 * STANDS_OUT
"""Outliers below this may stand out by chance."""

_BY_CHANCE = {75: 10, 150: 7, 250: 5, 400: 4, 700: 3}
"""Largest number of clients → in one of so many analyses of clients that are alike, some client is an outlier.

Simulated, with the lengths of normal vectors of 10 dimensions as the clients' values.
"""

_COLUMNS = 1 << 18
_REWEIGHTINGS = 10
_RIDGE = 1e-3


def deviations_above(values: FloatArray) -> FloatArray:
    """Return the distance of values `[clients]` above their median, in median absolute deviations scaled to σ."""
    middle = np.median(values)
    spread = 1.4826 * np.median(np.abs(values - middle))
    units: FloatArray = (values - middle) / max(spread, 1e-9 * abs(middle), np.finfo(np.float64).tiny)
    return units


def chance_of_any(clients: int) -> int:
    """Return in one of how many analyses of so many clients that are alike there is an outlier, roughly."""
    return next((often for most, often in _BY_CHANCE.items() if clients <= most), 2)


def unexplained(insights: Tensor, bias: FloatArray, samples: IntArray) -> FloatArray:
    """Return the part of each client's insight that its class mix does not explain: √M_i·‖residual‖ `[clients]`.

    At an untrained model the softmax π hardly differs between samples. With class shares s and mean features μ_c of
    class c, the last layer's gradient is ∇b = π - s and ∇W_c = π_c·Σ_k s_k μ_k - s_c μ_c: clients whose classes look
    alike have a ∇W that is linear in ∇b. So the insights `[clients, h]` are regressed on the biases
    `[clients, classes]`. A large residual belongs to a client whose μ_c differ, because its labels are flipped or its
    inputs altered. So that such clients do not bend the fit towards themselves, they are reweighted repeatedly by the
    inverse square of how far their residual exceeds the median; a small ridge term keeps the fit stable.

    A client whose class mix is unlike any other is fitted exactly, so it is never an outlier. Where there are only a
    few kinds of class mixes (the clustered environments), flipped labels make such a mix and mostly go unnoticed.
    """
    values = _coordinates(insights)
    sizes = samples.astype(np.float64)
    trust = np.ones(len(sizes))
    residual = np.zeros(len(sizes))
    for _ in range(_REWEIGHTINGS):
        weights = sizes * trust / (sizes * trust).sum()
        mix = bias - weights @ bias
        rest = values - weights @ values
        inner = (weights[:, None] * mix).T @ mix
        ridge = _RIDGE * np.linalg.norm(inner, 2) * np.eye(len(inner))
        slopes = np.linalg.pinv(inner + ridge, hermitian=True) @ ((weights[:, None] * mix).T @ rest)
        residual = np.sqrt(sizes) * np.linalg.norm(rest - mix @ slopes, axis=1)
        usual = np.median(residual)
        if usual == 0:
            break
        trust = np.minimum(1.0, usual / np.maximum(residual, usual)) ** 2
    return residual


def _coordinates(insights: Tensor) -> FloatArray:
    """Return centred insights `[k, h]` in at most k coordinates each, with the same distances."""
    if insights.shape[1] <= len(insights):
        values = insights.double().numpy()
        centred: FloatArray = values - values.mean(axis=0)
        return centred
    products = np.zeros((len(insights), len(insights)))
    for start in range(0, insights.shape[1], _COLUMNS):
        piece = insights[:, start : start + _COLUMNS].double().numpy()
        piece = piece - piece.mean(axis=0)
        products += piece @ piece.T
    lengths, axes = np.linalg.eigh(products)
    coordinates: FloatArray = axes * np.sqrt(np.maximum(lengths, 0.0))
    return coordinates
