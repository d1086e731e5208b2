"""The first convolution of a stack of models, as an operator that never writes the patches of the images to memory.

Images have few channels, and every lane has its own filters, so neither grouped convolutions nor im2col are fast. On a
GPU the operators are Triton kernels (`convolution_kernels`); elsewhere, and in float64, PyTorch's convolution computes
the same. The gradient of the images is a convolution again.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.model.operators import define, lanes_rule
from covey.runtime.stacked.convolution_kernels import forward_by_triton, gradients_by_triton
from covey.runtime.stacked.convolution_tiles import output_size
from covey.runtime.stacked.triton_support import available

_WIDEST_WINDOW = 32
"""Filters wider than this are left to PyTorch."""


def image_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] | str = (0, 0),
) -> Tensor:
    """Convolve images `[b, i, h, w]` with filters `[o, i, kh, kw]`, biases `[o]` → `[b, o, h', w']`, also under `vmap`.

    Without `vmap`, all three may have a first dimension `lanes`. The gradient of the images needs stride 1.
    """
    x, pads = with_numbers(x, weight.shape[-2:], padding)
    result: Tensor = torch.ops.covey.image_convolution(x, weight, bias, [int(step) for step in stride], pads)
    return result


def with_numbers(x: Tensor, kernel: Sequence[int], padding: Sequence[int] | str) -> tuple[Tensor, list[int]]:
    """Return images and their padding in pixels: that of "same", which may be uneven, is added to the images."""
    if padding == "same":
        above, left = (kernel[0] - 1) // 2, (kernel[1] - 1) // 2
        x = F.pad(x, (left, kernel[1] - 1 - left, above, kernel[0] - 1 - above))
    return x, [0, 0] if isinstance(padding, str) else [int(pad) for pad in padding]


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Compute one convolution, or a stack of them."""
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
    """Return the gradients of filters and of biases; the latter are empty without biases."""
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
    return x.new_empty(*x.shape[:-3], weight.shape[-4], *output_size(x, weight.shape[-2:], stride, padding))


def _gradients_shape(
    gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    filters, lanes = gradient.shape[-3], x.shape[:-4]
    of_kernels = gradient.new_empty(*lanes, filters, x.shape[-3], *kernel)
    return of_kernels, gradient.new_empty(*lanes, filters if with_bias else 0)


def _differentiate(
    inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    """Return the gradients of images, filters and biases."""
    x, weight, bias, stride, padding = inputs
    of_image = of_weight = of_bias = None
    if needed[1] or needed[2]:
        of_weight, of_bias = torch.ops.covey.image_convolution_gradients(
            gradient, x, weight.shape[-2:], stride, padding, bias is not None
        )
    if needed[0]:
        of_image = image_gradient(gradient, weight, stride, padding)
    return of_image, of_weight, None if bias is None else of_bias, None, None


def image_gradient(gradient: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return the gradient of the images: a convolution with flipped filters, input and output channels exchanged."""
    if list(stride) != [1, 1]:
        raise NotImplementedError("image_convolution has a gradient for its images with stride 1 only.")
    turned = weight.flip(-2, -1).transpose(-4, -3)
    wider = [size - 1 - pad for size, pad in zip(weight.shape[-2:], padding, strict=True)]
    return image_convolution(gradient, turned, None, stride, wider)


define(
    "image_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding) -> Tensor",
    _convolve,
    _convolve_shape,
    lanes_rule("image_convolution", tensors=3),
    _differentiate,
)
define(
    "image_convolution_gradients(Tensor gradient, Tensor x, int[] kernel, int[] stride, int[] padding, bool with_bias)"
    " -> (Tensor, Tensor)",
    _gradients,
    _gradients_shape,
    lanes_rule("image_convolution_gradients", tensors=2, outputs=2),
)
