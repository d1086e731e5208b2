"""Checkpoints: a method's whole state in one safetensors file, without pickle."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.arrays import State
from covey.errors import Refusal, require
from covey.storage import replacing

FORMAT = 2
"""Version of folders; one with a higher version is refused. In those of version 1, some settings did not exist yet."""

_LONG = 1 << 16
"""Numbers from which a tensor is written without those that nearly all are."""

_LONGEST = 1 << 32
"""Most numbers of such a tensor."""

_PLACES, _FILL = ".places", ".fill"
"""What the names of a tensor's changed places, and of the value of the others, end with."""

_WORDS = {
    torch.float64: torch.int64,
    torch.int64: torch.int64,
    torch.float32: torch.int32,
    torch.int32: torch.int32,
    torch.uint8: torch.uint8,
    torch.bool: torch.uint8,
}
"""Kinds of numbers, and those of as many bits that they are compared as."""


def write_checkpoint(folder: Path, rounds_done: int, state: State) -> None:
    """Write the method's state to one safetensors file: tensors as tensors, all else as JSON in its header."""
    tensors: dict[str, Tensor] = {}
    rest = _split(state, "", tensors)
    path = folder / "checkpoint.safetensors"
    # One entry only: several would be written in random order, and equal states must give equal bytes.
    header = {"format": FORMAT, "round": rounds_done, "state": rest}
    with replacing(path) as beside:
        save_file(tensors, str(beside), {"covey": json.dumps(header, allow_nan=False)})


def copied_to_host(state: State) -> State:
    """Return a copy of a state in the host's memory, which keeps its values whatever the method does next."""
    return {name: _copied(item) for name, item in state.items()}


def _copied(value: Any) -> Any:
    # The most frequent kinds first: a list may hold hundreds of numbers.
    if isinstance(value, (float, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return value.copy() if isinstance(value, np.ndarray) else value


def has_checkpoint(folder: Path) -> bool:
    """True if a run folder has a checkpoint."""
    return (folder / "checkpoint.safetensors").exists()


def checkpoint_round(folder: Path) -> int:
    """Return the rounds done at the checkpoint; 0 without one."""
    if not has_checkpoint(folder):
        return 0
    with _opened(folder) as file:
        return int(json.loads(file.metadata()["covey"])["round"])


def read_checkpoint(folder: Path) -> tuple[int, State | None]:
    """Read the rounds done and the method's state; (0, None) without a checkpoint."""
    if not has_checkpoint(folder):
        return 0, None
    with _opened(folder) as file:
        header = json.loads(file.metadata()["covey"])
        # Clones: the tensors may lie in the mapped file itself.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        return int(header["round"]), _join(header["state"], tensors)


@contextmanager
def _opened(folder: Path) -> Iterator[Any]:
    """Open a checkpoint's file; refuse it if it cannot be read."""
    path = folder / "checkpoint.safetensors"
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise Refusal(f"The checkpoint {path} is damaged and cannot be read ({error}).") from error


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` with its tensors and arrays moved to `tensors` and replaced by references."""
    if isinstance(value, Mapping):
        below = [_split(item, f"{path}.{name}" if path else str(name), tensors) for name, item in value.items()]
        if all(isinstance(name, str) for name in value):
            return dict(zip(value, below, strict=True))
        # JSON has texts as names alone.
        return {"$": "mapping", "names": [_plain(name, path) for name in value], "values": below}
    if isinstance(value, list | tuple):
        return [_split(item, f"{path}.{place}", tensors) for place, item in enumerate(value)]
    if isinstance(value, (Tensor, np.ndarray)):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        tensor = tensor.detach().cpu().contiguous()
        sparse = _sparse(tensor)
        while path in tensors:
            # Names with dots may say the same place twice.
            path += "'"
        if sparse is None:
            tensors[path] = tensor
            return {"$": kind, "path": path}
        tensors[path], tensors[f"{path}{_PLACES}"], tensors[f"{path}{_FILL}"] = sparse
        return {"$": kind, "path": path, "length": len(tensor)}
    if isinstance(value, float) and not np.isfinite(value):
        return {"$": "number", "value": str(value)}
    return _plain(value, path)


def _plain(value: Any, path: str) -> Any:
    """Return a value that JSON has, of Python; refuse any other."""
    value = value.item() if isinstance(value, np.generic) else value
    require(
        value is None or isinstance(value, str | int | float),
        f"The state '{path}' holds a {type(value).__name__}, and a checkpoint cannot: state_dict gives mappings, "
        "lists, tensors, arrays, numbers, truth values and texts.",
    )
    return value


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `_split`."""
    if isinstance(value, dict):
        if value.get("$") == "number":
            return float(value["value"])
        if value.get("$") == "mapping":
            return dict(zip(value["names"], (_join(item, tensors) for item in value["values"]), strict=True))
        if "$" in value:
            tensor = tensors[value["path"]]
            if "length" in value:
                tensor = _filled(tensor, value, tensors)
            return tensor if value["$"] == "tensor" else tensor.numpy()
        return {name: _join(item, tensors) for name, item in value.items()}
    return [_join(item, tensors) for item in value] if isinstance(value, list) else value


def _sparse(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the values and places of a long tensor `[n]` that differ from nearly all others, and the value of those.

    None if it is to be written whole. Among a million clients, few have been invited: the others have the value that
    they began with.
    """
    if tensor.dim() != 1 or len(tensor) < _LONG or tensor.dtype not in _WORDS:
        return None
    # Compared as bits, so that NaN equals NaN. If nearly all are alike, one of these most likely is, too.
    words = tensor.view(_WORDS[tensor.dtype])
    for at in (0, len(tensor) - 1, len(tensor) // 2):
        fill = slice(at, at + 1)
        places = torch.nonzero(words != words[fill]).flatten()
        if 4 * len(places) <= len(tensor):
            return tensor[places], places, tensor[fill].clone()
    return None


def _filled(values: Tensor, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the long tensor of which `values` are the places that differ."""
    length, fill, places = about["length"], *(tensors[about["path"] + end] for end in (_FILL, _PLACES))
    fits = isinstance(length, int) and _LONG <= length <= _LONGEST and fill.shape == (1,) and fill.dtype == values.dtype
    if not fits or places.shape != values.shape or places.dtype != torch.int64 or 4 * len(places) > length:
        raise ValueError(f"{about['path']} does not fit its places")
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < length:
        raise ValueError(f"{about['path']} has places outside its {length}")
    return fill.expand(length).clone().index_copy_(0, places, values)
