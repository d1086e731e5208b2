"""Triton, where it is installed, and the helpers that its kernels share."""

import contextlib
import os
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = None
tl: Any = None
with contextlib.suppress(ImportError):
    triton, tl = import_module("triton"), import_module("triton.language")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True if kernels run in Triton's interpreter, on the CPU: for tests."""

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def available(x: Tensor) -> bool:
    """True if tensors like this one are computed by Triton kernels, and not by PyTorch."""
    if triton is None or x.dtype not in _DTYPES:
        return False
    return INTERPRETED or (x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 0))


def power(number: int) -> int:
    """Return the next power of two."""
    return 1 << (number - 1).bit_length()


def processors(x: Tensor) -> int:
    """Return the number of multiprocessors of the tensor's device."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2


def on_device(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the tensor's device the current one, which Triton launches on."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
