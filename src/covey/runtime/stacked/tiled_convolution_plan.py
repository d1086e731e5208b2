"""Tiling of the Triton kernels for convolutions with many channels.

All tensors lie in memory with their channels last. A *pixel* is one place of an output, counted over all images of a
lane. It depends on *elements*: the channels under each place of the filters, of one place after another. So a
convolution is a matrix product

    [pixels, kernel height · kernel width · channels] @ [kernel height · kernel width · channels, filters],

of whose left side a tile is read at a time, where it lies in the images, and never written. The gradient of the images
is the same product with input and output exchanged and the filters turned. That of the filters is the left side,
transposed, times the output's gradient.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.runtime.stacked.triton_support import power


@dataclass(frozen=True)
class Tiling:
    """How the work of a kernel is cut up (`benchmarks/tiles.py` tries others)."""

    pixels: int = 128
    """Most pixels of a tile."""
    filters: int = 128
    """Most filters of a tile."""
    elements: int = 64
    """Most elements of a tile, if they have two bytes; half as many if they have four."""
    warps: int = 8
    """Most warps of a program; small tiles have four."""
    stages: int = 3
    """Tiles that are read ahead."""
    programs: int = 4
    """Programs for each multiprocessor, of the gradient of the filters: with few lanes, pixels are summed in parts."""


TUNED = {
    "forward": Tiling(),
    "images": Tiling(),
    "filters": Tiling(pixels=64, elements=128),
}
"""By kernel: output, gradient of the images, gradient of the filters."""


@contextmanager
def tuned(**tilings: Tiling) -> Iterator[None]:
    """Have the work of kernels cut up in another way."""
    before = dict(TUNED)
    TUNED.update(tilings)
    try:
        yield
    finally:
        TUNED.update(before)


@dataclass(frozen=True)
class TiledPlan:
    """Sizes of a product and of its tiles; those of tiles are powers of two.

    Derived sizes are fields too: Triton identifies compiled kernels by the fields. `channels`, `height` and `width` are
    those of the tensor that is read, `filters`, `out_h` and `out_w` those of the other.
    """

    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    spread_h: int
    """Rows from one row of the input to the next, with rows of zeros between them: for a gradient through a stride."""
    spread_w: int
    pad_h: int
    pad_w: int
    out_h: int
    out_w: int
    elements: int
    padded: bool
    """True if pixels depend on places beyond their image, or between its spread pixels."""
    whole: bool
    """True if all elements of a tile are under one place of the filters."""
    filter_step: int
    """Distances in the tensor of filters: from a filter, a place, a channel to the next; and the first element."""
    tap_step: int
    channel_step: int
    first_tap: int
    tile_pixels: int
    tile_filters: int
    tile_elements: int
    filter_tiles: int
    element_tiles: int
    precision: str
    """Products of float32: "tf32", or "ieee" for full precision."""


def output_plan(
    x: Tensor, filters: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], tiling: Tiling
) -> TiledPlan:
    """Plan a convolution of images `[..., h, w, c]` with filters `[..., o, kh, kw, c]`, or the gradient of these."""
    channels, out = x.shape[-1], output_size(x.shape[-3:-1], kernel, stride, padding)
    # From a filter, a place, a channel to the next; and the first.
    steps = kernel[0] * kernel[1] * channels, channels, 1, 0
    return _plan(x, filters, kernel, stride, (1, 1), padding, out, steps, tiling)


def image_plan(
    gradient: Tensor,
    channels: int,
    kernel: Sequence[int],
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    tiling: Tiling,
) -> TiledPlan:
    """Plan the gradient of images of this height and width from that of the output, `[..., h', w', o]`.

    It is the convolution of the output's gradient, with `stride - 1` zeros between pixels, by turned filters.
    """
    taps = kernel[0] * kernel[1]
    wider = [kernel[axis] - 1 - padding[axis] for axis in (0, 1)]
    steps = 1, -channels, taps * channels, (taps - 1) * channels
    return _plan(gradient, channels, kernel, (1, 1), stride, wider, size, steps, tiling)


def _plan(
    x: Tensor,
    filters: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    spread: Sequence[int],
    padding: Sequence[int],
    out: Sequence[int],
    steps: tuple[int, int, int, int],
    tiling: Tiling,
) -> TiledPlan:
    pixels, (height, width, channels) = x.shape[-4] * out[0] * out[1], x.shape[-3:]
    elements = kernel[0] * kernel[1] * channels
    in_full = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    # Full precision has no tensor cores: its products are unrolled, and large ones take minutes to compile.
    most = 32 if in_full else 1 << 30
    tile_pixels = _tile(pixels, min(tiling.pixels, most))
    tile_filters = _tile(filters, min(tiling.filters, most))
    tile_elements = _tile(elements, min(tiling.elements * 2 // x.element_size(), most))
    last = [(out[axis] - 1) * stride[axis] + kernel[axis] - 1 - padding[axis] for axis in (0, 1)]
    inside = max(padding) <= 0 and last[0] < height and last[1] < width and max(spread) == 1
    return TiledPlan(
        channels=channels,
        height=height,
        width=width,
        filters=filters,
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=stride[0],
        stride_w=stride[1],
        spread_h=spread[0],
        spread_w=spread[1],
        pad_h=padding[0],
        pad_w=padding[1],
        out_h=out[0],
        out_w=out[1],
        elements=elements,
        padded=not inside,
        whole=channels % tile_elements == 0,
        filter_step=steps[0],
        tap_step=steps[1],
        channel_step=steps[2],
        first_tap=steps[3],
        tile_pixels=tile_pixels,
        tile_filters=tile_filters,
        tile_elements=tile_elements,
        filter_tiles=-(-filters // tile_filters),
        element_tiles=-(-elements // tile_elements),
        precision="ieee" if in_full else "tf32",
    )


def _tile(size: int, most: int) -> int:
    """Return the size of a tile: matrix products need 16."""
    return max(min(power(size), most), 16)


def warps_for(results: int, most: int) -> int:
    """Return the warps of a program with so many sums: four where each thread keeps at most 64 of them."""
    return min(most, max(4, power(-(-results // 2048))))


def output_size(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Return height and width of the output for images of this height and width."""
    return [(size[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)]


def fits(shape: Sequence[int], filters: int, kernel: Sequence[int], padding: Sequence[int]) -> bool:
    """True if offsets within a lane's images `[b, h, w, i]`, its filters and its outputs have 32 bits."""
    batch, height, width, channels = shape
    rows, columns = output_size((height, width), kernel, (1, 1), padding)
    images, outputs = batch * height * width * channels, batch * rows * columns * filters
    return min(rows, columns) >= 1 and max(images, outputs, filters * kernel[0] * kernel[1] * channels) < 1 << 31
