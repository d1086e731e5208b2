"""All that a compiled step depends on, besides the sizes of its tensors, as text: the key of a kept step."""

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from covey.runtime.stacked.lane_step import StepTerms
from covey.task.custom import Custom
from covey.task.learning_task import Task

_OF_MODULES = frozenset(vars(nn.Module()))
_SETTINGS = ("TORCH", "TRITON", "PYTORCH", "CUDA", "CUBLAS", "NVIDIA")
"""Variables that begin with these change what is compiled."""


def step_key(module: nn.Module, terms: StepTerms, task: Task, machine: str, precision: str) -> str:
    """Return the key of a step on a machine; empty if the step runs code from outside of Covey and PyTorch.

    Such code may read values that nobody knows of.
    """
    trainer = terms.trainer
    parts = [task] if trainer is None else [task, trainer.part]
    if isinstance(task, Custom) or not all(_is_known(type(part)) for part in parts):
        return ""
    try:
        about = [_described(module), [[_name(type(part)), _plain(vars(part))] for part in parts], _plain(vars(terms))]
    except TypeError:
        return ""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    matmul = torch.backends.cuda.matmul
    arithmetic = [precision, matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction]
    cudnn = [torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark]
    versions = [torch.__version__, torch.version.cuda, torch.version.git_version, _triton()]
    return repr([machine, versions, source_digest(), arithmetic, cudnn, sorted(settings.items()), about])


@cache
def source_digest() -> str:
    """Return a digest of Covey's sources."""
    digest = hashlib.sha256()
    folder = Path(covey.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} {file.stat().st_size} ".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def _described(module: nn.Module) -> list[Any]:
    """Return a module's layers and tensors, without the tensors' values. TypeError: they are not all known."""
    layers = []
    for name, layer in module.named_modules():
        if not _is_known(type(layer)):
            raise TypeError
        own = {key: value for key, value in vars(layer).items() if key not in _OF_MODULES}
        layers.append([name, _name(type(layer)), layer.training, _plain(own)])
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [layers, [[name, str(one.dtype), tuple(one.shape), one.requires_grad] for name, one in tensors]]


def _is_known(kind: type) -> bool:
    """True for classes of Covey and of PyTorch, whose versions are part of the key."""
    return kind.__module__.split(".")[0] in ("covey", "torch")


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    """Return a value whose text is the same in every process. TypeError: there is none."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    if isinstance(value, torch.dtype):
        return str(value)
    if _is_known(type(value)) and hasattr(value, "__dict__") and not isinstance(value, nn.Module | torch.Tensor):
        return [_name(type(value)), _plain(vars(value))]
    raise TypeError
