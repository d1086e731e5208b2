"""The Triton kernel for the gradient of the images of a pooled convolution.

Gradients of pooled pixels are spread over the places that they came from inside the chip alone. Terms (block, line,
tile) are those of `pooled_convolution_tiles`.
"""

from collections.abc import Sequence
from typing import no_type_check

from torch import Tensor

from covey.runtime.stacked.convolution_kernels import whole_lanes
from covey.runtime.stacked.pooled_convolution_kernels import DEAD, tiles_per_program
from covey.runtime.stacked.pooled_convolution_tiles import TUNED, ImagePlan
from covey.runtime.stacked.triton_support import on_device, processors, tl, triton

if triton is not None:
    from covey.runtime.stacked.pooled_convolution_kernels import sent_to

    @triton.jit
    @no_type_check
    def _turned_filters(kernels, first_line, plan: tl.constexpr):
        """Load the filters that lead from places in pooled pixels to a block's pixels, `[elements, pixels]`."""
        element = tl.arange(0, plan.elements)[:, None]
        pixel = tl.arange(0, plan.pixels)[None, :]
        line = first_line + element // (4 * plan.window)
        kernel_row = pixel // plan.span % 2 + 2 * (plan.back_h - line % plan.rows) - element % 2
        kernel_column = pixel % plan.span + 2 * (plan.back_w - element // 4 % plan.window) - element % 4 // 2
        channel = pixel // (2 * plan.span)
        known = (line < plan.lines) & (channel < plan.channels)
        known = known & (kernel_row >= 0) & (kernel_row < plan.kernel_h)
        known = known & (kernel_column >= 0) & (kernel_column < plan.kernel_w)
        at = ((line // plan.rows * plan.channels + channel) * plan.kernel_h + kernel_row) * plan.kernel_w
        return tl.load(kernels + (at + kernel_column), known, 0.0)

    @triton.jit
    @no_type_check
    def _routed_tile(gradients, chosen, first_line, run, runs, dead: tl.constexpr, plan: tl.constexpr):
        """Load the gradients of pooled pixels at the places they go to, `[blocks, lines · window · 4]`."""
        line = first_line + tl.arange(0, plan.tile_lines)
        column = tl.arange(0, plan.window)
        top = run // plan.segments % plan.block_rows + (plan.first_row - plan.back_h)
        left = (run % plan.segments + plan.first_block) * (plan.span // 2) - plan.back_w
        image = run // (plan.segments * plan.block_rows)
        corner = image * (plan.filters * plan.out_h * plan.out_w) + (top * plan.out_w + left)
        down = line // plan.rows * (plan.out_h * plan.out_w) + line % plan.rows * plan.out_w
        y = top[:, None] + (line % plan.rows)[None, :]
        x = left[:, None] + column[None, :]
        known = ((run < runs)[:, None] & (line < plan.lines)[None, :] & (y >= 0) & (y < plan.out_h))[:, :, None]
        known = known & ((x >= 0) & (x < plan.out_w) & (column < plan.columns)[None, :])[:, None, :]
        at = corner[:, None, None] + (down[None, :, None] + column[None, None, :])
        gradient = tl.load(gradients + at, known, 0.0)
        place = tl.load(chosen + at, known, dead)
        upper = tl.join(sent_to(gradient, place, 0), sent_to(gradient, place, 1))
        lower = tl.join(sent_to(gradient, place, 2), sent_to(gradient, place, 3))
        # The last dimensions are column and row.
        return tl.reshape(tl.join(upper, lower), (plan.tile_runs, plan.elements))

    @triton.jit(do_not_specialize=["runs", "tiles_each"])
    @no_type_check
    def _image_gradient_kernel(
        gradients,
        chosen,
        kernels,
        images,
        runs,
        tiles_each,
        gradient_lane,
        kernel_lane,
        image_lane,
        dead: tl.constexpr,
        plan: tl.constexpr,
    ):
        """Compute the gradients of images for some tiles of blocks of one lane. Grid: (parts of a lane, lanes)."""
        line_tiles: tl.constexpr = plan.line_tiles
        lane = tl.program_id(1).to(tl.int64)
        gradients += lane * gradient_lane
        chosen += lane * gradient_lane
        kernels += lane * kernel_lane
        images += lane * image_lane
        if plan.kept:
            kept = ()
            for number in tl.static_range(line_tiles):
                # Triton knows no unpacking.
                kept = kept + (_turned_filters(kernels, number * plan.tile_lines, plan),)  # noqa: RUF005
        begin = tl.program_id(0) * tiles_each
        end = tl.minimum(begin + tiles_each, tl.cdiv(runs, plan.tile_runs))
        pixel = tl.arange(0, plan.pixels)
        channel = pixel // (2 * plan.span)
        for tile in range(begin, end):
            run = tile * plan.tile_runs + tl.arange(0, plan.tile_runs)
            total = tl.full((plan.tile_runs, plan.pixels), 0.0, tl.float32)
            if plan.kept:
                for number in tl.static_range(line_tiles):
                    routed = _routed_tile(gradients, chosen, number * plan.tile_lines, run, runs, dead, plan)
                    total = tl.dot(routed, kept[number], total, input_precision=plan.precision)
            else:
                for number in range(line_tiles):
                    routed = _routed_tile(gradients, chosen, number * plan.tile_lines, run, runs, dead, plan)
                    filters = _turned_filters(kernels, number * plan.tile_lines, plan)
                    total = tl.dot(routed, filters, total, input_precision=plan.precision)
            top = (run // plan.segments % plan.block_rows + plan.first_row) * 2 - plan.pad_h
            left = (run % plan.segments + plan.first_block) * plan.span - plan.pad_w
            image = run // (plan.segments * plan.block_rows)
            y = top[:, None] + (pixel // plan.span % 2)[None, :]
            x = left[:, None] + (pixel % plan.span)[None, :]
            known = (run < runs)[:, None] & (channel < plan.channels)[None, :]
            known = known & (y >= 0) & (y < plan.height) & (x >= 0) & (x < plan.width)
            corner = image * (plan.channels * plan.height * plan.width) + (top * plan.width + left)
            inner = channel * (plan.height * plan.width) + pixel // plan.span % 2 * plan.width + pixel % plan.span
            tl.store(images + (corner[:, None] + inner[None, :]), total.to(images.dtype.element_ty), known)


def image_gradient_by_triton(
    gradient: Tensor, chosen: Tensor, weight: Tensor, size: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the gradient of the images `[lanes, b, i, h, w]`, whose height and width are `size`."""
    lanes, batch = gradient.shape[:2]
    plan = ImagePlan.of(gradient, weight, size, padding)
    of_images = gradient.new_empty(lanes, batch, plan.channels, plan.height, plan.width)
    gradient, chosen, weight = gradient.contiguous(), chosen.contiguous(), whole_lanes(weight.to(gradient.dtype))
    runs = batch * plan.block_rows * plan.segments
    tiles = -(-runs // plan.tile_runs)
    each = tiles_per_program(tiles * lanes, TUNED["images"].programs * processors(gradient))
    with on_device(gradient):
        _image_gradient_kernel[(-(-tiles // each), lanes)](
            gradient,
            chosen,
            weight,
            of_images,
            runs,
            each,
            gradient.stride(0),
            weight.stride(0),
            of_images.stride(0),
            dead=DEAD,
            plan=plan,
            num_warps=TUNED["images"].warps,
            num_stages=1,
        )
    return of_images
