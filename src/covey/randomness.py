"""Stateless randomness, keyed by (seed, round, client, purpose) and never global.

What clients draw (batch order, augmentation, dropout) comes from splitmix64 in integer tensor
operations, so that a CPU and a GPU draw the same numbers in any order of execution. What the server
draws (cohorts, Beta samples) comes from NumPy's Philox under the same kind of key.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _mix(z: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014) on Python integers."""
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def key(*parts: int | str) -> int:
    """A 64-bit key for a place in a run, such as `key(seed, round, client, "batches")`."""
    state = 0
    for part in parts:
        if isinstance(part, str):
            value = int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")
        else:
            value = int(part) & _MASK
        state = _mix((state + _mix((value + _GOLDEN) & _MASK) + _GOLDEN) & _MASK)
    return state


def _shifted(z: Tensor, by: int) -> Tensor:
    """Logical right shift of int64 (torch shifts arithmetically)."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def bits(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """The first `count` outputs of splitmix64 for `key`: int64 `[count]`, or `[..., count]` for keys `[...]`."""
    if isinstance(key, Tensor):
        begin = key.unsqueeze(-1)
        device = key.device
    else:
        begin = torch.tensor(_signed(key & _MASK), dtype=torch.int64, device=device)
    z = begin + torch.arange(1, count + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def uniform(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Uniform float32 in [0, 1), exact multiples of 2^-24."""
    return _shifted(bits(key, count, device), 40).to(torch.float32) * (1.0 / (1 << 24))


def integers(key: int | Tensor, count: int, below: int, device: torch.device | str = "cpu") -> Tensor:
    """Integers in [0, below) for below up to 2^31."""
    return (_shifted(bits(key, count, device), 33) * below) >> 31


def permutation(key: int | Tensor, count: int, device: torch.device | str = "cpu") -> Tensor:
    """A random order of 0 … count-1: `[count]`, or `[..., count]` for keys `[...]`."""
    return torch.argsort(bits(key, count, device), dim=-1, stable=True)


def generator(*parts: int | str) -> np.random.Generator:
    """NumPy's Philox for what the server draws, keyed like everything else."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))


@contextmanager
def torch_seed(*parts: int | str) -> Iterator[None]:
    """Torch's own CPU generator seeded by a key, for code that knows no other (layer initialisation)."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(*parts) >> 1)
        yield
