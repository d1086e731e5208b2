"""Linear layers whose weights are moved by one operator (`linear_update`), without a gradient of theirs in memory.

The gradient of a weight is ∂yᵀx, of the layer's input x and the gradient ∂y by its output. A split layer adds zeros to
its output, so that the gradient by these zeros is ∂y, and holds x. With the variable COVEY_LINEAR_UPDATE=1, a GPU times
a step with such layers beside the ordinary step, and takes it where it is faster. Off otherwise: nobody has timed it on
a GPU yet.
"""

import copy
import os
from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.model.frozen import start_training
from covey.model.trees import Tree
from covey.runtime.stacked.convolution import replace_layers

SETTING = "COVEY_LINEAR_UPDATE"
"""Environment variable: with 1, a GPU tries to compute and follow a weight's gradient in one operator."""

LARGE = 1 << 16
"""Elements of a weight from which its gradient is worth not writing."""

LEAST_SHARE = 0.5
"""Share of a model's parameters in such weights, from which another step is worth compiling."""

_TOLERANCE = 1e-2
"""Largest difference of a gradient, of its norm; a GPU may multiply in tf32."""


class SplitLinear(nn.Module):
    """A linear layer `[b, i]` → `[b, o]`, with the parameters of `nn.Linear`; `OutputGradients` sets the rest."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.zeros: Tensor | None = None
        self.given: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        if self.zeros is None:
            return y
        if y.shape != self.zeros.shape:
            raise ValueError(f"A split layer gives {list(self.zeros.shape)}, not {list(y.shape)}.")
        self.given = x
        return y + self.zeros


class OutputGradients:
    """Context in which split layers add zeros `[b, o]` to their outputs, and hold their inputs."""

    def __init__(self, layers: Mapping[str, SplitLinear], zeros: Tree) -> None:
        self.layers, self.zeros = layers, zeros

    def __enter__(self) -> "OutputGradients":
        for name, layer in self.layers.items():
            layer.zeros = self.zeros[name]
        return self

    def __exit__(self, *details: object) -> None:
        for layer in self.layers.values():
            layer.zeros = layer.given = None

    def inputs(self) -> Tree:
        """Return the inputs `[b, i]` of the layers, by name."""
        return {name: layer.given for name, layer in self.layers.items() if layer.given is not None}


def wanted() -> bool:
    """True if split layers are to be tried."""
    return os.environ.get(SETTING) == "1"


def split(module: nn.Module, names: Collection[str]) -> None:
    """Replace these linear layers by split ones."""

    def made(name: str, layer: nn.Module) -> nn.Module | None:
        return SplitLinear(layer) if name in names and isinstance(layer, nn.Linear) else None

    replace_layers(module, made)


def split_layers(module: nn.Module) -> dict[str, SplitLinear]:
    """Return a module's split layers, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, SplitLinear)}


def splittable(module: nn.Module, x: Tensor) -> list[str]:
    """Return the names of large linear layers that may be split, if most parameters are theirs.

    On a batch of inputs `x`, ∂yᵀx must be the gradient of the weight: that of a layer which is called once, on a row
    for each sample, and whose weight has no other use.
    """
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    large = [name for name, layer in layers.items() if layer.weight.numel() >= LARGE and _is_plain(layer, module)]
    trained = sum(one.numel() for one in module.parameters() if one.requires_grad)

    def are_most(names: Collection[str]) -> bool:
        return sum(layers[name].weight.numel() for name in names) >= LEAST_SHARE * trained

    right = [name for name in large if _is_right(module, name, x)] if are_most(large) else []
    return right if are_most(right) else []


def _is_plain(layer: nn.Linear, module: nn.Module) -> bool:
    """True for a layer without hooks, whose weight is trained and no other layer's."""
    if type(layer) is not nn.Linear or not layer.weight.requires_grad:
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    users = [one for one in module.modules() for held in one._parameters.values() if held is layer.weight]
    return not any(hooks) and len(users) == 1


def _is_right(module: nn.Module, name: str, x: Tensor) -> bool:
    """True if the layer's ∂yᵀx is the gradient of its weight, for these inputs."""
    try:
        copied = start_training(copy.deepcopy(module).to(x.device, torch.float32))
        split(copied, [name])
        layers = split_layers(copied)
        weight = layers[name].weight
        zeros = torch.zeros(len(x), len(weight), device=x.device, requires_grad=True)
        with torch.enable_grad(), OutputGradients(layers, {name: zeros}) as taken:
            y = copied(x.float() if x.is_floating_point() else x)
            inputs = taken.inputs()[name]
            upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
            wanted, by_output = torch.autograd.grad((y * upstream).sum(), [weight, zeros])
        found = by_output.t() @ inputs.detach()
        # Without any gradient, nothing is known.
        return float(wanted.norm()) > 0 and float((found - wanted).norm()) <= _TOLERANCE * float(wanted.norm())
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # A model of somebody's own may do anything here; its layers stay as they are.
        return False
