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
from covey.errors import Refusal
from covey.storage import replacing

FORMAT = 2
"""Version of folders; one with a higher version is refused. In those of version 1, some settings did not exist yet."""


def write_checkpoint(folder: Path, rounds_done: int, state: State) -> None:
    """Write the method's state to one safetensors file: tensors as tensors, all else as JSON in its header."""
    tensors: dict[str, Tensor] = {}
    rest = _split(state, "", tensors)
    path = folder / "checkpoint.safetensors"
    # One entry only: several would be written in random order, and equal states must give equal bytes.
    header = {"format": FORMAT, "round": rounds_done, "state": rest}
    with replacing(path) as beside:
        save_file(tensors, str(beside), {"covey": json.dumps(header, allow_nan=False)})


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
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise Refusal(f"The checkpoint {path} is damaged and cannot be read ({error}).") from error


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` with its tensors and arrays moved to `tensors` and replaced by references."""
    if isinstance(value, Mapping):
        return {
            str(name): _split(item, f"{path}.{name}" if path else str(name), tensors) for name, item in value.items()
        }
    if isinstance(value, (Tensor, np.ndarray)):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        tensors[path] = tensor.detach().cpu().contiguous()
        return {"$": kind, "path": path}
    if isinstance(value, float) and not np.isfinite(value):
        return {"$": "number", "value": str(value)}
    return value


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `_split`."""
    if isinstance(value, dict):
        if value.get("$") == "number":
            return float(value["value"])
        if "$" in value:
            tensor = tensors[value["path"]]
            return tensor if value["$"] == "tensor" else tensor.numpy()
        return {name: _join(item, tensors) for name, item in value.items()}
    return value
