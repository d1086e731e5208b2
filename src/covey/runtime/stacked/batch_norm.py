"""Batch norm of a stack of models, whose batches are padded: what is padding takes no part in the statistics.

With weights w_s of the samples (1/b for b samples, 0 for padding) and P values of a channel in each of them,

    μ = Σ w_s x / P,  σ² = Σ w_s (x - μ)² / P,  x̂ = (x - μ) r,  r = 1/√(σ² + ε),  y = γ x̂ + β,
    ∂x = γ r (∂y - w_s/P · (Σ ∂y + x̂ Σ ∂y x̂)),  ∂γ = Σ ∂y x̂,  ∂β = Σ ∂y.

These are operators of our own, each a Triton kernel on a GPU. Left to the compiler they are one reduction after
another over the same values, which it fuses into a kernel that reads again what other threads of it have written, and
nothing makes those threads wait: gradients came out hundreds of times too large, now and then (PyTorch 2.11).
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
from torch import Tensor, nn

from covey.model.operators import define
from covey.runtime.stacked.kernels import available, on_device, power, tl, triton

_TILE = 1024
"""Values that a program holds at a time; a power of two."""

_SINGLE = 1.5
"""Values of a channel in a batch, below which there is no variance."""


class MaskedBatchNorm(nn.Module):
    """Batch norm whose statistics are those of the samples with a weight; padding has none."""

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


class masking:  # noqa: N801 (reads as a verb)
    """Within, layers that average over the batch know the weights of its samples."""

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


# ------------------------------------------------------------------------------------------------ kernels

if triton is not None:

    @triton.jit
    @no_type_check
    def _values(tensor, first, lane, channel, sizes: tl.constexpr, strides, tile: tl.constexpr):
        """Some values of one channel of one lane: where they are, whether there are so many, whose they are."""
        samples: tl.constexpr = sizes[0]
        places: tl.constexpr = sizes[1]
        at = first + tl.arange(0, tile)
        sample = at // places
        of_lane, of_sample, of_channel, of_place = strides
        start = tensor + lane * of_lane + channel * of_channel
        return start + (sample * of_sample + at % places * of_place), at < samples * places, sample

    @triton.jit
    @no_type_check
    def _heaviest(weights, samples: tl.constexpr, room: tl.constexpr):
        sample = tl.arange(0, room)
        return tl.max(tl.load(weights + sample, sample < samples, 0.0), axis=0)

    @triton.jit
    @no_type_check
    def _moments_kernel(
        x,
        running_mean,
        running_var,
        weights,
        moments,
        eps,
        rate,
        x_strides,
        vector_strides,
        channels,
        sizes: tl.constexpr,
        room: tl.constexpr,
        tile: tl.constexpr,
        single_below: tl.constexpr,
    ):
        """Grid: (channels, lanes). Writes what to normalise with (mean, r), and the running mean and variance."""
        channel = tl.program_id(0)
        lane = tl.program_id(1).to(tl.int64)
        samples: tl.constexpr = sizes[0]
        places: tl.constexpr = sizes[1]
        of_mean, of_var, of_weights = vector_strides
        weights += lane * of_weights
        sums = tl.full((tile,), 0.0, tl.float32)
        for first in range(0, samples * places, tile):
            where, known, sample = _values(x, first, lane, channel, sizes, x_strides, tile)
            sums += tl.load(where, known, 0.0).to(tl.float32) * tl.load(weights + sample, known, 0.0)
        mean = tl.sum(sums, axis=0) / places
        sums = tl.full((tile,), 0.0, tl.float32)
        for first in range(0, samples * places, tile):
            where, known, sample = _values(x, first, lane, channel, sizes, x_strides, tile)
            apart = tl.load(where, known, 0.0).to(tl.float32) - mean
            sums += apart * apart * tl.load(weights + sample, known, 0.0)
        variance = tl.sum(sums, axis=0) / places
        mean_before = tl.load(running_mean + lane * of_mean + channel)
        variance_before = tl.load(running_var + lane * of_var + channel)
        values = places / tl.maximum(_heaviest(weights, samples, room), 1e-12)
        single = values < single_below
        unbiased = variance * (values / tl.maximum(values - 1, 1.0))
        out = moments + lane * 4 * channels + channel
        tl.store(out, tl.where(single, mean_before, mean))
        tl.store(out + channels, 1.0 / tl.sqrt(tl.where(single, variance_before, variance) + eps))
        fresh = tl.where(single, 0.0, rate)
        tl.store(out + 2 * channels, mean_before + fresh * (mean - mean_before))
        tl.store(out + 3 * channels, variance_before + fresh * (unbiased - variance_before))

    @triton.jit
    @no_type_check
    def _norm_kernel(
        x,
        scales,
        shifts,
        moments,
        y,
        x_strides,
        y_strides,
        vector_strides,
        channels,
        sizes: tl.constexpr,
        tile: tl.constexpr,
    ):
        """Grid: (channels, lanes, tiles of values)."""
        channel = tl.program_id(0)
        lane = tl.program_id(1).to(tl.int64)
        of_scales, of_shifts = vector_strides
        mean = tl.load(moments + lane * 4 * channels + channel)
        r = tl.load(moments + lane * 4 * channels + channels + channel)
        scale = tl.load(scales + lane * of_scales + channel).to(tl.float32)
        shift = tl.load(shifts + lane * of_shifts + channel).to(tl.float32)
        first = tl.program_id(2) * tile
        where, known, _ = _values(x, first, lane, channel, sizes, x_strides, tile)
        normal = (tl.load(where, known, 0.0).to(tl.float32) - mean) * r * scale + shift
        there, _, _ = _values(y, first, lane, channel, sizes, y_strides, tile)
        tl.store(there, normal.to(y.dtype.element_ty), known)

    @triton.jit
    @no_type_check
    def _gradients_kernel(
        gradients,
        x,
        scales,
        moments,
        weights,
        of_x,
        of_scale,
        of_shift,
        gradient_strides,
        x_strides,
        of_x_strides,
        vector_strides,
        channels,
        sizes: tl.constexpr,
        room: tl.constexpr,
        tile: tl.constexpr,
        single_below: tl.constexpr,
    ):
        """Grid: (channels, lanes)."""
        channel = tl.program_id(0)
        lane = tl.program_id(1).to(tl.int64)
        samples: tl.constexpr = sizes[0]
        places: tl.constexpr = sizes[1]
        of_scales, of_weights = vector_strides
        weights += lane * of_weights
        mean = tl.load(moments + lane * 4 * channels + channel)
        r = tl.load(moments + lane * 4 * channels + channels + channel)
        scale = tl.load(scales + lane * of_scales + channel).to(tl.float32)
        plain = tl.full((tile,), 0.0, tl.float32)
        weighed = tl.full((tile,), 0.0, tl.float32)
        for first in range(0, samples * places, tile):
            where, known, _ = _values(gradients, first, lane, channel, sizes, gradient_strides, tile)
            gradient = tl.load(where, known, 0.0).to(tl.float32)
            where, known, _ = _values(x, first, lane, channel, sizes, x_strides, tile)
            plain += gradient
            weighed += gradient * (tl.load(where, known, 0.0).to(tl.float32) - mean) * r
        shift_sum = tl.sum(plain, axis=0)
        scale_sum = tl.sum(weighed, axis=0)
        tl.store(of_scale + lane * channels + channel, scale_sum.to(of_scale.dtype.element_ty))
        tl.store(of_shift + lane * channels + channel, shift_sum.to(of_shift.dtype.element_ty))
        # A single value was normalised by what was seen before, which does not depend on it.
        single = places / tl.maximum(_heaviest(weights, samples, room), 1e-12) < single_below
        share = tl.where(single, 0.0, 1.0 / places)
        for first in range(0, samples * places, tile):
            where, known, sample = _values(gradients, first, lane, channel, sizes, gradient_strides, tile)
            gradient = tl.load(where, known, 0.0).to(tl.float32)
            where, known, _ = _values(x, first, lane, channel, sizes, x_strides, tile)
            normal = (tl.load(where, known, 0.0).to(tl.float32) - mean) * r
            drawn = tl.load(weights + sample, known, 0.0) * share * (shift_sum + normal * scale_sum)
            there, _, _ = _values(of_x, first, lane, channel, sizes, of_x_strides, tile)
            tl.store(there, (scale * r * (gradient - drawn)).to(of_x.dtype.element_ty), known)


def _tile(x: Tensor) -> int:
    """Values that a program holds at a time, of stacks `[lanes, b, c, p]`."""
    return max(16, min(_TILE, power(x.shape[1] * x.shape[3])))


def _rows(vectors: Tensor) -> Tensor:
    """`[lanes, n]`, each lane contiguous."""
    return vectors if vectors.stride(1) == 1 or vectors.shape[1] == 1 else vectors.contiguous()


def _moments_by_triton(
    x: Tensor, running_mean: Tensor, running_var: Tensor, weights: Tensor, eps: float, rate: float
) -> Tensor:
    lanes, samples, channels, places = x.shape
    moments = running_mean.new_empty(lanes, 4, channels)
    vectors = [_rows(one) for one in (running_mean, running_var, weights)]
    with on_device(x):
        _moments_kernel[(channels, lanes)](
            x,
            *vectors,
            moments,
            eps,
            rate,
            x.stride(),
            tuple(one.stride(0) for one in vectors),
            channels,
            sizes=(samples, places),
            room=power(samples),
            tile=_tile(x),
            single_below=_SINGLE,
        )
    return moments


def _norm_by_triton(x: Tensor, scales: Tensor, shifts: Tensor, moments: Tensor) -> Tensor:
    lanes, samples, channels, places = x.shape
    y, tile = torch.empty_like(x), _tile(x)
    vectors = _rows(scales), _rows(shifts)
    with on_device(x):
        _norm_kernel[(channels, lanes, -(-samples * places // tile))](
            x,
            *vectors,
            moments.contiguous(),
            y,
            x.stride(),
            y.stride(),
            tuple(one.stride(0) for one in vectors),
            channels,
            sizes=(samples, places),
            tile=tile,
        )
    return y


def _gradients_by_triton(
    gradient: Tensor, x: Tensor, scales: Tensor, moments: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    lanes, samples, channels, places = x.shape
    of_x = torch.empty_like(x)
    of_scale, of_shift = (scales.new_empty(lanes, channels) for _ in range(2))
    scales, weights = _rows(scales), _rows(weights)
    with on_device(x):
        _gradients_kernel[(channels, lanes)](
            gradient,
            x,
            scales,
            moments.contiguous(),
            weights,
            of_x,
            of_scale,
            of_shift,
            gradient.stride(),
            x.stride(),
            of_x.stride(),
            (scales.stride(0), weights.stride(0)),
            channels,
            sizes=(samples, places),
            room=power(samples),
            tile=_tile(x),
            single_below=_SINGLE,
        )
    return of_x, of_scale, of_shift


# ---------------------------------------------------------------------------------------------- operators


def _moments(x: Tensor, running_mean: Tensor, running_var: Tensor, weights: Tensor, eps: float, rate: float) -> Tensor:
    """`[b, c, p]`, `[c]`, `[c]`, `[b]` → `[4, c]`: mean and r to normalise with, running mean and variance afterwards.

    The running variance is torch's, unbiased: n/(n-1), for n values of a channel. One value has no variance; such a
    batch is normalised by what was seen before.
    """
    if x.dim() == 3:
        return _moments(x[None], running_mean[None], running_var[None], weights[None], eps, rate)[0]
    if available(x) and running_mean.dtype == torch.float32:
        return _moments_by_triton(x, running_mean, running_var, weights.float(), eps, rate)
    wide, places = x.to(running_mean.dtype), x.shape[3]
    weight = weights.to(wide.dtype)[:, :, None, None]
    mean = (wide * weight).sum((1, 3)) / places
    variance = ((wide - mean[:, None, :, None]) ** 2 * weight).sum((1, 3)) / places
    values = _values_of_a_channel(weights, places).to(wide.dtype)
    single = values < _SINGLE
    unbiased = variance * (values / (values - 1).clamp_min(1))
    fresh = rate * (~single).to(wide.dtype)
    r = torch.rsqrt(torch.where(single, running_var, variance) + eps)
    after = running_mean + fresh * (mean - running_mean), running_var + fresh * (unbiased - running_var)
    return torch.stack([torch.where(single, running_mean, mean), r, *after], dim=1)


def _values_of_a_channel(weights: Tensor, places: int) -> Tensor:
    """`[lanes, 1]`: how many values of a channel there are; weights are 1/b each."""
    return places / weights.amax(1, keepdim=True).clamp_min(1e-12)


def _norm(x: Tensor, scales: Tensor, shifts: Tensor, moments: Tensor, weights: Tensor) -> Tensor:
    """`[b, c, p]`, normalised, scaled and shifted."""
    if x.dim() == 3:
        return _norm(*(one[None] for one in (x, scales, shifts, moments, weights)))[0]
    if available(x) and moments.dtype == torch.float32:
        return _norm_by_triton(x, scales, shifts, moments)
    mean, r = (one[:, None, :, None] for one in moments[:, :2].unbind(1))
    scale, shift = (one[:, None, :, None].to(moments.dtype) for one in (scales, shifts))
    return torch.empty_like(x).copy_((x.to(moments.dtype) - mean) * r * scale + shift)


def _gradients(
    gradient: Tensor, x: Tensor, scales: Tensor, moments: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values, scales and shifts."""
    if x.dim() == 3:
        of_x, of_scale, of_shift = _gradients(*(one[None] for one in (gradient, x, scales, moments, weights)))
        return of_x[0], of_scale[0], of_shift[0]
    if available(x) and moments.dtype == torch.float32:
        return _gradients_by_triton(gradient, x, scales, moments, weights.float())
    mean, r = (one[:, None, :, None] for one in moments[:, :2].unbind(1))
    normal, wide, places = (x.to(moments.dtype) - mean) * r, gradient.to(moments.dtype), x.shape[3]
    of_scale, of_shift = (wide * normal).sum((1, 3)), wide.sum((1, 3))
    share = torch.where(_values_of_a_channel(weights, places) < _SINGLE, 0.0, weights.to(wide.dtype) / places)
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
    """A tensor under `vmap` as a stack of lanes, as it lies: kernels take any order of dimensions."""
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
    """The statistics are part of it: what is drawn from the gradient of x is what goes through them."""
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
