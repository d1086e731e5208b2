"""Triton kernels of the stacked convolution and of its gradients; patches exist only inside the chip.

Terms (run, window, line, tile) are those of `convolution_tiles`. The gradient of the filters is the same product
transposed; a line of ones in it gives the gradient of the biases.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from covey.runtime.stacked.convolution_tiles import TilePlan
from covey.runtime.stacked.pooled_convolution_tiles import PooledPlan
from covey.runtime.stacked.triton_support import on_device, power, processors, tl, triton

WARPS = 4
"""Warps of a program."""

STAGES = 1
"""Tiles that are read ahead; one: other programs on the same multiprocessor hide the latency."""

if triton is not None:

    @triton.jit
    @no_type_check
    def _image_tile(images, first_line, run, runs, plan: tl.constexpr):
        """Load the inputs of runs, `[runs, lines, window]`; the line of ones is 1.

        Triton vectorises loads over the last dimension and spreads threads over the first: neighbouring runs are
        neighbours in memory.
        """
        line = first_line + tl.arange(0, plan.tile_lines)
        column = tl.arange(0, plan.window)
        top = run // plan.segments % plan.out_h * plan.stride_h - plan.pad_h
        left = run % plan.segments * (plan.span * plan.stride_w) - plan.pad_w
        image = (run // (plan.segments * plan.out_h)).to(tl.int64)
        corner = images + (image * (plan.channels * plan.height * plan.width) + (top * plan.width + left))
        down = line // plan.kernel_h * (plan.height * plan.width) + line % plan.kernel_h * plan.width
        known = (run < runs)[:, None, None] & (line < plan.lines)[None, :, None]
        if plan.pad_h > 0:
            y = top[:, None] + (line % plan.kernel_h)[None, :]
            known = known & ((y >= 0) & (y < plan.height))[:, :, None]
        if not plan.inside:
            x = left[:, None] + column[None, :]
            known = known & ((x >= 0) & (x < plan.width))[:, None, :]
        if plan.ones:
            unknown = tl.where(line == plan.lines, 1.0, 0.0).to(images.dtype.element_ty)[None, :, None]
        else:
            unknown = 0.0
        return tl.load(corner[:, None, None] + (down[None, :, None] + column[None, None, :]), known, unknown)

    @triton.jit
    @no_type_check
    def _pixels(outputs, first_filter, run, runs, plan: tl.constexpr):
        """Return the addresses of the output pixels of runs, `[runs, filters, span]`, and a mask."""
        filter = first_filter + tl.arange(0, plan.tile_filters)
        across = tl.arange(0, plan.span)
        left = run % plan.segments * plan.span
        place = run // plan.segments % plan.out_h * plan.out_w + left
        image = (run // (plan.segments * plan.out_h)).to(tl.int64)
        corner = outputs + (image * (plan.filters * plan.out_h * plan.out_w) + place)
        plane = filter * (plan.out_h * plan.out_w)
        known = (run < runs)[:, None, None] & (filter < plan.filters)[None, :, None]
        if plan.out_w % plan.span > 0:
            known = known & (left[:, None] + across[None, :] < plan.out_w)[:, None, :]
        return corner[:, None, None] + (plane[None, :, None] + across[None, None, :]), known

    @triton.jit
    @no_type_check
    def shifted_filters(kernels, first_line, first_filter, plan: tl.constexpr):
        """Load filters shifted for every pixel of a run, zero elsewhere: `[lines · window, filters · span]`."""
        element = tl.arange(0, plan.elements)[:, None]
        pixel = tl.arange(0, plan.pixels)[None, :]
        line = first_line + element // plan.window
        filter = first_filter + pixel // plan.span
        tap = element % plan.window - pixel % plan.span * plan.stride_w
        known = (line < plan.lines) & (filter < plan.filters) & (tap >= 0) & (tap < plan.kernel_w)
        return tl.load(kernels + ((filter * plan.lines + line) * plan.kernel_w + tap), known, 0.0)

    @triton.jit(do_not_specialize=["runs", "tiles_each"])
    @no_type_check
    def _forward_kernel(
        images,
        kernels,
        biases,
        outputs,
        runs,
        tiles_each,
        image_lane,
        kernel_lane,
        bias_lane,
        output_lane,
        plan: tl.constexpr,
    ):
        """Convolve some tiles of runs of one lane. Grid: (parts of a lane, lanes, tiles of filters)."""
        line_tiles: tl.constexpr = plan.line_tiles
        lane = tl.program_id(1).to(tl.int64)
        first_filter = tl.program_id(2) * plan.tile_filters
        images += lane * image_lane
        kernels += lane * kernel_lane
        outputs += lane * output_lane
        if line_tiles == 1:
            kernel_tile = shifted_filters(kernels, 0, first_filter, plan)
        if biases is not None:
            filter = first_filter + tl.arange(0, plan.pixels) // plan.span
            bias = tl.load(biases + lane * bias_lane + filter, filter < plan.filters, 0.0).to(tl.float32)
        begin = tl.program_id(0) * tiles_each
        end = tl.minimum(begin + tiles_each, tl.cdiv(runs, plan.tile_runs))
        for tile in range(begin, end):
            run = tile * plan.tile_runs + tl.arange(0, plan.tile_runs)
            total = tl.full((plan.tile_runs, plan.pixels), 0.0, tl.float32)
            for number in range(line_tiles):
                if line_tiles > 1:
                    kernel_tile = shifted_filters(kernels, number * plan.tile_lines, first_filter, plan)
                image_tile = _image_tile(images, number * plan.tile_lines, run, runs, plan)
                patches = tl.reshape(image_tile, (plan.tile_runs, plan.elements))
                total = tl.dot(patches, kernel_tile, total, input_precision=plan.precision)
            if biases is not None:
                total += bias[None, :]
            result = tl.reshape(total.to(outputs.dtype.element_ty), (plan.tile_runs, plan.tile_filters, plan.span))
            pointers, known = _pixels(outputs, first_filter, run, runs, plan)
            tl.store(pointers, result, known)

    @triton.jit(do_not_specialize=["runs", "tiles_each"])
    @no_type_check
    def _gradient_kernel(
        images,
        gradients,
        sums,
        runs,
        tiles_each,
        image_lane,
        gradient_lane,
        plan: tl.constexpr,
    ):
        """Sum products of windows and gradients over some tiles of runs of one lane.

        Grid: (parts of a lane, lanes, tiles of filters x tiles of lines); each writes one tile of `sums`,
        `[lines · window, filters · span]`.
        """
        lane = tl.program_id(1).to(tl.int64)
        first_line = tl.program_id(2) % plan.line_tiles * plan.tile_lines
        first_filter = tl.program_id(2) // plan.line_tiles * plan.tile_filters
        images += lane * image_lane
        gradients += lane * gradient_lane
        begin = tl.program_id(0) * tiles_each
        end = tl.minimum(begin + tiles_each, tl.cdiv(runs, plan.tile_runs))
        total = tl.full((plan.elements, plan.pixels), 0.0, tl.float32)
        for tile in range(begin, end):
            run = tile * plan.tile_runs + tl.arange(0, plan.tile_runs)
            image_tile = _image_tile(images, first_line, run, runs, plan)
            pointers, known = _pixels(gradients, first_filter, run, runs, plan)
            gradient_tile = tl.load(pointers, known, 0.0)
            patches = tl.reshape(tl.permute(image_tile, (1, 2, 0)), (plan.elements, plan.tile_runs))
            pixels = tl.reshape(gradient_tile, (plan.tile_runs, plan.pixels))
            # Changes nothing, but Triton 3.6 does not compile a product of operands only loaded and reshaped.
            pixels = tl.where((run < runs)[:, None], pixels, 0.0).to(gradients.dtype.element_ty)
            total = tl.dot(patches, pixels, total, input_precision=plan.precision)
        number = (lane * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(2) + tl.program_id(2)
        place = tl.arange(0, plan.elements)[:, None] * plan.pixels + tl.arange(0, plan.pixels)[None, :]
        tl.store(sums + number * (plan.elements * plan.pixels) + place, total)

    @triton.jit(do_not_specialize=["parts"])
    @no_type_check
    def _collect_kernel(
        sums,
        of_kernels,
        of_biases,
        parts,
        plan: tl.constexpr,
        parts_at_once: tl.constexpr,
        taps_at_once: tl.constexpr,
    ):
        """Sum over the parts of a lane and the pixels of a run, for some taps. Grid: (parts of the taps, lanes).

        Taps are the elements of all filters, then one for each bias: the first tap of the line of ones.
        """
        taps: tl.constexpr = plan.filters * plan.lines * plan.kernel_w
        tile_size: tl.constexpr = plan.elements * plan.pixels
        span: tl.constexpr = plan.span
        lane = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * taps_at_once + tl.arange(0, taps_at_once)
        of_bias = at >= taps
        filter = tl.where(of_bias, at - taps, at // (plan.lines * plan.kernel_w))
        line = tl.where(of_bias, plan.lines, at // plan.kernel_w % plan.lines)
        tap = tl.where(of_bias, 0, at % plan.kernel_w)
        tile = filter // plan.tile_filters * plan.line_tiles + line // plan.tile_lines
        element = line % plan.tile_lines * plan.window + tap
        place = tile * tile_size + element * plan.pixels + filter % plan.tile_filters * plan.span
        wanted = at < taps + plan.filters * plan.ones
        total = tl.full((parts_at_once, taps_at_once), 0.0, tl.float32)
        for first in range(0, parts, parts_at_once):
            part = first + tl.arange(0, parts_at_once)
            start = sums + (lane * parts + part)[:, None] * (plan.line_tiles * plan.filter_tiles * tile_size)
            known = (part < parts)[:, None] & wanted[None, :]
            for pixel in tl.static_range(span):
                shift = pixel * (plan.stride_w * plan.pixels + 1)
                total += tl.load(start + (place + shift)[None, :], known, 0.0)
        result = tl.sum(total, axis=0)
        tl.store(of_kernels + lane * taps + at, result, wanted & (at < taps))
        if plan.ones:
            tl.store(of_biases + lane * plan.filters + (at - taps), result, wanted & of_bias)


def forward_by_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Convolve: `[lanes, b, i, h, w]`, `[lanes, o, i, kh, kw]`, `[lanes, o]` → `[lanes, b, o, h', w']`, contiguous."""
    lanes, batch = x.shape[:2]
    plan = TilePlan.of(x, weight.shape[1], weight.shape[3:], stride, padding, ones=False)
    y = x.new_empty(lanes, batch, plan.filters, plan.out_h, plan.out_w)
    x, weight = whole_lanes(x), whole_lanes(weight.to(x.dtype))
    bias = None if bias is None else whole_lanes(bias)
    runs = batch * plan.out_h * plan.segments
    tiles = -(-runs // plan.tile_runs)
    # A program reads the filters once for all its tiles, but every multiprocessor should have several programs.
    each = min(max(tiles * lanes * plan.filter_tiles // (8 * processors(x)), 1), 8)
    with on_device(x):
        _forward_kernel[(-(-tiles // each), lanes, plan.filter_tiles)](
            x,
            weight,
            bias,
            y,
            runs,
            each,
            x.stride(0),
            weight.stride(0),
            0 if bias is None else bias.stride(0),
            y.stride(0),
            plan=plan,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return y


def gradients_by_triton(
    gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of filters `[lanes, o, i, kh, kw]` and biases `[lanes, o]`, or `[lanes, 0]` without.

    From output gradients `[lanes, b, o, h', w']` and images `[lanes, b, i, h, w]`.
    """
    lanes, batch = x.shape[:2]
    plan = TilePlan.of(x, gradient.shape[2], kernel, stride, padding, ones=with_bias)
    x, gradient = whole_lanes(x), whole_lanes(gradient.to(x.dtype))
    runs = batch * plan.out_h * plan.segments
    tiles = -(-runs // plan.tile_runs)
    number = plan.line_tiles * plan.filter_tiles
    # As many parts as run at the same time: each writes a whole tile of sums, which are added in a fixed order.
    each = -(-tiles // max(4 * processors(x) // (lanes * number), 1))
    parts = -(-tiles // each)
    sums = torch.empty(lanes, parts, number, plan.elements * plan.pixels, dtype=torch.float32, device=x.device)
    with on_device(x):
        _gradient_kernel[(parts, lanes, number)](
            x,
            gradient,
            sums,
            runs,
            each,
            x.stride(0),
            gradient.stride(0),
            plan=plan,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return collect_parts(sums, x, plan)


def collect_parts(sums: Tensor, x: Tensor, plan: TilePlan | PooledPlan) -> tuple[Tensor, Tensor]:
    """Add partial sums `[lanes, parts, tiles, elements · pixels]` in a fixed order: gradients of filters and biases."""
    lanes, parts = sums.shape[:2]
    of_kernels = x.new_empty(lanes, plan.filters, plan.channels, plan.kernel_h, plan.kernel_w)
    of_biases = x.new_empty(lanes, plan.filters if plan.ones else 0)
    taps = plan.filters * (plan.lines * plan.kernel_w + plan.ones)
    with on_device(x):
        _collect_kernel[(-(-taps // 64), lanes)](
            sums, of_kernels, of_biases, parts, plan=plan, parts_at_once=min(power(parts), 16), taps_at_once=64
        )
    return of_kernels, of_biases


def whole_lanes(stack: Tensor) -> Tensor:
    """Return the stack with each lane contiguous; a lane shared by all is not copied."""
    return stack if stack[0].is_contiguous() else stack.contiguous()
