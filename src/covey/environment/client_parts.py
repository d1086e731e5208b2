"""Each client's sample numbers, made when they are asked for: a federation is a plan, not a copy."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray

_AT_ONCE = 1 << 19
"""Samples that are looked at together; bounds the memory of a walk over all clients."""


class Parts(Sequence[IntArray], ABC):
    """A split of samples among clients, in an environment's own order."""

    keyed: bool = False
    """True if samples are drawn for each client apart, when they are asked for."""

    @property
    @abstractmethod
    def sizes(self) -> IntArray:
        """`[clients]`: number of samples."""

    @abstractmethod
    def of(self, client: int) -> IntArray:
        """Return a client's samples, int64."""

    def together(self, clients: IntArray) -> IntArray:
        """Return the samples of these clients, one client after another."""
        return np.concatenate([self.of(client) for client in clients.tolist()])

    def class_counts(self, clients: IntArray, labels: IntArray, classes: int) -> IntArray:
        """Return these clients' samples of each class: `[k, classes]`."""
        owners = np.repeat(np.arange(len(clients)), self.sizes[clients])
        found: IntArray = np.bincount(
            owners * classes + labels[self.together(clients)], minlength=len(clients) * classes
        ).reshape(len(clients), classes)
        return found

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> IntArray: ...
    @overload
    def __getitem__(self, client: slice) -> list[IntArray]: ...
    def __getitem__(self, client: int | slice) -> IntArray | list[IntArray]:
        if isinstance(client, slice):
            return [self.of(one) for one in range(*client.indices(len(self)))]
        return self.of(place_of(client, len(self)))


@dataclass(frozen=True, eq=False)
class Listed(Parts):
    """Parts that an environment has dealt, one array per client."""

    parts: Sequence[IntArray]

    @cached_property
    def sizes(self) -> IntArray:
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def of(self, client: int) -> IntArray:
        return self.parts[client]


@dataclass(frozen=True, eq=False)
class Slices(Parts):
    """Disjoint parts: one array of samples, cut at `bounds`."""

    samples: IntArray
    """All clients' samples, one client after another."""
    bounds: IntArray
    """`[clients + 1]`: where each client's samples begin, and the end."""
    ascending: bool = False
    """True if a client's samples are sorted when they are asked for."""
    changed: dict[int, IntArray] = field(default_factory=dict)
    """Client → its samples, for clients that have others than their slice."""

    @property
    def sizes(self) -> IntArray:
        sizes: IntArray = np.diff(self.bounds)
        for client, part in self.changed.items():
            sizes[client] = len(part)
        return sizes

    def of(self, client: int) -> IntArray:
        part = self.changed.get(client)
        part = self.samples[self.bounds[client] : self.bounds[client + 1]] if part is None else part
        return np.sort(part) if self.ascending else part

    @classmethod
    def cut(cls, samples: IntArray, sizes: IntArray, *, ascending: bool = False) -> "Slices":
        """Return parts of the given sizes, one after another in `samples`."""
        return cls(samples, np.concatenate([[0], np.cumsum(sizes)]), ascending)


class ClientParts(Sequence[Tensor]):
    """A federation's parts: client i has the place `order[i]` of the environment."""

    def __init__(self, parts: Parts, order: IntArray) -> None:
        self.parts = parts
        self.order = order
        self._last: tuple[int, Tensor] | None = None
        """The client asked for last: its samples and its labels are read one after the other."""

    @classmethod
    def of(cls, parts: Sequence[IntArray], order: IntArray | None = None) -> "ClientParts":
        """Return the parts of an environment, in its own order unless there is another."""
        known = parts if isinstance(parts, Parts) else Listed(parts)
        return cls(known, np.arange(len(parts)) if order is None else order)

    @property
    def keyed(self) -> bool:
        """True if samples are drawn for each client apart, when they are asked for."""
        return self.parts.keyed

    @property
    def sizes(self) -> IntArray:
        """`[clients]`: number of samples."""
        sizes: IntArray = self.parts.sizes[self.order]
        return sizes

    def class_counts(self, clients: IntArray, labels: IntArray, classes: int) -> IntArray:
        """Return these clients' samples of each class: `[k, classes]`."""
        return self.parts.class_counts(self.order[clients], labels, classes)

    def together(self, clients: IntArray) -> Tensor:
        """Return the samples of these clients, one client after another."""
        return torch.from_numpy(self.parts.together(self.order[clients]))

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        if isinstance(client, slice):
            return [self[one] for one in range(*client.indices(len(self)))]
        client, last = place_of(client, len(self)), self._last
        if last is None or last[0] != client:
            last = self._last = client, torch.from_numpy(self.parts.of(int(self.order[client])))
        return last[1]


def blocks_of(sizes: IntArray, width: int = 1) -> Iterator[IntArray]:
    """Yield the clients in blocks of about half a million samples, or of as many figures if each has `width`."""
    ends = np.cumsum(np.maximum(sizes, width))
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        yield np.arange(begin, end)
        begin = end


def together(parts: Sequence[Tensor], clients: IntArray) -> Tensor:
    """Return the samples of these clients, one client after another."""
    return parts.together(clients) if isinstance(parts, ClientParts) else torch.cat([parts[one] for one in clients])


def place_of(client: int, clients: int) -> int:
    """Return the place of a client that may be counted from the end."""
    if not -clients <= client < clients:
        raise IndexError(f"There is no client {client} among {clients}.")
    return int(client) % clients
