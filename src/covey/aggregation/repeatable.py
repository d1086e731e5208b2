"""Arithmetic on a CPU that gives the same bits however many threads a process has."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from covey.arrays import FloatArray


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread inside, and on as many as before after it.

    A matrix product may be cut up by threads, which changes the order of its sums. An agent learns from what it did,
    so that the last bit of one step is another action some rounds later.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_tensor(values: FloatArray) -> Tensor:
    """Numbers as a tensor of torch's own memory; where NumPy's lies decides which way a product is computed."""
    return torch.tensor(values, dtype=torch.float64)
