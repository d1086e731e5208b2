"""Stateless randomness, keyed by (seed, round, client, purpose); there is no global generator.

Clients' draws (batch order, augmentation, dropout, noise) come from splitmix64 in integer tensor operations, so that a
CPU and a GPU draw the same numbers in any order of execution. The server's draws (cohorts, Beta samples) come from
NumPy's Philox, under the same kind of key. Noise that nobody may foresee is the exception: it comes from the operating
system.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_INVERSE = pow(_GOLDEN, -1, 1 << 64)
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _mix(z: int) -> int:
    """Apply the finaliser of splitmix64 (Steele, Lea and Flood 2014) on Python integers."""
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def key(*parts: int | str) -> int:
    """Return a 64-bit key for a place in a run, such as `key(seed, round, client, "batches")`."""
    state = 0
    for part in parts:
        state = _mix((state + _mixed(part) + _GOLDEN) & _MASK)
    return state


def _mixed(part: int | str) -> int:
    value = _word(part) if isinstance(part, str) else int(part) & _MASK
    return _mix((value + _GOLDEN) & _MASK)


def keys(*parts: int | str | NDArray[Any]) -> NDArray[np.uint64]:
    """Return `key` for many places at once; parts are whole numbers, words, or arrays of whole numbers `[places]`."""
    golden = np.uint64(_GOLDEN)
    # What comes before the first array is one key: as numbers it is fast.
    first = next((at for at, part in enumerate(parts) if isinstance(part, np.ndarray)), len(parts))
    state = np.array([key(*cast(Sequence[int | str], parts[:first]))], dtype=np.uint64)
    for part in parts[first:]:
        if isinstance(part, np.ndarray):
            mixed = _mix_many(part.astype(np.uint64) + golden)
        else:
            mixed = np.array([_mixed(part)], dtype=np.uint64)
        state = _mix_many(state + mixed + golden)
    return state


def words(keys: NDArray[np.uint64], counters: NDArray[Any]) -> NDArray[np.uint64]:
    """Return output number `counters` (from 0) of splitmix64 for each key: those of `bits`, as NumPy has them."""
    return _mix_many(keys + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def as_tensor(keys: NDArray[np.uint64], device: torch.device | str = "cpu") -> Tensor:
    """Return keys as the tensor functions below take them: int64 with the same bits."""
    return torch.from_numpy(keys.view(np.int64)).to(device)


@lru_cache(maxsize=1024)
def _word(text: str) -> int:
    """Hash a word to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix_many(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser to an array; unsigned arithmetic wraps."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shift int64 right logically (torch shifts arithmetically)."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def bits(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the first `count` outputs of splitmix64 for `key`: int64 `[count]`, or `[..., count]` for keys `[...]`."""
    if isinstance(key, Tensor):
        begin = key.unsqueeze(-1)
        device = key.device
    else:
        begin = torch.tensor(_signed(key & _MASK), dtype=torch.int64, device=device)
    # begin + counter·golden, written as (begin/golden + counter)·golden modulo 2^64: a compiler that folds the
    # product of a counter and so large a constant into index arithmetic would overflow.
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    z = (begin * _signed(_GOLDEN_INVERSE) + counter) * _signed(_GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def uniform(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw uniform float32 in [0, 1), exact multiples of 2^-24."""
    return _shifted(bits(key, count, device), 40).to(torch.float32) * (1.0 / (1 << 24))


def integers(key: int | Tensor, count: int, below: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw integers in [0, below) for below up to 2^31."""
    return (_shifted(bits(key, count, device), 33) * below) >> 31


def permutation(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw a random order of 0 … count-1: `[count]`, or `[..., count]` for keys `[...]`."""
    return torch.argsort(bits(key, count, device), dim=-1, stable=True)


def normal(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw standard normal float64 by Box-Muller: `[count]`, or `[..., count]` for keys `[...]`.

    The bits behind them are the same on every device; logarithm and cosine may differ in the last place.
    """
    half = (count + 1) // 2
    # Above 0, so that the logarithm is finite.
    drawn = (_shifted(bits(key, 2 * half, device), 11) + 1).to(torch.float64) * (1.0 / (1 << 53))
    length, angle = (-2 * drawn[..., :half].log()).sqrt(), 2 * torch.pi * drawn[..., half:]
    return torch.cat([length * angle.cos(), length * angle.sin()], dim=-1)[..., :count]


def generator(*parts: int | str) -> np.random.Generator:
    """Return NumPy's Philox generator for the server's draws, keyed like all others."""
    seed = _PhiloxKey(key(*parts))
    return np.random.Generator(np.random.Philox(seed))  # type: ignore[arg-type]  # the stubs lack ISeedSequence


class _PhiloxKey(ISeedSequence):
    """A key as a seed: given as `Philox(key=...)`, it would have NumPy ask the system for entropy and drop it."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        """Return Philox's two words."""
        return np.array([self.key, 0], dtype=np.uint64)


def system_normal(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw standard normal numbers from the operating system's generator (Box-Muller); no seed tells them."""
    count = int(np.prod(shape))
    words = np.frombuffer(os.urandom(16 * ((count + 1) // 2)), dtype=np.uint64).reshape(2, -1)
    # Above 0, so that the logarithm is finite.
    radius, angle = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) / (1 << 53)
    length = np.sqrt(-2 * np.log(radius))
    drawn = np.concatenate([length * np.cos(2 * np.pi * angle), length * np.sin(2 * np.pi * angle)])
    return drawn[:count].reshape(shape)


@contextmanager
def torch_seed(*parts: int | str) -> Iterator[None]:
    """Seed torch's own CPU generator by a key, for code that uses no other (layer initialisation)."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(*parts) >> 1)
        yield
