"""Triton kernels of a convolution, bias, max pool of 2 x 2 and ReLU in one, and of its gradients.

The convolution's own output, which is four times as large, exists only inside the chip. What is written is the pooled
output and, for each of its elements, where its maximum was. Sums over samples are partial sums added in a fixed order.
Terms (run, window, line, block, tile) are those of `pooled_convolution_tiles`.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from covey.runtime.stacked.convolution_kernels import collect_parts, whole_lanes
from covey.runtime.stacked.pooled_convolution_tiles import TUNED, PooledPlan
from covey.runtime.stacked.triton_support import on_device, processors, tl, triton

DEAD = 4
"""Where the maximum was: 2 · row + column in its square of four, or this if ReLU made it zero."""

if triton is not None:
    from covey.runtime.stacked.convolution_kernels import shifted_filters

    @triton.jit
    @no_type_check
    def _image_tile(images, row, run, runs, plan: tl.constexpr):
        """Load the inputs of runs for row 0 or 1 of the convolution, `[runs, lines, window]`; the line of ones is 1."""
        line = tl.arange(0, plan.tile_lines)
        column = tl.arange(0, plan.window)
        top = run // plan.segments % plan.out_h * 2 + (row - plan.pad_h)
        left = run % plan.segments * plan.span - plan.pad_w
        image = run // (plan.segments * plan.out_h)
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
    def _pooled_pixels(first_filter, run, runs, plan: tl.constexpr):
        """Return where the pooled pixels of runs are within a lane, `[runs, filters, half]`, and a mask."""
        filter = first_filter + tl.arange(0, plan.tile_filters)
        across = tl.arange(0, plan.half)
        left = run % plan.segments * plan.half
        place = run // plan.segments % plan.out_h * plan.out_w + left
        image = run // (plan.segments * plan.out_h)
        corner = image * (plan.filters * plan.out_h * plan.out_w) + place
        plane = filter * (plan.out_h * plan.out_w)
        known = (run < runs)[:, None, None] & (filter < plan.filters)[None, :, None]
        if plan.out_w % plan.half > 0:
            known = known & (left[:, None] + across[None, :] < plan.out_w)[:, None, :]
        return corner[:, None, None] + (plane[None, :, None] + across[None, None, :]), known

    @triton.jit
    @no_type_check
    def _larger(best, place, other, at: tl.constexpr):
        """Return the larger of two and its place; of equals the first, of numbers and NaN the NaN, as PyTorch does."""
        takes = (other > best) | (other != other)
        return tl.where(takes, other, best), tl.where(takes, at, place)

    @triton.jit(do_not_specialize=["runs", "tiles_each"])
    @no_type_check
    def _forward_kernel(
        images,
        kernels,
        biases,
        outputs,
        chosen,
        runs,
        tiles_each,
        image_lane,
        kernel_lane,
        bias_lane,
        output_lane,
        dead: tl.constexpr,
        plan: tl.constexpr,
    ):
        """Convolve and pool some tiles of runs of one lane. Grid: (parts of a lane, lanes, tiles of filters)."""
        lane = tl.program_id(1).to(tl.int64)
        first_filter = tl.program_id(2) * plan.tile_filters
        images += lane * image_lane
        outputs += lane * output_lane
        chosen += lane * output_lane
        kernel_tile = shifted_filters(kernels + lane * kernel_lane, 0, first_filter, plan)
        if biases is not None:
            filter = first_filter + tl.arange(0, plan.pooled) // plan.half
            bias = tl.load(biases + lane * bias_lane + filter, filter < plan.filters, 0.0).to(tl.float32)
        begin = tl.program_id(0) * tiles_each
        end = tl.minimum(begin + tiles_each, tl.cdiv(runs, plan.tile_runs))
        for tile in range(begin, end):
            run = tile * plan.tile_runs + tl.arange(0, plan.tile_runs)
            upper = _convolved(images, 0, run, runs, kernel_tile, plan)
            lower = _convolved(images, 1, run, runs, kernel_tile, plan)
            best, second = tl.split(upper)
            third, fourth = tl.split(lower)
            place = tl.full((plan.tile_runs, plan.pooled), 0, tl.int32)
            best, place = _larger(best, place, second, 1)
            best, place = _larger(best, place, third, 2)
            best, place = _larger(best, place, fourth, 3)
            if biases is not None:
                best += bias[None, :]
            # As it is stored: what rounds to zero has no gradient. What is not a number stays so.
            best = best.to(outputs.dtype.element_ty).to(tl.float32)
            zero = best <= 0
            result = tl.where(zero, 0.0, best).to(outputs.dtype.element_ty)
            place = tl.where(zero, dead, place).to(tl.uint8)
            pixels, known = _pooled_pixels(first_filter, run, runs, plan)
            tl.store(outputs + pixels, tl.reshape(result, (plan.tile_runs, plan.tile_filters, plan.half)), known)
            tl.store(chosen + pixels, tl.reshape(place, (plan.tile_runs, plan.tile_filters, plan.half)), known)

    @triton.jit
    @no_type_check
    def _convolved(images, row, run, runs, kernel_tile, plan: tl.constexpr):
        """Return one row of the convolution without its bias, `[runs, filters · half, 2 columns]`."""
        patches = tl.reshape(_image_tile(images, row, run, runs, plan), (plan.tile_runs, plan.elements))
        total = tl.dot(patches, kernel_tile, input_precision=plan.precision)
        return tl.reshape(total, (plan.tile_runs, plan.pooled, 2))

    @triton.jit
    @no_type_check
    def sent_to(gradient, place, at: tl.constexpr):
        """Return the gradients of pooled pixels whose maximum was at this place, zero for the others."""
        return tl.where(place == at, gradient, 0.0).to(gradient.dtype)

    @triton.jit(do_not_specialize=["runs", "tiles_each"])
    @no_type_check
    def _filter_gradient_kernel(
        images,
        gradients,
        chosen,
        sums,
        runs,
        tiles_each,
        image_lane,
        gradient_lane,
        dead: tl.constexpr,
        plan: tl.constexpr,
    ):
        """Sum products of windows and gradients over some tiles of runs of one lane.

        Grid: (parts of a lane, lanes, tiles of filters); each writes one tile of `sums`,
        `[lines · window, filters · span]`.
        """
        lane = tl.program_id(1).to(tl.int64)
        first_filter = tl.program_id(2) * plan.tile_filters
        images += lane * image_lane
        gradients += lane * gradient_lane
        chosen += lane * gradient_lane
        begin = tl.program_id(0) * tiles_each
        end = tl.minimum(begin + tiles_each, tl.cdiv(runs, plan.tile_runs))
        total = tl.full((plan.elements, plan.pixels), 0.0, tl.float32)
        for tile in range(begin, end):
            run = tile * plan.tile_runs + tl.arange(0, plan.tile_runs)
            pixels, known = _pooled_pixels(first_filter, run, runs, plan)
            gradient = tl.load(gradients + pixels, known, 0.0)
            place = tl.load(chosen + pixels, known, dead)
            for row in tl.static_range(2):
                image_tile = _image_tile(images, row, run, runs, plan)
                patches = tl.reshape(tl.permute(image_tile, (1, 2, 0)), (plan.elements, plan.tile_runs))
                even, odd = sent_to(gradient, place, 2 * row), sent_to(gradient, place, 2 * row + 1)
                routed = tl.reshape(tl.join(even, odd), (plan.tile_runs, plan.pixels))
                # Changes nothing, but Triton 3.6 does not compile a product of operands only joined and reshaped.
                routed = tl.where((run < runs)[:, None], routed, 0.0).to(gradients.dtype.element_ty)
                total = tl.dot(patches, routed, total, input_precision=plan.precision)
        number = (lane * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(2) + tl.program_id(2)
        place = tl.arange(0, plan.elements)[:, None] * plan.pixels + tl.arange(0, plan.pixels)[None, :]
        tl.store(sums + number * (plan.elements * plan.pixels) + place, total)


def tiles_per_program(tiles: int, programs: int) -> int:
    """Return the tiles of a program, which reads the filters once for all; there should be about so many programs."""
    return max(-(-tiles // programs), 1)


def forward_by_triton(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Convolve, pool and apply ReLU: `[lanes, b, i, h, w]` → `[lanes, b, o, h', w']`, and where the maxima were."""
    lanes, batch = x.shape[:2]
    plan = PooledPlan.of(x, weight.shape[1], weight.shape[3:], padding, ones=False)
    y = x.new_empty(lanes, batch, plan.filters, plan.out_h, plan.out_w)
    chosen = torch.empty_like(y, dtype=torch.uint8)
    x, weight = whole_lanes(x), whole_lanes(weight.to(x.dtype))
    bias = None if bias is None else whole_lanes(bias)
    runs = batch * plan.out_h * plan.segments
    tiles = -(-runs // plan.tile_runs)
    each = tiles_per_program(tiles * lanes * plan.filter_tiles, TUNED["forward"].programs * processors(x))
    with on_device(x):
        _forward_kernel[(-(-tiles // each), lanes, plan.filter_tiles)](
            x,
            weight,
            bias,
            y,
            chosen,
            runs,
            each,
            x.stride(0),
            weight.stride(0),
            0 if bias is None else bias.stride(0),
            y.stride(0),
            dead=DEAD,
            plan=plan,
            num_warps=TUNED["forward"].warps,
            num_stages=1,
        )
    return y, chosen


def filter_gradients_by_triton(
    gradient: Tensor, chosen: Tensor, x: Tensor, kernel: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of filters `[lanes, o, i, kh, kw]` and biases `[lanes, o]`, or `[lanes, 0]` without."""
    lanes, batch = x.shape[:2]
    plan = PooledPlan.of(x, gradient.shape[2], kernel, padding, ones=with_bias)
    x, gradient, chosen = whole_lanes(x), gradient.to(x.dtype).contiguous(), chosen.contiguous()
    runs = batch * plan.out_h * plan.segments
    tiles = -(-runs // plan.tile_runs)
    each = -(-tiles // max(TUNED["filters"].programs * processors(x) // (lanes * plan.filter_tiles), 1))
    parts = -(-tiles // each)
    sums = x.new_empty(lanes, parts, plan.filter_tiles, plan.elements * plan.pixels, dtype=torch.float32)
    with on_device(x):
        _filter_gradient_kernel[(parts, lanes, plan.filter_tiles)](
            x,
            gradient,
            chosen,
            sums,
            runs,
            each,
            x.stride(0),
            gradient.stride(0),
            dead=DEAD,
            plan=plan,
            num_warps=TUNED["filters"].warps,
            num_stages=1,
        )
    return collect_parts(sums, x, plan)
