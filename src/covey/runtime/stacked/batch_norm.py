"""Batch norm of a stack of models whose batches are padded: padding is excluded from the statistics.

With weights w_s of the samples (1/b for b samples, 0 for padding) and P values of a channel in each of them,

    μ = Σ w_s x / P,  σ² = Σ w_s (x - μ)² / P,  x̂ = (x - μ) r,  r = 1/√(σ² + ε),  y = γ x̂ + β,
    ∂x = γ r (∂y - w_s/P · (Σ ∂y + x̂ Σ ∂y x̂)),  ∂γ = Σ ∂y x̂,  ∂β = Σ ∂y.

These are custom operators, each a Triton kernel on a GPU (`batch_norm_kernels`). PyTorch 2.11's compiler fuses the
reductions into one kernel in which threads read what others have written, without a barrier: now and then, gradients
were hundreds of times too large.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from covey.model.operators import define
from covey.runtime.stacked.batch_norm_kernels import SINGLE, gradients_by_triton, moments_by_triton, norm_by_triton
from covey.runtime.stacked.triton_support import available


class MaskedBatchNorm(nn.Module):
    """Batch norm with statistics over the samples of positive weight; padding has weight 0.

    The weights are set by `SampleWeights` for the duration of a forward pass.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.rate = 0.1 if norm.momentum is None else norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.sample_weight: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.sample_weight is not None
        values = x.flatten(2) if x.dim() > 2 else x[:, :, None]
        moments = torch.ops.covey.batch_moments(
            values.detach(), self.running_mean, self.running_var, self.sample_weight, self.eps, self.rate
        )
        _, _, mean, variance = moments.unbind(0)
        self.running_mean.copy_(mean)
        self.running_var.copy_(variance)
        weight = torch.ones_like(self.running_mean) if self.weight is None else self.weight
        bias = torch.zeros_like(self.running_mean) if self.bias is None else self.bias
        normal: Tensor = torch.ops.covey.batch_norm(values, weight, bias, moments, self.sample_weight)
        return normal.view(x.shape)


class SampleWeights:
    """Context in which the masked batch norms of a module use the weights `[b]` of a batch's samples."""

    def __init__(self, module: nn.Module, weight: Tensor) -> None:
        self.layers: Sequence[MaskedBatchNorm] = [
            layer for layer in module.modules() if isinstance(layer, MaskedBatchNorm)
        ]
        self.weight = weight

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.sample_weight = self.weight

    def __exit__(self, *details: object) -> None:
        for layer in self.layers:
            layer.sample_weight = None


def _moments(x: Tensor, running_mean: Tensor, running_var: Tensor, weights: Tensor, eps: float, rate: float) -> Tensor:
    """`[b, c, p]`, `[c]`, `[c]`, `[b]` → `[4, c]`: mean and r to normalise with, new running mean and variance.

    As in torch, the running variance is unbiased: n/(n-1), for n values of a channel. A single value has no variance
    and is normalised by the running statistics.
    """
    if x.dim() == 3:
        return _moments(x[None], running_mean[None], running_var[None], weights[None], eps, rate)[0]
    if available(x) and running_mean.dtype == torch.float32:
        return moments_by_triton(x, running_mean, running_var, weights.float(), eps, rate)
    wide, places = x.to(running_mean.dtype), x.shape[3]
    weight = weights.to(wide.dtype)[:, :, None, None]
    mean = (wide * weight).sum((1, 3)) / places
    variance = ((wide - mean[:, None, :, None]) ** 2 * weight).sum((1, 3)) / places
    values = _values_of_a_channel(weights, places).to(wide.dtype)
    single = values < SINGLE
    unbiased = variance * (values / (values - 1).clamp_min(1))
    fresh = rate * (~single).to(wide.dtype)
    r = torch.rsqrt(torch.where(single, running_var, variance) + eps)
    after = running_mean + fresh * (mean - running_mean), running_var + fresh * (unbiased - running_var)
    return torch.stack([torch.where(single, running_mean, mean), r, *after], dim=1)


def _values_of_a_channel(weights: Tensor, places: int) -> Tensor:
    """Return the values of a channel in a batch, P b, from the weights, which are 1/b each: `[lanes, 1]`."""
    return places / weights.amax(1, keepdim=True).clamp_min(1e-12)


def _norm(x: Tensor, scales: Tensor, shifts: Tensor, moments: Tensor, weights: Tensor) -> Tensor:
    """Normalise, scale and shift values `[b, c, p]`."""
    if x.dim() == 3:
        return _norm(*(one[None] for one in (x, scales, shifts, moments, weights)))[0]
    if available(x) and moments.dtype == torch.float32:
        return norm_by_triton(x, scales, shifts, moments)
    mean, r = (one[:, None, :, None] for one in moments[:, :2].unbind(1))
    scale, shift = (one[:, None, :, None].to(moments.dtype) for one in (scales, shifts))
    return torch.empty_like(x).copy_((x.to(moments.dtype) - mean) * r * scale + shift)


def _gradients(
    gradient: Tensor, x: Tensor, scales: Tensor, moments: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of values, scales and shifts."""
    if x.dim() == 3:
        of_x, of_scale, of_shift = _gradients(*(one[None] for one in (gradient, x, scales, moments, weights)))
        return of_x[0], of_scale[0], of_shift[0]
    if available(x) and moments.dtype == torch.float32:
        return gradients_by_triton(gradient, x, scales, moments, weights.float())
    mean, r = (one[:, None, :, None] for one in moments[:, :2].unbind(1))
    normal, wide, places = (x.to(moments.dtype) - mean) * r, gradient.to(moments.dtype), x.shape[3]
    of_scale, of_shift = (wide * normal).sum((1, 3)), wide.sum((1, 3))
    share = torch.where(_values_of_a_channel(weights, places) < SINGLE, 0.0, weights.to(wide.dtype) / places)
    drawn = share[:, :, None, None] * (of_shift[:, None, :, None] + normal * of_scale[:, None, :, None])
    of_x = scales[:, None, :, None].to(wide.dtype) * r * (wide - drawn)
    return torch.empty_like(x).copy_(of_x), of_scale.to(scales.dtype), of_shift.to(scales.dtype)


def _moments_shape(
    x: Tensor, running_mean: Tensor, running_var: Tensor, weights: Tensor, eps: float, rate: float
) -> Tensor:
    return running_mean.new_empty(*x.shape[:-3], 4, x.shape[-2])


def _norm_shape(x: Tensor, scales: Tensor, shifts: Tensor, moments: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(x)


def _gradients_shape(
    gradient: Tensor, x: Tensor, scales: Tensor, moments: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    vector = (*x.shape[:-3], x.shape[-2])
    return torch.empty_like(x), scales.new_empty(vector), scales.new_empty(vector)


def _stack(info: Any, tensor: Tensor, dimension: int | None) -> Tensor:
    """Return a tensor under `vmap` as a stack of lanes, without a copy: these kernels take any strides."""
    return tensor.expand(info.batch_size, *tensor.shape) if dimension is None else tensor.movedim(dimension, 0)


def _moments_of_lanes(info: Any, dimensions: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    tensors = [_stack(info, *pair) for pair in zip(inputs[:4], dimensions[:4], strict=True)]
    result: Tensor = torch.ops.covey.batch_moments(*tensors, *inputs[4:])
    return result, 0


def _norm_of_lanes(info: Any, dimensions: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    tensors = [_stack(info, *pair) for pair in zip(inputs, dimensions, strict=True)]
    result: Tensor = torch.ops.covey.batch_norm(*tensors)
    return result, 0


def _gradients_of_lanes(
    info: Any, dimensions: tuple[int | None, ...], *inputs: Any
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
    tensors = [_stack(info, *pair) for pair in zip(inputs, dimensions, strict=True)]
    return torch.ops.covey.batch_norm_gradients(*tensors), (0, 0, 0)


def _differentiate(
    inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, None, None]:
    """Return the gradients of all inputs; that of x includes the part through the statistics."""
    x, scales, _, moments, weights = inputs
    of_x, of_scale, of_shift = torch.ops.covey.batch_norm_gradients(gradient, x, scales, moments, weights)
    return of_x, of_scale, of_shift, None, None


define(
    "batch_moments(Tensor x, Tensor running_mean, Tensor running_var, Tensor weights, float eps, float rate) -> Tensor",
    _moments,
    _moments_shape,
    _moments_of_lanes,
)
define(
    "batch_norm(Tensor x, Tensor scales, Tensor shifts, Tensor moments, Tensor weights) -> Tensor",
    _norm,
    _norm_shape,
    _norm_of_lanes,
    _differentiate,
)
define(
    "batch_norm_gradients(Tensor gradient, Tensor x, Tensor scales, Tensor moments, Tensor weights)"
    " -> (Tensor, Tensor, Tensor)",
    _gradients,
    _gradients_shape,
    _gradients_of_lanes,
)
