"""Samples in a memory map: a `.npy` file opened with `numpy.load(file, mmap_mode="r")`."""

import mmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import IntArray
from covey.data.sample_store import SampleStore
from covey.errors import require

READ_AT_ONCE = 1 << 26
"""Bytes of a memory map up to which it is read as a whole, like an array."""

_TOUCHED = 1 << 23
"""Bytes of pages between two times that they are given back."""

_NEIGHBOURS = 1 << 18
"""Bytes around a row that the system brings into memory with it."""


class MappedSamples(SampleStore):
    """Samples of a memory map. uint8 stays, words' numbers become int64, other numbers float32."""

    def __init__(self, array: NDArray[Any], name: str, tokens: bool = False) -> None:
        numbers = np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
        require(numbers, f"{name}: samples must be numbers, not {array.dtype}.")
        require(array.ndim >= 2, f"{name}: samples must be an array [n, ...], not of shape {list(array.shape)}.")
        require(array.size > 0, f"{name}: samples hold no values, of shape {list(array.shape)}.")
        if tokens:
            require(np.issubdtype(array.dtype, np.integer), f"{name}: tokens must be whole numbers from 0.")
        dtype = torch.int64 if tokens else torch.uint8 if array.dtype == np.uint8 else torch.float32
        super().__init__(array.shape, dtype, name)
        self._array = array
        self._tokens = tokens
        self._map = _map_of(array)
        self._gives_back = True

    def read(self, rows: Tensor) -> Tensor:
        numbers = rows.numpy()
        kind = {torch.uint8: np.uint8, torch.int64: np.int64}.get(self.dtype, np.float32)
        found = np.empty((len(numbers), *self.shape[1:]), dtype=kind)
        with np.errstate(over="ignore"):  # Values too large for float32 become infinite, and are refused.
            if self._map is None or not self._gives_back:
                found[:] = self._array[numbers]
            else:
                for places in self._groups(numbers):
                    found[places] = self._array[numbers[places]]
                    # Pages that were read count as this process's memory until they are given back.
                    self._map.madvise(mmap.MADV_DONTNEED)
        require(not self._tokens or found.min(initial=0) >= 0, f"{self.name}: tokens must be whole numbers from 0.")
        return torch.from_numpy(found)

    def _groups(self, numbers: IntArray) -> list[IntArray]:
        """Return the places of rows in groups that touch few pages; rows that lie apart touch pages of their own."""
        order = np.argsort(numbers, kind="stable")
        apart = np.diff(numbers[order], prepend=-2) > 1
        touched = np.cumsum(self._array[:1].nbytes + _NEIGHBOURS * apart)
        return np.split(order, np.flatnonzero(np.diff(touched // _TOUCHED)) + 1)

    @property
    def resident(self) -> bool:
        return not self._gives_back

    def keep_within(self, limit: int) -> None:
        self.at_once = limit // 4
        self._gives_back = self.nbytes > limit


def _map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the map that an array lies in, if its pages can be given back: what was written would be lost."""
    base: Any = array
    written = getattr(array, "mode", "r") == "c"
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and not written else None
