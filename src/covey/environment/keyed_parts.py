"""Parts of clients that share samples, drawn for each client apart: nothing is dealt in turn, so nothing is kept.

A client's samples depend on the seed and its place alone. Within a client they are as those that are dealt from pools:
different ones, unless it takes more of a class than there are; then all of them, as often as they fit, and different
ones for the rest. Over clients they are independent, where pools see to it that all samples are used equally often.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey import randomness
from covey.arrays import IntArray
from covey.environment.client_parts import Parts, blocks_of
from covey.errors import require

Counts = Callable[[IntArray], IntArray]
"""Places of clients `[k]` → how many samples each takes of every class, `[k, classes]`."""


class KeyedParts(Parts):
    """Samples drawn by class: `counts` says how many of each class, the key which ones."""

    keyed = True

    def __init__(self, labels: IntArray, classes: int, sizes: IntArray, counts: Counts, key: int) -> None:
        self.counts = counts
        self._sizes = sizes
        self._key = key
        self._members: IntArray = np.argsort(labels, kind="stable")
        self._available: IntArray = np.bincount(labels, minlength=classes)
        self._begin: IntArray = np.cumsum(self._available) - self._available
        if not self._available.all():
            for clients in blocks_of(sizes):
                require_available(self._available, counts(clients).sum(axis=0))

    @property
    def sizes(self) -> IntArray:
        return self._sizes

    def of(self, client: int) -> IntArray:
        return self.together(np.array([client]))

    def together(self, clients: IntArray) -> IntArray:
        counts = self.counts(clients)
        rows, labels = np.nonzero(counts)
        keys = randomness.keys(self._key, clients[rows], "samples", labels)
        drawn = draws(keys, self._available[labels], counts[rows, labels])
        found: IntArray = self._members[drawn + np.repeat(self._begin[labels], counts[rows, labels])]
        return found

    def class_counts(self, clients: IntArray, labels: IntArray, classes: int) -> IntArray:
        return self.counts(clients)


class KeyedPool(Parts):
    """Samples drawn regardless of class, `sizes` `[clients]` of them, ascending."""

    keyed = True

    def __init__(self, available: int, sizes: IntArray, key: int) -> None:
        self._available = available
        self._sizes = sizes
        self._key = key

    @property
    def sizes(self) -> IntArray:
        return self._sizes

    def of(self, client: int) -> IntArray:
        return self.together(np.array([client]))

    def together(self, clients: IntArray) -> IntArray:
        sizes = self._sizes[clients]
        keys = randomness.keys(self._key, clients, "samples")
        drawn = draws(keys, np.full(len(clients), self._available), sizes)
        owners = np.repeat(np.arange(len(clients)), sizes)
        # One sort of whole numbers puts each client's samples in order.
        found: IntArray = np.sort(owners * self._available + drawn) - owners * self._available
        return found


@dataclass(frozen=True, eq=False)
class KeyedShares:
    """Counts of clients whose class mix is drawn, a block of clients under one key: `draw(rng, places)` has a row each.

    A block is drawn whenever one of its clients is asked for, so that nothing is kept.
    """

    draw: Callable[[np.random.Generator, IntArray], IntArray]
    clients: int
    key: int

    BLOCK = 256

    def __call__(self, places: IntArray) -> IntArray:
        blocks, which = np.unique(places // self.BLOCK, return_inverse=True)
        rows = []
        for block in blocks.tolist():
            here = np.arange(block * self.BLOCK, min((block + 1) * self.BLOCK, self.clients))
            rows.append(self.draw(randomness.generator(self.key, block, "class mixes"), here))
        begin = np.cumsum([0, *(len(row) for row in rows[:-1])])
        found: IntArray = np.concatenate(rows)[begin[which] + places % self.BLOCK]
        return found


def draws(keys: NDArray[np.uint64], available: IntArray, wanted: IntArray) -> IntArray:
    """Return, row after row, `wanted` numbers below `available`, drawn uniformly without replacement by the row's key.

    A row that wants more than there are has all of them, as often as they fit, and then different ones. No row
    depends on the others.
    """
    require_available(available, wanted)
    whole, rest = np.divmod(wanted, np.maximum(available, 1))
    found: IntArray = np.empty(int(wanted.sum()), dtype=np.int64)
    begin = np.cumsum(wanted) - wanted
    if whole.any():
        repeated = whole * available
        found[_places(begin, repeated)] = _counters(repeated) % np.repeat(np.maximum(available, 1), repeated)
        begin = begin + repeated
    dense = np.flatnonzero(2 * rest > available)
    sparse = np.flatnonzero((rest > 0) & (2 * rest <= available))
    found[_places(begin[dense], rest[dense])] = _first_of_orders(keys[dense], available[dense], rest[dense])
    tries = rest[sparse] + rest[sparse] // 2 + 4
    while len(sparse):
        values, enough = _first_different(keys[sparse], available[sparse], rest[sparse], tries)
        done, short = sparse[enough], ~enough
        found[_places(begin[done], rest[done])] = values
        sparse, tries = sparse[short], 2 * tries[short]
    return found


def require_available(available: IntArray, wanted: IntArray) -> None:
    """Refuse to take samples of which there are none."""
    require(
        not bool(((available == 0) & (wanted > 0)).any()),
        "A class has no training sample; choose a data set with samples of every class, or an environment such as "
        "dirichlet or iid.",
    )


def _first_of_orders(keys: NDArray[np.uint64], available: IntArray, wanted: IntArray) -> IntArray:
    """Return the first `wanted` numbers of a random order of all below `available`, row after row."""
    row = np.repeat(np.arange(len(keys)), available)
    number = _counters(available)
    order = np.lexsort((randomness.words(keys[row], number), row))
    taken: IntArray = number[order][number < wanted[row]]
    return taken


def _first_different(
    keys: NDArray[np.uint64], available: IntArray, wanted: IntArray, tries: IntArray
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Draw `tries` numbers a row; return the first `wanted` different ones, and which rows `[rows]` have so many.

    To skip repeated numbers in a sequence of independent ones is to draw without replacement. As the first numbers of
    a key stay the same, the result does not depend on the number of tries.
    """
    row = np.repeat(np.arange(len(keys)), tries)
    words = randomness.words(keys[row], _counters(tries))
    value = (((words >> np.uint64(33)) * available[row].astype(np.uint64)) >> np.uint64(31)).astype(np.int64)
    place = row * int(available.max(initial=1)) + value
    order = np.argsort(place, kind="stable")
    sorted_places = place[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = sorted_places[1:] != sorted_places[:-1]
    new = np.zeros(len(order), dtype=bool)
    new[order[first]] = True
    so_far = np.cumsum(new)
    begin = np.cumsum(tries) - tries
    before = np.where(begin > 0, so_far[begin - 1], 0)
    ends = so_far[begin + tries - 1] - before
    enough = ends >= wanted
    taken = new & (so_far - before[row] <= wanted[row]) & enough[row]
    return value[taken], enough


def _counters(counts: IntArray) -> IntArray:
    """Return 0 … n-1 for each n, one after another."""
    ends = np.cumsum(counts)
    counters: IntArray = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return counters


def _places(begin: IntArray, counts: IntArray) -> IntArray:
    """Return begin, begin + 1, … of each row, one row after another."""
    places: IntArray = np.repeat(begin, counts) + _counters(counts)
    return places
