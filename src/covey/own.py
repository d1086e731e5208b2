"""The user's own data as a federation, from arrays in memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from covey.data.table import from_arrays
from covey.errors import Refusal, require
from covey.federations import Federation


def federation(
    x: Any,
    y: Any,
    parts: Sequence[Any] | Any,
    *,
    test: tuple[Any, Any] | float = 0.2,
    class_names: Sequence[str] | None = None,
    name: str = "own data",
    tokens: bool = False,
) -> Federation:
    """A federation of your own samples, to pass to `covey.run(federation=...)`.

    `x` are samples `[n, ...]` (uint8 images `[n, channels, height, width]`, or numbers), `y` labels `[n]`.
    `parts` says who holds what: the client of each sample `[n]` (numbers or names), or a list with each client's
    sample numbers (a sample may then belong to several clients). `test` is a pair of test samples and labels, or
    the share of each client's samples to hold out. With `tokens=True`, `x` are numbers of words `[n, length]`.
    """
    count = len(y)
    require(len(x) == count, f"{name}: {len(x)} samples but {count} labels.")
    require(count > 0, f"{name}: there are no samples.")
    held_out = test if isinstance(test, tuple) else None
    share = test if isinstance(test, float) else 0.2
    require(len(parts) > 0, "parts names no client.")
    if np.ndim(next(iter(parts))) == 0:
        require(
            len(parts) == count,
            f"parts must say the client of each of the {count} samples, or list each client's sample numbers; it says "
            f"the client of {len(parts)} samples.",
        )
        dataset = from_arrays(name, x, y, parts, test=share, held_out=held_out, class_names=class_names, tokens=tokens)
        assert dataset.groups is not None
        members = [torch.nonzero(dataset.groups == group).flatten() for group in range(len(dataset.group_names))]
        return Federation(dataset, members, shared=False, names=dataset.group_names)
    try:
        hands = [np.asarray(part, dtype=np.int64).reshape(-1) for part in parts]
    except (TypeError, ValueError):
        raise Refusal(
            f"parts must say the client of each of the {count} samples, or list each client's sample numbers; "
            f"it has {len(parts)} entries that are neither."
        ) from None
    for client, hand in enumerate(hands):
        require(len(hand) > 0, f"parts gives client {client} no sample.")
        inside = bool((hand >= 0).all() and (hand < count).all())
        require(inside, f"parts gives client {client} samples outside 0 to {count - 1}.")
    require(
        held_out is not None,
        "Where parts lists sample numbers, give test samples too: test=(test_x, test_y).",
    )
    dataset = from_arrays(name, x, y, None, held_out=held_out, class_names=class_names, tokens=tokens)
    used = np.concatenate(hands)
    return Federation(dataset, [torch.from_numpy(hand) for hand in hands], shared=len(np.unique(used)) < len(used))
