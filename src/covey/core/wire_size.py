"""Messages as bytes (safetensors), and their size without packing them."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache

import torch
from safetensors.torch import load, save
from torch import Tensor


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Serialise tensors as safetensors."""
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(metadata) if metadata else None)


def unpack(data: bytes) -> dict[str, Tensor]:
    """Read the tensors that `pack` has serialised."""
    return load(data)


def packed_size(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """Return `len(pack(tensors, metadata))` without copying tensors: the header is packed, the payload counted."""
    fields = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    return _size_of(fields, tuple(metadata.items()) if metadata else ())


@lru_cache(maxsize=4096)
def _size_of(
    fields: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], metadata: tuple[tuple[str, str], ...]
) -> int:
    """Return the size of a message with tensors of these names, types and shapes; most of a run's are alike."""
    empty = {name: torch.empty(0, dtype=dtype) for name, dtype, _ in fields}
    shapes = {name: shape for name, _, shape in fields}
    header = json.loads(pack(empty, dict(metadata))[8:])
    at = 0
    # safetensors sorts tensors by type and name, so the empty ones are in their final order already.
    for name in header:
        if name in shapes:
            size = math.prod(shapes[name]) * empty[name].element_size()
            header[name].update(shape=list(shapes[name]), data_offsets=[at, at + size])
            at += size
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (length + 7) // 8 * 8 + at


def payload_size(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of the tensors' values, without any header."""
    return sum(value.numel() * value.element_size() for value in tensors.values())
