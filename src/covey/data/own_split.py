"""Training and test samples of a user's own data, and whose they are."""

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import IntArray
from covey.data.labels import numbered
from covey.errors import require
from covey.randomness import generator

SplitKind = Literal["within", "last", "by-client"]
"""Held out for testing: some of every client's samples, drawn at random; the last of them; or all samples of some
clients."""

UNSEEN = -1
"""In the place of a test sample's client: one that has no training samples."""


@dataclass(frozen=True, eq=False)
class OwnSplit:
    """Rows of the training and the test samples, and each one's client."""

    train: Tensor
    test: Tensor
    """Row numbers, int64, in order."""
    groups: Tensor | None
    """`[train]`: client of each training sample, 0 … m-1; None if none are named."""
    test_groups: Tensor | None
    """`[test]`: client of each test sample; UNSEEN for one without training samples."""
    names: tuple[str, ...]
    """Names of the clients that train."""
    notes: tuple[str, ...] = ()


def split_rows(
    clients: NDArray[Any] | None,
    count: int,
    share: float,
    where: str,
    *,
    how: SplitKind = "within",
    marked: NDArray[np.bool_] | None = None,
) -> OwnSplit:
    """Split `count` samples; `marked` are test samples, `clients` `[n]` names each sample's client, if any.

    Otherwise the share `share` is held out: of every client's samples but never all, or of the clients.
    """
    names, codes = ((), np.zeros(count, dtype=np.int64)) if clients is None else numbered(clients, where, "clients")
    codes = codes.astype(np.int64).reshape(-1)
    if marked is not None:
        held = marked
        require(bool(held.any()), f"{where}: there are no test samples.")
        require(not bool(held.all()), f"{where}: there are no training samples.")
    elif how == "by-client":
        held = _clients_held_out(codes, len(names), share, where)
    else:
        held = _held_out(codes, share, where, last=how == "last")
    train, test = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~held, held))
    if clients is None:
        return OwnSplit(train, test, None, None, ())
    training = np.unique(codes[~held])
    place = np.full(len(names), UNSEEN, dtype=np.int64)
    place[training] = np.arange(len(training))
    unseen = [names[code] for code in range(len(names)) if place[code] == UNSEEN]
    return OwnSplit(
        train,
        test,
        torch.from_numpy(place[codes[~held]]),
        torch.from_numpy(place[codes[held]]),
        tuple(names[code] for code in training),
        _about(unseen, place, codes[held]),
    )


def _about(unseen: list[str], place: IntArray, tested: IntArray) -> tuple[str, ...]:
    """Return what to say about clients without training samples, and about those without test samples."""
    notes = []
    if unseen:
        few = ", ".join(f"'{name}'" for name in unseen[:3]) + (", …" if len(unseen) > 3 else "")
        have = "client has" if len(unseen) == 1 else "clients have"
        notes.append(f"{len(unseen)} {have} test samples alone ({few}): not trained on, part of the shared test set.")
    without = int((place != UNSEEN).sum()) - len(np.unique(place[tested][place[tested] != UNSEEN]))
    if without and len(unseen) < len(np.unique(tested)):
        notes.append(f"{without} client{' has' if without == 1 else 's have'} no test samples of their own.")
    return tuple(notes)


def _held_out(groups: IntArray, share: float, name: str, *, last: bool) -> NDArray[np.bool_]:
    """Return the test samples, a mask `[n]`: the same share of every client, but never all of a client's."""
    require(0 < share < 1, f"dataset.test is the share held out for testing, in (0, 1), not {share:g}.")
    held = np.zeros(len(groups), dtype=bool)
    rng = generator("own data", "test split")
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(int(groups.max()) + 2))
    for begin, end in itertools.pairwise(bounds):
        own = order[begin:end]
        number = min(int(len(own) * share + 0.5), len(own) - 1)
        if last:
            held[own[len(own) - number :]] = True
        else:
            held[rng.permutation(own)[:number]] = True
    require(bool(held.any()), f"{name}: {share:g} of every client's samples is no sample at all; give test samples.")
    return held


def _clients_held_out(groups: IntArray, clients: int, share: float, name: str) -> NDArray[np.bool_]:
    """Return the test samples, a mask `[n]`: all samples of some clients, at least one and not all."""
    require(0 < share < 1, f"dataset.test is the share of clients held out, in (0, 1), not {share:g}.")
    require(
        clients >= 2,
        f"{name}: a split by client needs at least two clients, and there {'is 1' if clients else 'are none named'}.",
    )
    number = min(max(1, int(clients * share + 0.5)), clients - 1)
    chosen = generator("own data", "clients held out").permutation(clients)[:number]
    return np.isin(groups, chosen)
