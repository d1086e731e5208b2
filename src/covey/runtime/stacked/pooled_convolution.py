"""Convolution, bias, max pool of 2 x 2 and ReLU of a stack of models, as one operator.

It keeps the pooled output and where each maximum was, and never writes the convolution's own output, which is four
times as large. On a GPU the operators are Triton kernels (`pooled_convolution_kernels`, `pooled_image_kernels`);
elsewhere, and in float64, PyTorch's convolution and pool compute the same.

ReLU may come before the pool or after it: the result is the same, and so are the gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.model.operators import define, lanes_rule
from covey.runtime.stacked.image_convolution import image_convolution, image_gradient
from covey.runtime.stacked.pooled_convolution_kernels import DEAD, filter_gradients_by_triton, forward_by_triton
from covey.runtime.stacked.pooled_convolution_tiles import fits, pooled_size
from covey.runtime.stacked.pooled_image_kernels import image_gradient_by_triton
from covey.runtime.stacked.triton_support import available

_STRIDE = [1, 1]


def pooled_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padding: Sequence[int] = (0, 0)
) -> Tensor:
    """Return ReLU(max pool of 2 x 2(convolution)), `[b, i, h, w]` → `[b, o, h', w']`, also under `vmap`.

    Filters are `[o, i, kh, kw]`, biases `[o]`; the convolution has stride 1. An odd last row or column is not pooled.
    Without `vmap`, all three may have a first dimension `lanes`.
    """
    y: Tensor = torch.ops.covey.pooled_convolution(x, weight, bias, [int(pad) for pad in padding])[0]
    return y


def _pooled(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the output, and for each of its elements where its maximum was: 2 · row + column, or DEAD."""
    if x.dim() == 4:
        y, chosen = _pooled(x[None], weight[None], None if bias is None else bias[None], padding)
        return y[0], chosen[0]
    if available(x) and fits(x.shape[1:], weight.shape[1], weight.shape[3:], padding):
        return forward_by_triton(x, weight, bias, padding)
    convolved = image_convolution(x, weight, bias, _STRIDE, padding)
    y, places = F.max_pool2d(convolved.flatten(0, 1), 2, return_indices=True)
    row, column = places // convolved.shape[-1], places % convolved.shape[-1]
    chosen = torch.where(y <= 0, DEAD, row % 2 * 2 + column % 2).to(torch.uint8)
    shape = *convolved.shape[:3], *y.shape[2:]
    return F.relu(y).view(shape), chosen.view(shape)


def _routed(
    gradient: Tensor, chosen: Tensor, size: Sequence[int], kernel: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the gradients of the convolution's output, `[..., h', w']`, for images of this size."""
    places = torch.arange(4, device=chosen.device).view(2, 1, 2)
    # The dimensions are pooled rows, two rows, pooled columns, two columns.
    spread = torch.where(chosen[..., :, None, :, None] == places, gradient[..., :, None, :, None], 0.0)
    below, right = (size[axis] + 2 * padding[axis] - kernel[axis] + 1 - 2 * gradient.shape[axis - 2] for axis in (0, 1))
    return F.pad(spread.flatten(-4, -3).flatten(-2), (0, right, 0, below))


def _filters(
    gradient: Tensor, chosen: Tensor, x: Tensor, kernel: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of filters and of biases; the latter are empty without biases."""
    if x.dim() == 4:
        of_kernels, of_biases = _filters(gradient[None], chosen[None], x[None], kernel, padding, with_bias)
        return of_kernels[0], of_biases[0]
    if available(x) and fits(x.shape[1:], gradient.shape[2], kernel, padding):
        return filter_gradients_by_triton(gradient, chosen, x, kernel, padding, with_bias)
    routed = _routed(gradient, chosen, x.shape[-2:], kernel, padding)
    found: tuple[Tensor, Tensor] = torch.ops.covey.image_convolution_gradients(
        routed, x, kernel, _STRIDE, padding, with_bias
    )
    return found


def _images(gradient: Tensor, chosen: Tensor, weight: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return the gradient of images of this height and width."""
    if gradient.dim() == 4:
        return _images(gradient[None], chosen[None], weight[None], size, padding)[0]
    kernel = weight.shape[-2:]
    shape = gradient.shape[1], weight.shape[2], *size
    if available(gradient) and fits(shape, weight.shape[1], kernel, padding):
        return image_gradient_by_triton(gradient, chosen, weight, size, padding)
    return image_gradient(_routed(gradient, chosen, size, kernel, padding), weight, _STRIDE, padding)


def _pooled_shape(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    shape = *x.shape[:-3], weight.shape[-4], *pooled_size(x.shape, weight.shape[-2:], padding)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


def _filters_shape(
    gradient: Tensor, chosen: Tensor, x: Tensor, kernel: Sequence[int], padding: Sequence[int], with_bias: bool
) -> tuple[Tensor, Tensor]:
    filters, lanes = gradient.shape[-3], x.shape[:-4]
    of_kernels = gradient.new_empty(*lanes, filters, x.shape[-3], *kernel)
    return of_kernels, gradient.new_empty(*lanes, filters if with_bias else 0)


def _images_shape(
    gradient: Tensor, chosen: Tensor, weight: Tensor, size: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-3], weight.shape[-3], *size)


def _differentiate(
    inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    """Return the gradients of images, filters and biases."""
    x, weight, bias, padding, _, chosen = inputs
    of_image = of_weight = of_bias = None
    if needed[1] or needed[2]:
        of_weight, of_bias = torch.ops.covey.pooled_convolution_filters(
            gradient, chosen, x, weight.shape[-2:], padding, bias is not None
        )
    if needed[0]:
        of_image = torch.ops.covey.pooled_convolution_images(gradient, chosen, weight, x.shape[-2:], padding)
    return of_image, of_weight, None if bias is None else of_bias, None


define(
    "pooled_convolution(Tensor x, Tensor weight, Tensor? bias, int[] padding) -> (Tensor, Tensor)",
    _pooled,
    _pooled_shape,
    lanes_rule("pooled_convolution", tensors=3, outputs=2),
    _differentiate,
    keeps_output=True,
)
define(
    "pooled_convolution_filters(Tensor gradient, Tensor chosen, Tensor x, int[] kernel, int[] padding, bool with_bias)"
    " -> (Tensor, Tensor)",
    _filters,
    _filters_shape,
    lanes_rule("pooled_convolution_filters", tensors=3, outputs=2),
)
define(
    "pooled_convolution_images(Tensor gradient, Tensor chosen, Tensor weight, int[] size, int[] padding) -> Tensor",
    _images,
    _images_shape,
    lanes_rule("pooled_convolution_images", tensors=3, outputs=1),
)
