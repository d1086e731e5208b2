"""The host's memory: how much is free, and tensors that worker processes share."""

import math
import mmap
import os
import sys
from pathlib import Path

import torch
from torch import Tensor


def shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in memory that child processes share. Pages that nobody writes take no memory."""
    count = math.prod(shape)
    if sys.platform == "linux" and count:
        # Anonymous shared memory survives a fork and is not limited by /dev/shm, which is small in containers.
        memory = mmap.mmap(-1, count * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype, count=count).reshape(shape)
    zeros = torch.zeros(shape, dtype=dtype)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros


def free_memory() -> int:
    """Return the bytes that are free on this machine, or in this container if it has less; 4 GiB if nobody says."""
    found = [_free_on_machine(), _free_in_container()]
    known = [size for size in found if size is not None]
    return min(known) if known else 4 << 30


def _free_on_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) << 10
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return None


def _free_in_container() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        most = int((folder / "memory.max").read_text(encoding="ascii"))
        return max(0, most - int((folder / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None
