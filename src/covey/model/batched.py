"""Evaluation of many models of one architecture at once.

Autocast does not work under `vmap` (a convolution's input is cast, its bias is not), so bf16 is spelled out here:
parameters and samples are bf16, statistics of batch norm keep their precision.
"""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from covey.model.frozen import cast_constants
from covey.model.layout import Layout
from covey.model.recurrent_layers import for_stacks


class BatchedModel:
    """A module in evaluation mode that is applied to many states of it with one call."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, compute: torch.dtype) -> None:
        self.layout = Layout.of(module)
        self.module = for_stacks(cast_constants(_fix_statistics(copy.deepcopy(module)), compute)).eval()
        self.dtype = dtype
        self.compute = compute
        """Dtype of the forward pass."""

    def models(self, states: Tensor) -> dict[str, Tensor]:
        """Return the tensors of states `[m, d]`, each `[m, *shape]`, in the dtype of the forward pass."""
        states = states.to(self.dtype)
        parameters = {slot.name: slot.of(states).to(self.compute) for slot in self.layout.parameters}
        return parameters | {slot.name: slot.of(states) for slot in self.layout.buffers}

    def logits(self, models: dict[str, Tensor], x: Tensor, *, own: bool) -> Tensor:
        """Return logits `[m, n, classes]` of samples `[n, ...]`, or with `own` of each model's own `[m, n, ...]`."""

        def outputs(tensors: dict[str, Tensor], given: Tensor) -> Tensor:
            found: Tensor = functional_call(self.module, tensors, (given,))
            return found

        x = x.to(self.compute) if x.is_floating_point() else x
        answers: Tensor = vmap(outputs, in_dims=(0, 0 if own else None))(models, x)
        return answers.to(self.dtype)


class FixedBatchNorm(nn.Module):
    """Batch norm by running statistics, computed in their precision."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (x.dim() - 2))
        mean, variance = self.running_mean.view(shape), self.running_var.view(shape)
        normal = (x.to(mean.dtype) - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            normal = normal * self.weight.view(shape).to(mean.dtype) + self.bias.view(shape).to(mean.dtype)
        return normal.to(x.dtype)


def _fix_statistics(module: nn.Module) -> nn.Module:
    """Replace every batch norm that has running statistics by a `FixedBatchNorm`."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm) and child.running_mean is not None:
                setattr(parent, name, FixedBatchNorm(child))
    return module
