"""The truth about clients: their class shares and their skew. Only evaluation may know them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.environment.client_parts import blocks_of

ClassCounts = Callable[[IntArray], IntArray]
"""Clients `[k]` → their samples of each class, `[k, classes]`."""

_KEPT = 1 << 24
"""Most class shares that are kept; those of more clients or classes are counted whenever they are asked for."""


class CountedShares:
    """Class shares `[clients, classes]` of more clients than are kept: rows are counted when they are asked for."""

    def __init__(self, counts: ClassCounts, sizes: IntArray, classes: int) -> None:
        self._counts = counts
        self._sizes = sizes
        self.shape = len(sizes), classes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, clients: Any) -> FloatArray:
        """Return the rows of clients, given as a number, a slice or an array."""
        places = np.arange(len(self))[clients]
        rows = _shares(self._counts(np.atleast_1d(places)))
        return rows if np.ndim(places) else rows[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        """Return all rows, for figures that need them at once."""
        whole = np.empty(self.shape)
        for clients in blocks_of(self._sizes, self.shape[1]):
            whole[clients] = self[clients]
        return whole if dtype is None else whole.astype(dtype)

    def mean(self, axis: int = 0) -> FloatArray:
        """Return the mean over clients, `[classes]`."""
        total = np.zeros(self.shape[1])
        for clients in blocks_of(self._sizes, self.shape[1]):
            total += self[clients].sum(axis=0)
        return total / len(self)


Shares = FloatArray | CountedShares


class Truth:
    """Each client's class shares and skew. Only evaluation may know them."""

    def __init__(self, shares: Shares, skew: FloatArray, tests: list[Tensor] | None = None) -> None:
        self.rows = shares
        """`[clients, classes]`, rows sum to one: those of some clients are `rows[clients]`. Where there are no classes,
        of the groups in their place."""
        self.tests = tests
        """Each client's own rows of the test set; None if they have none."""
        self.skew = skew
        """`[clients]`: the environment's own parameter (α), or the distance of the shares from the overall mix."""

    @cached_property
    def shares(self) -> FloatArray:
        """All clients' class shares at once, `[clients, classes]`."""
        return np.asarray(self.rows)

    @cached_property
    def mean_shares(self) -> FloatArray:
        """`[classes]`: mean over clients, each with the same weight."""
        mean: FloatArray = self.rows.mean(axis=0)
        return mean

    def with_skew(self, skew: FloatArray) -> "Truth":
        """Return the truth with another skew."""
        return Truth(self.rows, skew, self.tests)

    def with_tests(self, tests: list[Tensor] | None) -> "Truth":
        """Return the truth with the clients' own rows of the test set."""
        return Truth(self.rows, self.skew, tests)

    @classmethod
    def of(cls, counts: ClassCounts, sizes: IntArray, classes: int, skew: FloatArray | None) -> "Truth":
        """Count the clients' classes a block of clients at a time; `skew` is the environment's own, if it has one."""
        shares: Shares = CountedShares(counts, sizes, classes)
        total = np.zeros(classes)
        if len(sizes) * classes <= _KEPT:
            shares = np.empty((len(sizes), classes))
            for clients in blocks_of(sizes, classes):
                found = counts(clients)
                shares[clients] = _shares(found)
                total += found.sum(axis=0)
        elif skew is None:
            for clients in blocks_of(sizes, classes):
                total += counts(clients).sum(axis=0)
        if skew is not None:
            return cls(shares, skew)
        overall = total / total.sum()
        skew = np.empty(len(sizes))
        for clients in blocks_of(sizes, classes):
            skew[clients] = np.abs(shares[clients] - overall).sum(axis=1) / 2
        return cls(shares, skew)


def _shares(counts: IntArray) -> FloatArray:
    numbers = counts.astype(np.float64)
    shares: FloatArray = numbers / numbers.sum(axis=1, keepdims=True)
    return shares
