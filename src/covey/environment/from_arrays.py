"""A federation of the user's own data, from arrays in memory."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.data.table import from_arrays
from covey.environment.federated_data import Federation
from covey.errors import require


def federation(
    x: Any,
    y: Any,
    parts: Mapping[Any, Any] | Sequence[Any] | Any,
    *,
    test: tuple[Any, Any] | float = 0.2,
    class_names: Sequence[str] | None = None,
    name: str = "own data",
    tokens: bool = False,
) -> Federation:
    """Return a federation of your own samples, to pass to `covey.run(federation=...)`.

    `x` are samples `[n, ...]` (uint8 images `[n, channels, height, width]`, or numbers), `y` labels `[n]`.
    `parts` says how they are split: the client of each sample `[n]` (numbers or names), a list with each client's
    sample numbers, or a mapping from clients' names to them (a sample may then belong to several clients). `test` is
    a pair of test samples and labels, or the share of each client's samples to hold out. With `tokens=True`, `x` are
    the numbers of words `[n, length]`.
    """
    for argument, given in (("x", x), ("y", y), ("parts", parts)):
        require(hasattr(given, "__len__"), f"{name}: {argument} must be an array or a list, not {given!r:.60}.")
    count = len(y)
    require(len(x) == count, f"{name}: {len(x)} samples but {count} labels.")
    require(count > 0, f"{name}: there are no samples.")
    held_out, share = _test(test)
    require(len(parts) > 0, "parts names no client.")
    names: tuple[str, ...] = ()
    if isinstance(parts, Mapping):
        names, parts = tuple(map(str, parts)), list(parts.values())
    elif _is_client(next(iter(parts))):
        require(
            len(parts) == count,
            f"parts must say the client of each of the {count} samples, or list each client's sample numbers; it says "
            f"the client of {len(parts)} samples.",
        )
        dataset = from_arrays(name, x, y, parts, test=share, held_out=held_out, class_names=class_names, tokens=tokens)
        assert dataset.groups is not None
        groups = [torch.nonzero(dataset.groups == group).flatten() for group in range(len(dataset.group_names))]
        return Federation(dataset, groups, shared=False, names=dataset.group_names)
    members = [_sample_numbers(part, names[client] if names else client, count) for client, part in enumerate(parts)]
    require(
        held_out is not None,
        "Where parts lists sample numbers, give test samples too: test=(test_x, test_y).",
    )
    dataset = from_arrays(name, x, y, None, held_out=held_out, class_names=class_names, tokens=tokens)
    used = np.concatenate(members)
    shared = len(np.unique(used)) < len(used)
    return Federation(dataset, [torch.from_numpy(part) for part in members], shared=shared, names=names)


def _test(test: Any) -> tuple[tuple[Any, Any] | None, float]:
    """Return the test samples and labels if they are given, and the share to hold out if not."""
    if isinstance(test, tuple | list) and len(test) == 2:
        return (test[0], test[1]), 0.0
    share = isinstance(test, Real) and not isinstance(test, bool)
    require(share, f"test must be a share to hold out, or a pair (test_x, test_y), not {type(test).__name__}.")
    return None, float(test)


def _is_client(entry: Any) -> bool:
    """True if an entry of `parts` is a client's number or name, False if it is a client's sample numbers."""
    return isinstance(entry, str) or not hasattr(entry, "__len__") or (isinstance(entry, Tensor) and entry.ndim == 0)


def _sample_numbers(part: Any, client: int | str, count: int) -> IntArray:
    """Return a client's sample numbers `[n]`, checked."""
    try:
        given = np.asarray(part).reshape(-1)
    except (TypeError, ValueError):
        given = np.array([None])
    whole = len(given) == 0 or np.issubdtype(given.dtype, np.integer)
    require(whole, f"parts must list whole sample numbers; to client {client} it gives {part!r:.60}.")
    require(len(given) > 0, f"parts gives client {client} no sample.")
    inside = bool((given >= 0).all() and (given < count).all())
    require(inside, f"parts gives client {client} samples outside 0 to {count - 1}.")
    return given.astype(np.int64)
