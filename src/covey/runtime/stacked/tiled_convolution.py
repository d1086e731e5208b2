"""A stack's convolution with many channels, as an operator that never writes the patches of the images to memory.

The operators' images and filters have their channels last, `[b, h, w, c]` and `[o, kh, kw, c]`: then neighbouring
elements of a patch are neighbours in memory. On a GPU the operators are Triton kernels (`tiled_convolution_kernels`);
elsewhere, and in float64, PyTorch's convolution computes the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covey.model.operators import define, lanes_rule
from covey.runtime.stacked.image_convolution import with_numbers
from covey.runtime.stacked.tiled_convolution_kernels import filters_by_triton, images_by_triton, output_by_triton
from covey.runtime.stacked.tiled_convolution_plan import fits, output_size
from covey.runtime.stacked.triton_support import available


def tiled_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] | str = (0, 0),
) -> Tensor:
    """Convolve images `[b, i, h, w]` with filters `[o, i, kh, kw]`, biases `[o]` → `[b, o, h', w']`, also under `vmap`.

    Without `vmap`, all three may have a first dimension `lanes`. The output lies in memory with its channels last.
    """
    x, pads = with_numbers(x, weight.shape[-2:], padding)
    # Here and not in the operator: the compiler writes them so in the first place, and the gradients read them too.
    given = x.movedim(-3, -1).contiguous(), weight.movedim(-3, -1).contiguous(), bias
    result: Tensor = torch.ops.covey.tiled_convolution(*given, [int(step) for step in stride], pads)
    return result.movedim(-1, -3)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Compute one convolution, or a stack of them."""
    if x.dim() == 4:
        return _convolve(x[None], weight[None], None if bias is None else bias[None], stride, padding)[0]
    if available(x) and fits(x.shape[1:], weight.shape[1], weight.shape[2:4], padding):
        return output_by_triton(x, weight, bias, stride, padding)
    given = _channels_first(x), _channels_first(weight), bias
    return _channels_last(torch.ops.covey.image_convolution(*given, stride, padding))


def _gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], of_images: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of images and of filters; the former are empty if they are not wanted."""
    if x.dim() == 4:
        found = _gradients(gradient[None], x[None], weight[None], stride, padding, of_images)
        return found[0][0], found[1][0]
    kernel, size = weight.shape[2:4], x.shape[2:4]
    if available(x) and fits(x.shape[1:], weight.shape[1], kernel, padding):
        images = images_by_triton(gradient, weight, size, stride, padding) if of_images else x.new_empty(len(x), 0)
        return images, filters_by_triton(gradient, x, kernel, stride, padding)
    images, filters, _ = torch.ops.aten.convolution_backward(
        *(_channels_first(one).transpose(0, 1).flatten(1, 2) for one in (gradient, x)),
        _channels_first(weight).flatten(0, 1),
        None,
        stride,
        padding,
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=len(x),
        output_mask=[of_images, True, False],
    )
    filters = _channels_last(filters.unflatten(0, (len(x), -1)))
    if not of_images:
        return x.new_empty(len(x), 0), filters
    return _channels_last(images.unflatten(1, (len(x), -1)).transpose(0, 1)), filters


def _channels_first(tensor: Tensor) -> Tensor:
    return tensor.movedim(-1, -3).contiguous()


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(-3, -1).contiguous()


def _convolve_shape(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    size = output_size(x.shape[-3:-1], weight.shape[-3:-1], stride, padding)
    return x.new_empty(*x.shape[:-3], *size, weight.shape[-4])


def _gradients_shape(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], of_images: bool
) -> tuple[Tensor, Tensor]:
    images = x.new_empty(x.shape) if of_images else x.new_empty(*x.shape[:-4], 0)
    return images, x.new_empty(weight.shape)


def _differentiate(
    inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    """Return the gradients of images, filters and biases."""
    x, weight, bias, stride, padding = inputs
    given = gradient, x, weight, stride, padding, needed[0]
    # One operator for both: the compiler would write a gradient that two operators read twice.
    of_images, of_filters = torch.ops.covey.tiled_convolution_gradients(*given)
    # The compiler fuses this sum with what computes the gradient.
    of_biases = None if bias is None else gradient.sum((-4, -3, -2))
    return of_images if needed[0] else None, of_filters, of_biases, None, None


define(
    "tiled_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding) -> Tensor",
    _convolve,
    _convolve_shape,
    lanes_rule("tiled_convolution", tensors=3),
    _differentiate,
)
define(
    "tiled_convolution_gradients(Tensor gradient, Tensor x, Tensor weight, int[] stride, int[] padding, bool of_images)"
    " -> (Tensor, Tensor)",
    _gradients,
    _gradients_shape,
    lanes_rule("tiled_convolution_gradients", tensors=3, outputs=2),
)
