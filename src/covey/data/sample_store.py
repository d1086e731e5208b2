"""Samples that are read where they are used: the place of a tensor `[n, ...]` that memory may not hold.

A `SampleStore` answers what Covey asks of a data set's samples: `len`, `shape`, `dtype`, and indexing, which reads rows
into a tensor. Where all rows fit into the memory given, rows that were read once stay there, shared by all worker
processes; where they do not, every use reads them again. That changes no result.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from covey.data.host_memory import free_memory, shared_tensor
from covey.errors import Refusal

_PIECE = 1 << 20
"""Values read at a time where all rows are gone through; bounds the memory that it takes."""

_DIGESTED = 256
"""Rows that a store's digest reads, evenly spread."""


class SampleStore:
    """Samples `[n, ...]` that are read by row. Subclasses say how: `read`."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, name: str) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.name = name
        """What refusals call the samples, such as `own data: x`."""
        self.at_once: int | None = None
        """Most bytes of one client's rows that are read together; None if there is no bound."""
        self._kept: tuple[Tensor, Tensor] | None = None
        """The rows kept in memory `[n, ...]`, and which of them have been read `[n]`."""

    def read(self, rows: Tensor) -> Tensor:
        """Read these rows, int64 `[k]`, into a tensor `[k, ...]`."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def dim(self) -> int:
        """Return the number of axes, as a tensor's."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of values, as a tensor's."""
        return math.prod(self.shape)

    def stride(self, axis: int) -> int:
        """Return 0: rows lie nowhere in memory."""
        return 0

    def is_floating_point(self) -> bool:
        """True if values are fractions, as a tensor's."""
        return self.dtype.is_floating_point

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.numel() * self.dtype.itemsize

    def __getitem__(self, index: Any) -> Tensor:
        """Return rows as a tensor: of a slice, of row numbers, or of a mask."""
        if isinstance(index, slice):
            return self.rows(torch.arange(len(self))[index])
        if isinstance(index, int):
            return self.rows(torch.tensor([index % len(self)]))[0]
        rows = torch.as_tensor(index)
        return self.rows(torch.nonzero(rows).flatten() if rows.dtype == torch.bool else rows)

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        """Return rows as a tensor, as a tensor's method does along its first axis."""
        assert axis == 0
        return self.rows(rows)

    def rows(self, rows: Tensor) -> Tensor:
        """Return these rows, int64 `[k]`, from memory or read now."""
        rows = rows.to("cpu", torch.int64)
        if self._kept is None:
            return self._checked(rows)
        values, read = self._kept
        missing = torch.unique(rows[read[rows] == 0])
        if len(missing):
            # Another process may read the same rows at the same time; both write the same values.
            values[missing] = self._checked(missing)
            read[missing] = 1
        return values.index_select(0, rows)

    def _checked(self, rows: Tensor) -> Tensor:
        """Read rows; refuse values that are not finite, and name the row."""
        found = self.read(rows)
        if found.is_floating_point() and found.numel() and not torch.isfinite(torch.stack(torch.aminmax(found))).all():
            at = int(torch.nonzero(~torch.isfinite(found))[0, 0])
            kind = str(self.dtype).removeprefix("torch.")
            raise Refusal(
                f"{self.name}[{self.number(int(rows[at]))}] holds a value that is not a finite {kind} number."
            )
        return found

    def number(self, row: int) -> int:
        """Return the number that a row has for its owner."""
        return row

    def pieces(self) -> Iterator[Tensor]:
        """Yield all rows in order, some at a time."""
        step = max(1, _PIECE * len(self) // max(1, self.numel()))
        for at in range(0, len(self), step):
            yield self.rows(torch.arange(at, min(at + step, len(self))))

    def to(self, device: torch.device) -> Tensor:
        """Return all rows on a device."""
        whole = torch.empty(self.shape, dtype=self.dtype, device=device)
        at = 0
        for piece in self.pieces():
            whole[at : at + len(piece)] = piece
            at += len(piece)
        return whole

    @property
    def resident(self) -> bool:
        """True if rows that were read stay in memory."""
        return self._kept is not None

    def keep_within(self, limit: int) -> None:
        """Keep rows that were read, if all fit into so many bytes; else read at most a quarter of that together."""
        self.at_once = limit // 4
        if self.nbytes > limit:
            self._kept = None
        elif self._kept is None:
            self._kept = shared_tensor(tuple(self.shape), self.dtype), shared_tensor((len(self),), torch.uint8)

    def part(self, rows: Tensor) -> "SampleStore | None":
        """Return these rows as a store of their own if they are too many to be read together, else None."""
        bytes_of = len(rows) * self.nbytes // max(1, len(self))
        large = not self.resident and self.at_once is not None and bytes_of > self.at_once
        return StoredSubset(self, rows) if large else None

    def digest(self) -> bytes:
        """Return a digest of shape and type, and of some rows, evenly spread: reading all could take hours."""
        some = torch.linspace(0, len(self) - 1, min(len(self), _DIGESTED), dtype=torch.float64).long()
        found = hashlib.blake2b(str((self.dtype, tuple(self.shape))).encode(), digest_size=16)
        found.update(self.rows(some).contiguous().numpy().tobytes())
        return found.digest()


class StoredSubset(SampleStore):
    """Some rows of a store, in an order of their own."""

    def __init__(self, whole: SampleStore, chosen: Tensor) -> None:
        super().__init__((len(chosen), *whole.shape[1:]), whole.dtype, whole.name)
        self.whole = whole
        self.chosen = chosen.to(torch.int64)

    def read(self, rows: Tensor) -> Tensor:
        return self.whole.rows(self.chosen[rows])

    def _checked(self, rows: Tensor) -> Tensor:
        return self.read(rows)

    def number(self, row: int) -> int:
        return self.whole.number(int(self.chosen[row]))

    @property
    def resident(self) -> bool:
        return self.whole.resident

    def keep_within(self, limit: int) -> None:
        self.whole.keep_within(limit)

    def part(self, rows: Tensor) -> "SampleStore | None":
        return None if self.whole.part(rows) is None else StoredSubset(self, rows)


class StoredTogether(SampleStore):
    """Several stores, one after another."""

    def __init__(self, parts: Sequence[SampleStore], name: str) -> None:
        super().__init__((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype, name)
        self.parts = list(parts)
        self._begin = np.cumsum([0, *map(len, parts)])

    def read(self, rows: Tensor) -> Tensor:
        found = torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        owners = np.searchsorted(self._begin, rows.numpy(), side="right") - 1
        for owner in np.unique(owners).tolist():
            mine = torch.from_numpy(np.flatnonzero(owners == owner))
            found[mine] = self.parts[owner].rows(rows[mine] - int(self._begin[owner]))
        return found

    def _checked(self, rows: Tensor) -> Tensor:
        # Each part has checked its own, and named it.
        return self.read(rows)


class OnDevice(SampleStore):
    """A store whose rows come on a device."""

    def __init__(self, whole: SampleStore, device: torch.device) -> None:
        super().__init__(whole.shape, whole.dtype, whole.name)
        self.whole = whole
        self.device = device

    def rows(self, rows: Tensor) -> Tensor:
        return self.whole.rows(rows).to(self.device)

    @property
    def resident(self) -> bool:
        return False


def stored(x: object) -> SampleStore | None:
    """Return samples as a store if they are one, else None: they are a tensor in memory."""
    return x if isinstance(x, SampleStore) else None


def in_place_of_tensor(store: SampleStore) -> Tensor:
    """Return a store where a tensor is declared: what Covey asks of samples, a store answers too."""
    return cast(Tensor, store)


def brightest(x: Tensor) -> int:
    """Return the brightest value of images: of those in memory the greatest, of a store's, unread, what uint8 holds."""
    return int(x.max()) if stored(x) is None and x.dtype == torch.uint8 else 255


def taken(x: Tensor, chosen: Tensor) -> Tensor:
    """Return some samples, by row numbers: of a tensor now, of a store when they are used."""
    store = stored(x)
    return x[chosen] if store is None else in_place_of_tensor(StoredSubset(store, chosen))


def keep_within(samples: Sequence[Tensor], limit: int) -> None:
    """Let stores among these samples keep what they read if it fits into half of `limit` (0: of the free memory)."""
    stores = [store for x in samples if (store := stored(x)) is not None]
    if not stores:
        return
    share = (limit or free_memory()) // 2
    # The smallest first; what one takes is not there for the others.
    roots = {id(root): root for store in stores for root in [_root(store)]}
    for root in sorted(roots.values(), key=lambda one: one.nbytes):
        root.keep_within(share)
        if root.nbytes <= share:
            share -= root.nbytes


def _root(store: SampleStore) -> SampleStore:
    while isinstance(store, StoredSubset):
        store = store.whole
    return store


def stored_statistics(store: SampleStore) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of a store `[n, channels, ...]`, from pieces."""
    if store.dtype == torch.uint8:
        counts = torch.zeros(store.shape[1], 256, dtype=torch.int64)
        for piece in store.pieces():
            for channel, values in enumerate(piece.transpose(0, 1)):
                counts[channel] += torch.bincount(values.flatten(), minlength=256)
        mean, variance = of_histogram(counts)
        return tuple(mean.tolist()), tuple(_scale(variance).tolist())
    mean = torch.zeros(store.shape[1], dtype=torch.float64)
    spread, seen = torch.zeros_like(mean), 0
    for piece in store.pieces():
        # Mean and sum of squares of two parts from those of each: Chan, Golub and LeVeque, 1979.
        flat = piece.transpose(0, 1).flatten(1).double()
        count = flat.shape[1]
        here = flat.mean(dim=1)
        apart = here - mean
        mean = mean + apart * (count / (seen + count))
        spread += flat.var(dim=1, correction=0) * count + apart**2 * (seen * count / (seen + count))
        seen += count
    return tuple(mean.tolist()), tuple(_scale(spread / max(1, seen)).tolist())


def of_histogram(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel from counts of its values 0-255, `[channels, 256]`."""
    values = torch.arange(256, dtype=torch.float64)
    share = counts.double()
    share /= share.sum(dim=1, keepdim=True)
    mean = share @ values
    return mean, (share * (values - mean[:, None]) ** 2).sum(dim=1)


def _scale(variance: Tensor) -> Tensor:
    """Return deviations; a constant channel is not scaled: its deviation is zero."""
    return torch.where(variance > 0, variance.sqrt(), 1.0)
