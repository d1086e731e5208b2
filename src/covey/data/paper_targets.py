"""On-Demand FL's target distributions, as class mixes and as test sets. For evaluation only.

TD1, TD2 and TD3 are uniform on the first 30, 40 and 50 % of the classes; a Local target is the class mix
of one client.
"""

import re

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.errors import Refusal, require

PREFIXES = {"td1": 0.3, "td2": 0.4, "td3": 0.5}
"""Share of the classes that each of the paper's prefix targets covers."""


def prefix_target(classes: int, share: float) -> FloatArray:
    """Return the mix `[classes]` that is uniform on the first `share` of the classes, at least on one."""
    require(0 < share <= 1, f"A target covers a share of the classes above 0 and at most 1, not {share:g}.")
    covered = max(1, int(share * classes + 0.5))
    mix = np.zeros(classes)
    mix[:covered] = 1 / covered
    return mix


def local_target(shares: FloatArray) -> FloatArray:
    """Scale class shares or counts, `[classes]` or `[clients, classes]`, to mixes that sum to one."""
    shares = np.asarray(shares, dtype=np.float64)
    total = shares.sum(axis=-1, keepdims=True)
    require(bool((shares >= 0).all() and (total > 0).all()), "Class shares must not be negative, nor all zero.")
    mixes: FloatArray = shares / total
    return mixes


def target(name: str, classes: int, shares: FloatArray | None = None) -> FloatArray:
    """Return the mix `[classes]` named `td1`, `td2` or `td3`; `local:7` is row 7 of `shares` `[clients, classes]`."""
    if name.lower() in PREFIXES:
        return prefix_target(classes, PREFIXES[name.lower()])
    local = re.fullmatch(r"local:(\d+)", name.lower())
    clients = 0 if shares is None else len(shares)
    if local is not None and shares is None:
        raise Refusal(
            f"There is no target '{name}' here: what clients hold is known to themselves alone. Have the client state "
            "its mix, as shares or as a file of labels."
        )
    if local is None or shares is None:
        raise Refusal(
            f"There is no target '{name}'. Known targets: {', '.join(PREFIXES)}"
            + (", and local:0 for the class mix of client 0." if clients else ".")
        )
    client = int(local[1])
    require(client < clients, f"The target '{name}' names client {client}, but clients run from 0 to {clients - 1}.")
    return local_target(shares[client])


def test_indices(mix: FloatArray, test_labels: IntArray) -> IntArray:
    """Return the test samples on which a model for `mix` `[classes]` is evaluated, ascending.

    A mix that is uniform on some classes (TD1-3) takes all samples of these. Any other (Local) takes the first
    round(mix_c · samples/classes) samples of class c, or all of them if there are fewer; if all numbers round to zero,
    it takes one sample of the most common class.
    """
    mix = local_target(mix)
    testable = np.where(np.bincount(test_labels, minlength=len(mix)) > 0, mix, 0.0)
    require(bool(testable.any()), "The test set has no sample of the target's classes; choose another target.")
    positive = mix[mix > 0]
    if np.allclose(positive, positive[0]):
        return np.flatnonzero(mix[test_labels] > 0)
    counts = np.rint(mix * len(test_labels) / len(mix)).astype(np.int64)
    if not counts[testable > 0].any():
        counts[np.argmax(testable)] = 1
    chosen = [np.flatnonzero(test_labels == label)[:count] for label, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))
