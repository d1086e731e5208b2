"""The first convolution of a stack of models, computed without writing the patches of the images to memory.

Images have few channels, and every lane has its own kernels, so neither grouped convolutions nor patches written out
as a matrix are fast. Here patches exist only inside of the chip. A *run* is `span` neighbouring output pixels of one
row; it depends on a *window* of input columns in each of the `channels · kernel height` input *lines*. So a run is one
row of a matrix product, `[runs, lines · window] @ [lines · window, filters · span]`, whose right side holds each
kernel `span` times, shifted. Neighbouring elements are read together, and each of them serves all pixels of the run.

The same product transposed gives the gradient of the kernels, and a line of ones in it that of the biases. The
gradient of the images is a convolution again. On a GPU the products are Triton kernels; elsewhere, and in float64,
the operators below compute the same with PyTorch's convolution.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.model.operators import define, stacked

triton: Any = None
tl: Any = None
with contextlib.suppress(ImportError):
    triton, tl = import_module("triton"), import_module("triton.language")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run in Triton's interpreter, on the CPU: for tests."""

WARPS = 4
"""Warps of a program."""

STAGES = 1
"""Tiles that are read ahead; one: other programs on the same processor hide the waiting."""

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDEST_WINDOW = 32
"""Wider kernels than this are left to PyTorch."""


def available(x: Tensor) -> bool:
    """Whether images like these are convolved by the Triton kernels, rather than by PyTorch."""
    if triton is None or x.dtype not in _DTYPES:
        return False
    return INTERPRETED or (x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 0))


def image_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] | str = (0, 0),
) -> Tensor:
    """Images `[b, i, h, w]`, kernels `[o, i, kh, kw]`, biases `[o]` → `[b, o, h', w']`, also under `vmap`.

    Without `vmap`, all three may have a first dimension `lanes`. The gradient for the images needs stride 1.
    """
    kernel_h, kernel_w = weight.shape[-2:]
    if padding == "same":
        above, left = (kernel_h - 1) // 2, (kernel_w - 1) // 2
        x = F.pad(x, (left, kernel_w - 1 - left, above, kernel_h - 1 - above))
    pads = [0, 0] if isinstance(padding, str) else [int(pad) for pad in padding]
    result: Tensor = torch.ops.covey.image_convolution(x, weight, bias, [int(step) for step in stride], pads)
    return result


# ------------------------------------------------------------------------------------------------- shapes


@dataclass(frozen=True)
class Plan:
    """Sizes of a convolution and of the tiles that it is cut into; those of tiles are powers of two.

    All of them are fields, also what follows from others: Triton knows compiled kernels again by the fields.
    """

    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    out_h: int
    out_w: int
    lines: int
    """Input lines that an output row depends on."""
    ones: bool
    """Whether a line of ones stands after them."""
    span: int
    """Output pixels of a run."""
    window: int
    """Input columns that a run depends on, rounded up."""
    segments: int
    """Runs of an output row; the last may be cut short."""
    inside: bool
    """Whether no window reaches beyond the columns of its image."""
    tile_lines: int
    tile_runs: int
    tile_filters: int
    line_tiles: int
    filter_tiles: int
    elements: int
    """Elements of a run in a tile: lines · window."""
    pixels: int
    """Pixels of a run in a tile: filters · span."""
    precision: str
    """How float32 is multiplied: as tf32, or in full."""

    @classmethod
    def of(
        cls,
        x: Tensor,
        filters: int,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        *,
        ones: bool,
    ) -> "Plan":
        """For images `[..., i, h, w]`."""
        channels, height, width = x.shape[-3:]
        out_h, out_w = _output_size(x, kernel, stride, padding)

        def window(span: int) -> int:
            return power((span - 1) * stride[1] + kernel[1])

        # Few elements to read for each pixel; of equals the shorter run, which multiplies fewer zeros.
        span = min((1, 2, 4), key=lambda span: (window(span) * -(-out_w // span), span))
        wide, segments, lines = window(span), -(-out_w // span), channels * kernel[0]
        tile_lines = max(min(power(lines + ones), 128 // wide), 16 // wide, 1)
        tile_filters = max(min(power(filters), 128 // span), 16 // span)
        in_full = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        return cls(
            channels=channels,
            height=height,
            width=width,
            filters=filters,
            kernel_h=kernel[0],
            kernel_w=kernel[1],
            stride_h=stride[0],
            stride_w=stride[1],
            pad_h=padding[0],
            pad_w=padding[1],
            out_h=out_h,
            out_w=out_w,
            lines=lines,
            ones=ones,
            span=span,
            window=wide,
            segments=segments,
            inside=padding[1] == 0 and (segments - 1) * span * stride[1] + wide <= width,
            tile_lines=tile_lines,
            tile_runs=32 if in_full else min(256 // x.element_size(), 8192 // (tile_filters * span)),
            tile_filters=tile_filters,
            line_tiles=-(-(lines + ones) // tile_lines),
            filter_tiles=-(-filters // tile_filters),
            elements=tile_lines * wide,
            pixels=tile_filters * span,
            precision="ieee" if in_full else "tf32",
        )


def _output_size(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Height and width of what images `[..., h, w]` become."""
    return [(x.shape[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (-2, -1)]


def power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


# ------------------------------------------------------------------------------------------------ kernels

if triton is not None:

    @triton.jit
    @no_type_check
    def _image_tile(images, first_line, run, runs, plan: tl.constexpr):
        """What runs depend on, `[runs, lines, window]`; in a line of ones, 1.

        Triton spreads threads over the first dimension, once the last is read at a time: neighbouring runs are
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
        """Where the output pixels of runs are, `[runs, filters, span]`, and which of them there are."""
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
    def _kernel_tile(kernels, first_line, first_filter, plan: tl.constexpr):
        """Kernels shifted for every pixel of a run, zero elsewhere: `[lines · window, filters · span]`."""
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
        """Some tiles of runs of one lane; grid: (parts of a lane, lanes, tiles of filters)."""
        line_tiles: tl.constexpr = plan.line_tiles
        lane = tl.program_id(1).to(tl.int64)
        first_filter = tl.program_id(2) * plan.tile_filters
        images += lane * image_lane
        kernels += lane * kernel_lane
        outputs += lane * output_lane
        if line_tiles == 1:
            kernel_tile = _kernel_tile(kernels, 0, first_filter, plan)
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
                    kernel_tile = _kernel_tile(kernels, number * plan.tile_lines, first_filter, plan)
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
        """Products of windows and gradients, summed over some tiles of runs of one lane.

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
            # No change, but Triton 3.6 does not compile the product of what is only loaded and reshaped.
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
        """Sums over the parts of a lane and the pixels of a run, for some taps; grid: (parts of the taps, lanes).

        Taps are those of all kernels, and after them one for each bias: the first tap of the line of ones.
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
    """Stacks `[lanes, b, i, h, w]`, `[lanes, o, i, kh, kw]`, `[lanes, o]` → `[lanes, b, o, h', w']`, contiguous."""
    lanes, batch = x.shape[:2]
    plan = Plan.of(x, weight.shape[1], weight.shape[3:], stride, padding, ones=False)
    y = x.new_empty(lanes, batch, plan.filters, plan.out_h, plan.out_w)
    x, weight = _whole_lanes(x), _whole_lanes(weight.to(x.dtype))
    bias = None if bias is None else _whole_lanes(bias)
    runs = batch * plan.out_h * plan.segments
    tiles = -(-runs // plan.tile_runs)
    # Kernels are read once for all tiles of a program, but every processor should have several programs.
    each = min(max(tiles * lanes * plan.filter_tiles // (8 * _processors(x)), 1), 8)
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
    """Gradients `[lanes, b, o, h', w']` and images `[lanes, b, i, h, w]` → `[lanes, o, i, kh, kw]`, `[lanes, o]`."""
    lanes, batch = x.shape[:2]
    plan = Plan.of(x, gradient.shape[2], kernel, stride, padding, ones=with_bias)
    of_kernels = x.new_empty(lanes, plan.filters, plan.channels, *kernel)
    of_biases = x.new_empty(lanes, plan.filters if with_bias else 0)
    x, gradient = _whole_lanes(x), _whole_lanes(gradient.to(x.dtype))
    runs = batch * plan.out_h * plan.segments
    tiles = -(-runs // plan.tile_runs)
    number = plan.line_tiles * plan.filter_tiles
    # As many parts as run at the same time: each leaves a whole tile of sums behind, added up in a fixed order.
    each = -(-tiles // max(4 * _processors(x) // (lanes * number), 1))
    parts = -(-tiles // each)
    sums = torch.empty(lanes, parts, number, plan.elements * plan.pixels, dtype=torch.float32, device=x.device)
    taps = plan.filters * (plan.lines * plan.kernel_w + with_bias)
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
        _collect_kernel[(-(-taps // 64), lanes)](
            sums, of_kernels, of_biases, parts, plan=plan, parts_at_once=min(power(parts), 16), taps_at_once=64
        )
    return of_kernels, of_biases


def _whole_lanes(stack: Tensor) -> Tensor:
    """Each lane contiguous; one lane that is shared by all stays one."""
    return stack if stack[0].is_contiguous() else stack.contiguous()


def _processors(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2


def on_device(x: Tensor) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


# ---------------------------------------------------------------------------------------------- operators


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The operator: one convolution, or a stack of them."""
    if x.dim() == 4:
        return _convolve(x[None], weight[None], None if bias is None else bias[None], stride, padding)[0]
    if available(x) and weight.shape[-1] <= _WIDEST_WINDOW:
        return forward_by_triton(x, weight, bias, stride, padding)
    y = F.conv2d(
        x.transpose(0, 1).flatten(1, 2),
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        tuple(stride),
        tuple(padding),
        groups=len(x),
    )
    return y.view(y.shape[0], len(x), -1, *y.shape[2:]).transpose(0, 1).contiguous()


def _gradients(
    gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    """The operator of the backward pass: gradients of kernels, and of biases (none of them without)."""
    if x.dim() == 4:
        of_kernels, of_biases = _gradients(gradient[None], x[None], kernel, stride, padding, with_bias)
        return of_kernels[0], of_biases[0]
    if available(x) and kernel[1] <= _WIDEST_WINDOW:
        return gradients_by_triton(gradient, x, kernel, stride, padding, with_bias)
    lanes, filters = len(x), gradient.shape[2]
    _, of_kernels, _ = torch.ops.aten.convolution_backward(
        gradient.transpose(0, 1).flatten(1, 2),
        x.transpose(0, 1).flatten(1, 2),
        x.new_empty(lanes * filters, x.shape[2], *kernel),
        None,
        stride,
        padding,
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=lanes,
        output_mask=[False, True, False],
    )
    of_biases = gradient.sum((1, 3, 4)) if with_bias else gradient.new_empty(lanes, 0)
    return of_kernels.reshape(lanes, filters, *of_kernels.shape[1:]).contiguous(), of_biases


def _convolve_shape(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return x.new_empty(*x.shape[:-3], weight.shape[-4], *_output_size(x, weight.shape[-2:], stride, padding))


def _gradients_shape(
    gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    filters, lanes = gradient.shape[-3], x.shape[:-4]
    of_kernels = gradient.new_empty(*lanes, filters, x.shape[-3], *kernel)
    return of_kernels, gradient.new_empty(*lanes, filters if with_bias else 0)


def _convolve_lanes(info: Any, dimensions: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    tensors = [stacked(info, *pair) for pair in zip(inputs[:3], dimensions[:3], strict=True)]
    result: Tensor = torch.ops.covey.image_convolution(*tensors, *inputs[3:])
    return result, 0


def _gradients_of_lanes(
    info: Any, dimensions: tuple[int | None, ...], *inputs: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    tensors = [stacked(info, *pair) for pair in zip(inputs[:2], dimensions[:2], strict=True)]
    return torch.ops.covey.image_convolution_gradients(*tensors, *inputs[2:]), (0, 0)


def _differentiate(
    inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    """Gradients of images, kernels and biases."""
    x, weight, bias, stride, padding = inputs
    of_image = of_weight = of_bias = None
    if needed[1] or needed[2]:
        of_weight, of_bias = torch.ops.covey.image_convolution_gradients(
            gradient, x, weight.shape[-2:], stride, padding, bias is not None
        )
    if needed[0]:
        of_image = _image_gradient(gradient, weight, stride, padding)
    return of_image, of_weight, None if bias is None else of_bias, None, None


def _image_gradient(gradient: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The gradient of the images: a convolution with the kernels turned round, their channels exchanged."""
    if list(stride) != [1, 1]:
        raise NotImplementedError("image_convolution has a gradient for its images with stride 1 only.")
    turned = weight.flip(-2, -1).transpose(-4, -3)
    wider = [size - 1 - pad for size, pad in zip(weight.shape[-2:], padding, strict=True)]
    return image_convolution(gradient, turned, None, stride, wider)


define(
    "image_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding) -> Tensor",
    _convolve,
    _convolve_shape,
    _convolve_lanes,
    _differentiate,
)
define(
    "image_convolution_gradients(Tensor gradient, Tensor x, int[] kernel, int[] stride, int[] padding, bool with_bias)"
    " -> (Tensor, Tensor)",
    _gradients,
    _gradients_shape,
    _gradients_of_lanes,
)
