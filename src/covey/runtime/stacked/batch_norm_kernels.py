"""Triton kernels of masked batch norm and its gradients. The formulas are in `batch_norm`.

Values are `[lanes, b, c, p]`: b samples, c channels and p values of a channel in each sample.
"""

from typing import no_type_check

import torch
from torch import Tensor

from covey.runtime.stacked.triton_support import on_device, power, tl, triton

_TILE = 1024
"""Values that a program holds at a time; a power of two."""

SINGLE = 1.5
"""A channel with fewer values than this in a batch has no variance."""

if triton is not None:

    @triton.jit
    @no_type_check
    def _values(tensor, first, lane, channel, sizes: tl.constexpr, strides, tile: tl.constexpr):
        """Return, for a tile of values of one channel of one lane: their addresses, a mask, and their samples."""
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
        """Return the largest weight of a sample, 1/b."""
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
        """Write mean and r to normalise with, and the new running mean and variance. Grid: (channels, lanes)."""
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
        """Normalise, scale and shift. Grid: (channels, lanes, tiles of values)."""
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
        """Write the gradients of values, scales and shifts. Grid: (channels, lanes)."""
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
        # A single value was normalised by the running statistics, which do not depend on it.
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
    """Return the tile size for values `[lanes, b, c, p]`."""
    return max(16, min(_TILE, power(x.shape[1] * x.shape[3])))


def _rows(vectors: Tensor) -> Tensor:
    """Return `[lanes, n]` with each lane contiguous."""
    return vectors if vectors.stride(1) == 1 or vectors.shape[1] == 1 else vectors.contiguous()


def moments_by_triton(
    x: Tensor, running_mean: Tensor, running_var: Tensor, weights: Tensor, eps: float, rate: float
) -> Tensor:
    """Return mean, r, new running mean and new running variance: `[lanes, 4, c]`."""
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
            single_below=SINGLE,
        )
    return moments


def norm_by_triton(x: Tensor, scales: Tensor, shifts: Tensor, moments: Tensor) -> Tensor:
    """Normalise, scale and shift values `[lanes, b, c, p]`."""
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


def gradients_by_triton(
    gradient: Tensor, x: Tensor, scales: Tensor, moments: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of values `[lanes, b, c, p]`, scales and shifts `[lanes, c]`."""
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
            single_below=SINGLE,
        )
    return of_x, of_scale, of_shift
