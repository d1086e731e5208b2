"""Frozen parameters (`requires_grad=False`): constants of a model, which neither travel nor change.

A part of a model whose parameters are all frozen stays in evaluation mode while the rest is trained: its batch norm
uses the running statistics that it came with, its dropout does nothing, and its buffers are constants too.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from covey.errors import require
from covey.model.dropout import Dropout

_STATISTICS = (nn.modules.batchnorm._NormBase,)
"""Layers whose buffers keep their precision."""


def frozen_parts(module: nn.Module) -> list[nn.Module]:
    """Return the largest parts of a model whose parameters are all frozen, the model itself excepted."""
    if all(parameter.requires_grad for parameter in module.parameters()):
        return []
    found: list[nn.Module] = []

    def search(part: nn.Module) -> None:
        for child in part.children():
            flags = [parameter.requires_grad for parameter in child.parameters()]
            if flags and not any(flags):
                found.append(child)
            elif not all(flags):
                search(child)

    search(module)
    return found


def start_training(module: nn.Module, frozen: Sequence[nn.Module] | None = None) -> nn.Module:
    """Put a model in training mode, but for its frozen parts; return it."""
    module.train()
    for part in frozen_parts(module) if frozen is None else frozen:
        part.eval()
    return module


def constant_buffers(module: nn.Module) -> set[str]:
    """Return the names of the buffers in frozen parts."""
    inside = {layer for part in frozen_parts(module) for layer in part.modules()}
    return {
        f"{path}.{name}" if path else name
        for path, layer in module.named_modules()
        if layer in inside
        for name, _ in layer.named_buffers(recurse=False)
    }


def constants(module: nn.Module) -> dict[str, Tensor]:
    """Return what is not part of a model's state: frozen parameters, and buffers of frozen parts, by name."""
    held = {name: one.detach() for name, one in module.named_parameters() if not one.requires_grad}
    inside, buffers = constant_buffers(module), dict(module.named_buffers())
    return held | {name: buffers[name] for name in _saved_buffers(module) if name in inside and name in buffers}


def _saved_buffers(module: nn.Module) -> Iterator[str]:
    """Yield the names of the buffers that `state_dict` has."""
    for path, layer in module.named_modules():
        if not isinstance(layer, Dropout):
            for name in layer._buffers:
                if name not in layer._non_persistent_buffers_set:
                    yield f"{path}.{name}" if path else name


@torch.no_grad()
def set_constants(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model its constants; refuse those of another model."""
    held = constants(module)
    fits = held.keys() == tensors.keys() and all(held[name].shape == tensors[name].shape for name in held)
    require(fits, f"The frozen tensors are of another model than this {type(module).__name__}.")
    for name, one in held.items():
        one.copy_(tensors[name])


def constants_digest(module: nn.Module) -> str:
    """Return a digest of a model's constants; empty if it has none."""
    return digest_of(constants(module))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of tensors by name; empty if there are none. Floats count as float32."""
    if not tensors:
        return ""
    found = hashlib.sha256()
    for name, one in sorted(tensors.items()):
        value = one.detach().to("cpu", torch.float32 if one.is_floating_point() else one.dtype).contiguous()
        found.update(f"{name} {tuple(value.shape)} {value.dtype};".encode())
        found.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return found.hexdigest()[:32]


def architecture(module: nn.Module) -> str:
    """Return a digest of the names and shapes of a model's tensors, and of which are frozen."""
    found = hashlib.sha256()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.update(f"{name} {tuple(parameter.shape)} {'trained' if parameter.requires_grad else 'frozen'};".encode())
    for name in _saved_buffers(module):
        value = module.get_buffer(name) if name in dict(module.named_buffers(remove_duplicate=False)) else None
        found.update(f"{name} {None if value is None else tuple(value.shape)};".encode())
    return found.hexdigest()[:32]


def cast_constants(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast the constants that a forward pass in `dtype` multiplies with, in place; statistics keep their precision."""
    inside = {layer for part in frozen_parts(module) for layer in part.modules()}
    for parameter in module.parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for layer in inside:
        if not isinstance(layer, _STATISTICS):
            for name, value in layer._buffers.items():
                if value is not None and value.is_floating_point() and not name.startswith("running_"):
                    layer._buffers[name] = value.to(dtype)
    return module
