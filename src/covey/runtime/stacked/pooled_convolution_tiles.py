"""Tiling of the Triton kernels for a convolution, bias, max pool of 2 x 2 and ReLU in one.

A *run* is `half` neighbouring pooled pixels of one row, so `span = 2 · half` neighbouring columns of two rows of the
convolution, the upper and the lower. For each of them it is one row of a matrix product, as in `convolution_tiles`,

    [runs, lines · window] @ [lines · window, filters · span],

whose two results, upper and lower, are pooled before anything is written to memory.

For the gradient of the images a *block* is `2 x span` neighbouring pixels of an image. It depends on `rows x columns`
pooled pixels of every filter. Each of these has one gradient and one of four places that it goes to, so it is four
elements of a row, all zero but one:

    [blocks, filters · rows · columns · 4] @ [filters · rows · columns · 4, channels · 2 · span].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.runtime.stacked.triton_support import power

MOST_ELEMENTS = 256
"""Elements of a run (lines · window) that the kernels take at most."""

KEPT_BYTES = 100 * 1024
"""Filters shifted for the gradient of images that a program keeps for all its tiles; larger ones it reads again."""


@dataclass(frozen=True)
class Tuning:
    """How the work of a kernel is cut up (`benchmarks/fused.py` tries others)."""

    runs: int = 128
    """Most runs, or blocks, of a tile."""
    bytes: int = 32768
    """Most bytes of inputs that a program multiplies at a time."""
    warps: int = 4
    """Warps of a program."""
    programs: int = 12
    """Programs for each multiprocessor."""
    span: int = 4
    """Columns of a block."""
    elements: int = 128
    """Most elements of a block at a time."""


TUNED = {"forward": Tuning(), "filters": Tuning(), "images": Tuning(runs=64, bytes=16384, programs=2)}
"""By kernel: output, gradient of the filters, gradient of the images."""


def pooled_size(shape: Sequence[int], kernel: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Return height and width of the pooled output for images `[..., h, w]`; an odd last row or column is dropped."""
    return [(shape[axis] + 2 * padding[axis] - kernel[axis] + 1) // 2 for axis in (-2, -1)]


def _window(half: int, kernel_w: int) -> int:
    return power(2 * half - 1 + kernel_w)


def _half(out_w: int, kernel_w: int) -> int:
    """Return the pooled pixels of a run: the fewest elements read, of equals the shorter run."""
    return min((1, 2, 4), key=lambda half: (_window(half, kernel_w) * -(-out_w // half), half))


def _in_full(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32


def _tile_runs(x: Tensor, elements: int, pixels: int, tuning: Tuning) -> int:
    if _in_full(x):
        return 16
    # More sums than this do not fit into registers.
    return max(16, min(tuning.runs, tuning.bytes // (elements * x.element_size()), 8192 // pixels))


@dataclass(frozen=True)
class PooledPlan:
    """Sizes of a pooled convolution with stride 1, and of its tiles; those of tiles are powers of two.

    Derived sizes are fields too: Triton identifies compiled kernels by the fields. Fields that `TilePlan` has too mean
    the same.
    """

    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride_w: int
    pad_h: int
    pad_w: int
    out_h: int
    """Pooled rows."""
    out_w: int
    """Pooled columns."""
    lines: int
    ones: bool
    span: int
    half: int
    window: int
    segments: int
    """Runs of a pooled row; the last may be shorter."""
    inside: bool
    tile_lines: int
    tile_runs: int
    tile_filters: int
    line_tiles: int
    filter_tiles: int
    elements: int
    pixels: int
    pooled: int
    """Pooled pixels of a run in a tile: filters · half."""
    precision: str

    @classmethod
    def of(cls, x: Tensor, filters: int, kernel: Sequence[int], padding: Sequence[int], *, ones: bool) -> "PooledPlan":
        """Plan for images `[..., i, h, w]`; `ones` adds a line of ones, for the gradient of biases."""
        channels, height, width = x.shape[-3:]
        out_h, out_w = pooled_size(x.shape, kernel, padding)
        half = _half(out_w, kernel[1])
        span, wide, segments, lines = 2 * half, _window(half, kernel[1]), -(-out_w // half), channels * kernel[0]
        tile_lines = max(power(lines + ones), 16 // wide, 1)
        tile_filters = max(min(power(filters), 128 // span), 16 // span)
        return cls(
            channels=channels,
            height=height,
            width=width,
            filters=filters,
            kernel_h=kernel[0],
            kernel_w=kernel[1],
            stride_w=1,
            pad_h=padding[0],
            pad_w=padding[1],
            out_h=out_h,
            out_w=out_w,
            lines=lines,
            ones=ones,
            span=span,
            half=half,
            window=wide,
            segments=segments,
            inside=padding[1] == 0 and (segments - 1) * span + wide <= width,
            tile_lines=tile_lines,
            tile_runs=_tile_runs(x, tile_lines * wide, tile_filters * span, TUNED["filters" if ones else "forward"]),
            tile_filters=tile_filters,
            line_tiles=1,
            filter_tiles=-(-filters // tile_filters),
            elements=tile_lines * wide,
            pixels=tile_filters * span,
            pooled=tile_filters * half,
            precision="ieee" if _in_full(x) else "tf32",
        )


@dataclass(frozen=True)
class ImagePlan:
    """Sizes of the gradient of the images of a pooled convolution, and of its tiles."""

    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    pad_h: int
    pad_w: int
    out_h: int
    out_w: int
    back_h: int
    """Pooled rows above a block that it depends on."""
    back_w: int
    """Pooled columns left of a block that it depends on."""
    rows: int
    """Pooled rows that a block depends on."""
    columns: int
    """Pooled columns that a block depends on."""
    window: int
    """The same, rounded up."""
    first_row: int
    """Number of the first row of blocks; numbers count from the corner of the padded image."""
    first_block: int
    """Number of the first block of a row."""
    block_rows: int
    segments: int
    """Blocks of a row."""
    span: int
    lines: int
    """Filters · pooled rows."""
    tile_lines: int
    line_tiles: int
    elements: int
    """Elements of a block in a tile: lines · window · 4."""
    tile_runs: int
    """Blocks of a tile."""
    pixels: int
    """Pixels of a block, of all channels: channels · 2 · span."""
    kept: bool
    """True if a program keeps the filters for all its tiles."""
    precision: str

    @classmethod
    def of(cls, gradient: Tensor, weight: Tensor, size: Sequence[int], padding: Sequence[int]) -> "ImagePlan":
        """Plan for gradients `[..., o, h', w']` of pooled outputs, filters `[..., o, i, kh, kw]`, images `h, w`."""
        tuning = TUNED["images"]
        span = tuning.span
        filters, out_h, out_w = gradient.shape[-3:]
        channels, kernel_h, kernel_w = weight.shape[-3:]
        rows, columns = kernel_h // 2 + 1, kernel_w // 2 + span // 2
        wide, lines = power(columns), filters * (kernel_h // 2 + 1)
        first_row, first_block = padding[0] // 2, padding[1] // span
        pixels = max(power(channels) * 2 * span, 16)
        tile_lines = max(min(power(lines), tuning.elements // (4 * wide)), 16 // (4 * wide), 1)
        line_tiles, elements = -(-lines // tile_lines), 4 * tile_lines * wide
        return cls(
            channels=channels,
            height=size[0],
            width=size[1],
            filters=filters,
            kernel_h=kernel_h,
            kernel_w=kernel_w,
            pad_h=padding[0],
            pad_w=padding[1],
            out_h=out_h,
            out_w=out_w,
            back_h=kernel_h // 2,
            back_w=kernel_w // 2,
            rows=rows,
            columns=columns,
            window=wide,
            first_row=first_row,
            first_block=first_block,
            block_rows=(padding[0] + size[0] - 1) // 2 - first_row + 1,
            segments=(padding[1] + size[1] - 1) // span - first_block + 1,
            span=span,
            lines=lines,
            tile_lines=tile_lines,
            line_tiles=line_tiles,
            elements=elements,
            tile_runs=_tile_runs(gradient, elements, pixels, tuning),
            pixels=pixels,
            kept=line_tiles * elements * pixels * gradient.element_size() <= KEPT_BYTES,
            precision="ieee" if _in_full(gradient) else "tf32",
        )


def fits(shape: Sequence[int], filters: int, kernel: Sequence[int], padding: Sequence[int]) -> bool:
    """True if the kernels take a lane's images `[b, i, h, w]` and so many filters of this height and width."""
    out_h, out_w = pooled_size(shape, kernel, padding)
    if out_h < 1 or out_w < 1 or max(shape[1] * shape[2] * shape[3], filters * out_h * out_w) * shape[0] >= 1 << 31:
        # Offsets within a lane have 32 bits.
        return False
    return power(shape[1] * kernel[0] + 1) * _window(_half(out_w, kernel[1]), kernel[1]) <= MOST_ELEMENTS
