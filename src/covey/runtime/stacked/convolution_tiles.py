"""Tiling of the Triton convolution.

A *run* is `span` neighbouring output pixels of one row. It depends on a *window* of input columns in each of the
`channels · kernel height` input *lines*. So a run is one row of a matrix product,

    [runs, lines · window] @ [lines · window, filters · span],

whose right-hand side holds each filter `span` times, shifted. Neighbouring elements are read together, and each of
them serves all pixels of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.runtime.stacked.triton_support import power


@dataclass(frozen=True)
class TilePlan:
    """Sizes of a convolution and of its tiles; those of tiles are powers of two.

    Derived sizes are fields too: Triton identifies compiled kernels by the fields.
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
    """True if a line of ones follows them."""
    span: int
    """Output pixels of a run."""
    window: int
    """Input columns that a run depends on, rounded up."""
    segments: int
    """Runs of an output row; the last may be shorter."""
    inside: bool
    """True if no window reaches beyond the columns of its image."""
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
    """Products of float32: "tf32", or "ieee" for full precision."""

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
    ) -> "TilePlan":
        """Plan a convolution of images `[..., i, h, w]`; `ones` adds a line of ones, for the gradient of biases."""
        channels, height, width = x.shape[-3:]
        out_h, out_w = output_size(x, kernel, stride, padding)

        def window(span: int) -> int:
            return power((span - 1) * stride[1] + kernel[1])

        # The fewest elements read per pixel; of equals the shorter run, which multiplies fewer zeros.
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


def output_size(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Return height and width of the output for images `[..., h, w]`."""
    return [(x.shape[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (-2, -1)]
