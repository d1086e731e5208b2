"""Triton kernels of a convolution with many channels and of its gradients: matrix products that never write patches.

Tensors are `[lanes, b, h, w, c]` and `[lanes, o, kh, kw, c]` in memory. Sums are in float32; those over pixels are
partial sums added in a fixed order. Terms (pixel, element, tile) are those of `tiled_convolution_plan`.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from covey.runtime.stacked.convolution_kernels import whole_lanes
from covey.runtime.stacked.tiled_convolution_plan import (
    TUNED,
    TiledPlan,
    Tiling,
    image_plan,
    output_plan,
    warps_for,
)
from covey.runtime.stacked.triton_support import on_device, processors, tl, triton

if triton is not None:

    @triton.jit
    @no_type_check
    def _elements(number, plan: tl.constexpr):
        """Return place under the filters, channel, and a mask, of the elements of a tile.

        The place is one number where all elements share it: then there is less to compute.
        """
        element = number * plan.tile_elements + tl.arange(0, plan.tile_elements)
        tap = number * plan.tile_elements // plan.channels if plan.whole else element // plan.channels
        return tap, element % plan.channels, element < plan.elements

    @triton.jit
    @no_type_check
    def _patches(images, number, pixel, pixels, plan: tl.constexpr):
        """Load the elements that pixels depend on, `[pixels, elements]`, of one tile of elements."""
        tap, channel, known = _elements(number, plan)
        top = pixel // plan.out_w % plan.out_h * plan.stride_h - plan.pad_h
        left = pixel % plan.out_w * plan.stride_w - plan.pad_w
        image = pixel // (plan.out_h * plan.out_w)
        down, across = tap // plan.kernel_w, tap % plan.kernel_w
        known = (pixel < pixels)[:, None] & known[None, :]
        # Two sums, of pixels and of elements alone: each is computed for few numbers.
        corner = ((image * plan.height + top) * plan.width + left) * plan.channels
        at = corner[:, None] + ((down * plan.width + across) * plan.channels + channel)[None, :]
        if plan.padded:
            if plan.whole:
                y, x = (top + down)[:, None], (left + across)[:, None]
            else:
                y, x = top[:, None] + down[None, :], left[:, None] + across[None, :]
            known = known & (y >= 0) & (x >= 0)
            if plan.spread_h > 1 or plan.spread_w > 1:
                known = known & (y % plan.spread_h == 0) & (x % plan.spread_w == 0)
                y, x = y // plan.spread_h, x // plan.spread_w
                row = image[:, None] * plan.height + y
                at = (row * plan.width + x) * plan.channels + channel[None, :]
            known = known & (y < plan.height) & (x < plan.width)
        return tl.load(images + at, known, 0.0)

    @triton.jit(do_not_specialize=["pixels"])
    @no_type_check
    def _output_kernel(
        images,
        kernels,
        biases,
        outputs,
        pixels,
        image_lane,
        kernel_lane,
        bias_lane,
        output_lane,
        plan: tl.constexpr,
    ):
        """Compute a tile of pixels and filters of one lane. Grid: (tiles, the filters' in turn; lanes)."""
        filter_tiles: tl.constexpr = plan.filter_tiles
        element_tiles: tl.constexpr = plan.element_tiles
        lane = tl.program_id(1).to(tl.int64)
        pixel = tl.program_id(0) // filter_tiles * plan.tile_pixels + tl.arange(0, plan.tile_pixels)
        filter = tl.program_id(0) % filter_tiles * plan.tile_filters + tl.arange(0, plan.tile_filters)
        images += lane * image_lane
        kernels += lane * kernel_lane + plan.first_tap
        outputs += lane * output_lane
        total = tl.full((plan.tile_pixels, plan.tile_filters), 0.0, tl.float32)
        for number in range(element_tiles):
            patches = _patches(images, number, pixel, pixels, plan)
            tap, channel, known = _elements(number, plan)
            place = (tap * plan.tap_step + channel * plan.channel_step)[:, None] + (filter * plan.filter_step)[None, :]
            filters = tl.load(kernels + place, known[:, None] & (filter < plan.filters)[None, :], 0.0)
            total = tl.dot(patches, filters, total, input_precision=plan.precision)
        if biases is not None:
            bias = tl.load(biases + lane * bias_lane + filter, filter < plan.filters, 0.0)
            total += bias.to(tl.float32)[None, :]
        known = (pixel < pixels)[:, None] & (filter < plan.filters)[None, :]
        at = (pixel * plan.filters)[:, None] + filter[None, :]
        tl.store(outputs + at, total.to(outputs.dtype.element_ty), known)

    @triton.jit(do_not_specialize=["pixels", "tiles_each"])
    @no_type_check
    def _filter_kernel(
        images,
        gradients,
        sums,
        pixels,
        tiles_each,
        image_lane,
        gradient_lane,
        plan: tl.constexpr,
    ):
        """Sum the products of gradients and elements over some tiles of pixels of one lane.

        Grid: (tiles of elements, in turn, and of filters; parts of the pixels; lanes). Each writes its tile of
        `sums`, `[lanes, parts, filters, elements]`.
        """
        element_tiles: tl.constexpr = plan.element_tiles
        lane = tl.program_id(2).to(tl.int64)
        number = tl.program_id(0) % element_tiles
        filter = tl.program_id(0) // element_tiles * plan.tile_filters + tl.arange(0, plan.tile_filters)
        images += lane * image_lane
        gradients += lane * gradient_lane
        begin = tl.program_id(1) * tiles_each
        end = tl.minimum(begin + tiles_each, tl.cdiv(pixels, plan.tile_pixels))
        total = tl.full((plan.tile_filters, plan.tile_elements), 0.0, tl.float32)
        for tile in range(begin, end):
            pixel = tile * plan.tile_pixels + tl.arange(0, plan.tile_pixels)
            patches = _patches(images, number, pixel, pixels, plan)
            known = (pixel < pixels)[:, None] & (filter < plan.filters)[None, :]
            gradient = tl.load(gradients + ((pixel * plan.filters)[:, None] + filter[None, :]), known, 0.0)
            total = tl.dot(tl.trans(gradient), patches, total, input_precision=plan.precision)
        sums += (lane * tl.num_programs(1) + tl.program_id(1)) * (plan.filters * plan.elements)
        element = number * plan.tile_elements + tl.arange(0, plan.tile_elements)
        known = (filter < plan.filters)[:, None] & (element < plan.elements)[None, :]
        at = (filter * plan.elements)[:, None] + element[None, :]
        tl.store(sums + at, total.to(sums.dtype.element_ty), known)

    @triton.jit(do_not_specialize=["parts"])
    @no_type_check
    def _collect_kernel(sums, found, parts, size: tl.constexpr, at_once: tl.constexpr):
        """Add the parts of a lane, one after another. Grid: (tiles, lanes)."""
        lane = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * at_once + tl.arange(0, at_once)
        sums += lane * parts * size
        total = tl.full((at_once,), 0.0, tl.float32)
        for _ in range(parts):
            total += tl.load(sums + at, at < size, 0.0)
            sums += size
        tl.store(found + lane * size + at, total.to(found.dtype.element_ty), at < size)


def output_by_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Convolve: `[lanes, b, h, w, i]`, `[lanes, o, kh, kw, i]`, `[lanes, o]` → `[lanes, b, h', w', o]`."""
    tiling = TUNED["forward"]
    plan = output_plan(x, weight.shape[1], weight.shape[2:4], stride, padding, tiling)
    return _computed(x, weight.to(x.dtype), bias, plan, tiling)


def images_by_triton(
    gradient: Tensor, weight: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the gradient of images `[lanes, b, *size, i]` from that of the output, `[lanes, b, h', w', o]`."""
    tiling = TUNED["images"]
    plan = image_plan(gradient, weight.shape[-1], weight.shape[2:4], size, stride, padding, tiling)
    return _computed(gradient, weight.to(gradient.dtype), None, plan, tiling)


def _computed(x: Tensor, weight: Tensor, bias: Tensor | None, plan: TiledPlan, tiling: Tiling) -> Tensor:
    lanes, batch = x.shape[:2]
    y = x.new_empty(lanes, batch, plan.out_h, plan.out_w, plan.filters)
    x, weight = whole_lanes(x), whole_lanes(weight)
    bias = None if bias is None else whole_lanes(bias)
    pixels = batch * plan.out_h * plan.out_w
    with on_device(x):
        _output_kernel[(-(-pixels // plan.tile_pixels) * plan.filter_tiles, lanes)](
            x,
            weight,
            bias,
            y,
            pixels,
            x.stride(0),
            weight.stride(0),
            0 if bias is None else bias.stride(0),
            y.stride(0),
            plan=plan,
            num_warps=warps_for(plan.tile_pixels * plan.tile_filters, tiling.warps),
            num_stages=tiling.stages,
        )
    return y


def filters_by_triton(
    gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the gradient of the filters `[lanes, o, kh, kw, i]` from that of the output, `[lanes, b, h', w', o]`."""
    tiling, (lanes, batch) = TUNED["filters"], x.shape[:2]
    plan = output_plan(x, gradient.shape[-1], kernel, stride, padding, tiling)
    x, gradient = whole_lanes(x), whole_lanes(gradient.to(x.dtype))
    pixels, number = batch * plan.out_h * plan.out_w, plan.filter_tiles * plan.element_tiles
    tiles = -(-pixels // plan.tile_pixels)
    # As many parts as run at the same time; one is the result itself.
    each = -(-tiles // max(tiling.programs * processors(x) // (lanes * number), 1))
    parts = -(-tiles // each)
    found = x.new_empty(lanes, plan.filters, *kernel, plan.channels)
    size = plan.filters * plan.elements
    sums = found if parts == 1 else x.new_empty(lanes, parts, size, dtype=torch.float32)
    with on_device(x):
        _filter_kernel[(number, parts, lanes)](
            x,
            gradient,
            sums,
            pixels,
            each,
            x.stride(0),
            gradient.stride(0),
            plan=plan,
            num_warps=warps_for(plan.tile_filters * plan.tile_elements, tiling.warps),
            num_stages=tiling.stages,
        )
        if parts > 1:
            _collect_kernel[(-(-size // 1024), lanes)](sums, found, parts, size=size, at_once=1024)
    return found
