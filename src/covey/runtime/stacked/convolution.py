"""Convolutions of a stack. Every lane has its own filters, so cuDNN's fast paths for shared filters do not apply.

There are three kinds of algorithms: one grouped convolution over all lanes (which is how vmap batches a convolution),
im2col (patches of the images as a matrix, and one batched matrix product), and Triton kernels that never write patches
to memory, some for few channels and some for many. Which is fastest depends on channels, kernel size and image, so
whole steps are timed (`autotune`).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.runtime.stacked.image_convolution import image_convolution
from covey.runtime.stacked.pooled_convolution import pooled_convolution
from covey.runtime.stacked.tiled_convolution import tiled_convolution

ConvAlgorithm = Literal["grouped", "slices", "windows", "kernel", "fused", "tiles"]
"""One grouped convolution; im2col from shifted slices of the images; im2col from windows of a view; the Triton kernel
for few channels; the pool and the ReLU after the convolution too, in one operator (`layer_fusion`); the Triton kernels
for many channels.

Windows make the patches fastest, but their gradient for the image is a scatter: they are for the first layer, whose
image needs no gradient. The gradient of slices is a sum of slices. Where every channel has a filter of its own
(depthwise), slices need no matrix: they are multiplied and added, which the compiler fuses into one pass.
"""


class StackConv2d(nn.Module):
    """A convolution by one of these algorithms; parameters as in `nn.Conv2d`."""

    def __init__(self, layer: nn.Conv2d, algorithm: ConvAlgorithm) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding, self.dilation, self.groups = (
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
        self.algorithm = algorithm

    def forward(self, x: Tensor) -> Tensor:
        if self.algorithm == "kernel":
            x, weight, bias = _cast(x.device.type, x, self.weight, self.bias)
            return image_convolution(x, weight, bias, self.stride, self.padding)
        if self.algorithm == "tiles":
            x, weight, bias = _cast(x.device.type, x, self.weight, self.bias)
            return tiled_convolution(x, weight, bias, self.stride, self.padding)
        if self.algorithm == "fused":
            x, weight, bias = _cast(x.device.type, x, self.weight, self.bias)
            return pooled_convolution(x, weight, bias, [int(pad) for pad in self.padding])
        if self.algorithm == "grouped":
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if self.groups > 1:
            return channelwise_convolution(x, self.weight, self.bias, self.stride, self.padding)
        return patches_convolution(
            x, self.weight, self.bias, self.stride, self.padding, windows=self.algorithm == "windows"
        )


def _cast(device: str, *tensors: Tensor | None) -> tuple[Any, ...]:
    """Cast tensors as autocast would, where it is on: it does not know custom operators."""
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(None if tensor is None else tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def patches_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    *,
    windows: bool,
) -> Tensor:
    """Convolve by im2col: images `[b, i, h, w]`, filters `[o, i, kh, kw]` → `[b, o, h', w']`."""
    product = _windows_product if windows else _slices_product
    out = product(_padded(x, weight, padding), weight, stride)
    return out if bias is None else out + bias[:, None, None]


def channelwise_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...] | str
) -> Tensor:
    """Convolve every channel with a filter of its own, `[c, 1, kh, kw]` (depthwise)."""
    slices = _slices(_padded(x, weight, padding), weight, stride)
    weights = weight.flatten(1).unbind(1)
    # Sums one after another, which the compiler fuses into one pass; it would write a stack of them to memory.
    out = reduce(torch.add, (part * one[:, None, None] for part, one in zip(slices, weights, strict=True)))
    return out if bias is None else out + bias[:, None, None]


def _padded(x: Tensor, weight: Tensor, padding: tuple[int, ...] | str) -> Tensor:
    kernel_h, kernel_w = weight.shape[-2:]
    if padding == "same":
        before = [(size - 1) // 2 for size in (kernel_w, kernel_h)]
        return F.pad(x, (before[0], kernel_w - 1 - before[0], before[1], kernel_h - 1 - before[1]))
    if padding == "valid" or not (padding[0] or padding[1]):
        return x
    return F.pad(x, (int(padding[1]), int(padding[1]), int(padding[0]), int(padding[0])))


def _output_size(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> tuple[int, int]:
    height, width = (
        (size - kernel) // step + 1 for size, kernel, step in zip(x.shape[2:], weight.shape[2:], stride, strict=True)
    )
    return height, width


def _slices(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> list[Tensor]:
    """Return the pixels under each element of the filters, row by row: `[b, i, h', w']` each."""
    height, width = _output_size(x, weight, stride)
    slices = [
        x[:, :, row : row + stride[0] * height : stride[0], column : column + stride[1] * width : stride[1]]
        for row in range(weight.shape[2])
        for column in range(weight.shape[3])
    ]
    return [part[:, :, :height, :width] for part in slices]


def _windows_product(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Multiply windows of the images, as rows, by the filters, as columns."""
    wide, kernel_h, kernel_w = weight.shape[0], *weight.shape[2:]
    rows = x.unfold(2, kernel_h, stride[0]).unfold(3, kernel_w, stride[1]).permute(0, 2, 3, 1, 4, 5).flatten(3)
    filters = weight.flatten(1).t()
    if x.is_cuda:
        rows = F.pad(rows, (0, -rows.shape[-1] % _WHOLE))
        filters = F.pad(filters, (0, -wide % _WHOLE, 0, -filters.shape[0] % _WHOLE))
    out = (rows.flatten(0, 2) @ filters)[:, :wide]
    return out.reshape(*rows.shape[:3], wide).permute(0, 3, 1, 2)


def _slices_product(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Multiply the filters, as rows, by the slices of all images under their elements.

    Filters and their gradient keep the layout they are stored in, and neighbours in an image stay neighbours.
    """
    under = torch.stack([part.transpose(0, 1) for part in _slices(x, weight, stride)], dim=1)
    under = under.flatten(2).flatten(0, 1)
    filters, places = weight.flatten(1), under.shape[1]
    if x.is_cuda:
        under = F.pad(under, (0, -places % _WHOLE, 0, -len(under) % _WHOLE))
        filters = F.pad(filters, (0, -filters.shape[1] % _WHOLE))
    out = (filters @ under)[:, :places]
    return out.reshape(len(weight), len(x), *_output_size(x, weight, stride)).transpose(0, 1)


_WHOLE = 8
"""Tensor cores need rows of whole 16 bytes; padding to that costs less than the slow path."""


def convertible(layer: nn.Module) -> bool:
    """True if a layer can be computed from patches or depthwise."""
    if type(layer) is not nn.Conv2d or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        return False
    return layer.groups == 1 or layer.groups == layer.in_channels == layer.out_channels


def convolutions(module: nn.Module) -> dict[str, nn.Conv2d]:
    """Return the layers whose algorithm can be chosen, by name; frozen filters are shared, which cuDNN is fast at."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if type(layer) is nn.Conv2d and convertible(layer) and layer.weight.requires_grad
    }


def replace_layers(module: nn.Module, make: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Replace every layer by `make(name, layer)`, unless that is None."""
    for name, parent in list(module.named_modules()):
        for child_name, child in list(parent.named_children()):
            fresh = make(f"{name}.{child_name}" if name else child_name, child)
            if fresh is not None:
                setattr(parent, child_name, fresh)


def candidate_algorithms(
    module: nn.Module,
    kernels: bool = False,
    exact: bool = False,
    fused: Sequence[str] = (),
    tiled: Sequence[str] = (),
) -> list[dict[str, ConvAlgorithm]]:
    """Return the choices worth timing, each by layer name; `kernels` is True if the Triton kernel is available.

    `fused` are layers that may compute the pool and the ReLU after them too. If all can, they are timed beside the
    kernel alone: on an H200 they take less than half of the others' time, and compiling each takes ten seconds.
    `tiled` are layers that the kernels for many channels take: one more choice. If all but the first are, it stands
    beside im2col alone, for the same reason.

    The first layer takes the kernel or windows, the others any algorithm; or all are grouped. With many channels, only
    im2col and tiles are tried: on VGG-11 the others take 5 and 10 times as long, and compiling each of them takes half
    a minute. For `exact` float32 none is grouped: cuDNN's gradient of grouped 5 x 5 filters is off by 4e-4.
    """
    layers = convolutions(module)
    names = list(layers)
    first: dict[str, ConvAlgorithm] = (
        {names[0]: "kernel" if kernels else "windows"} if layers[names[0]].groups == 1 else {}
    )
    grouped: dict[str, ConvAlgorithm] = dict.fromkeys(names, "grouped")
    slices: dict[str, ConvAlgorithm] = dict.fromkeys(names, "slices")
    together: dict[str, ConvAlgorithm] = dict.fromkeys(fused, "fused") if kernels else {}
    tiles: dict[str, ConvAlgorithm] = dict.fromkeys(tiled, "tiles") if kernels else {}
    added: list[dict[str, ConvAlgorithm]] = [{**slices, **first, **tiles, **together}] if tiles else []
    if has_many_channels(module):
        return [*added, {**slices, **first}]
    if tiles and set(names[1:]) <= tiles.keys():
        return [*added, *([{**slices, **first, **together}] if together else []), {**slices, **first}]
    candidates = [{**slices, **first}, {**grouped, **first}] if len(names) > 1 else [{**slices, **first}]
    candidates = [one for one in candidates if not (exact and "grouped" in one.values())]
    # The kernel has a gradient for its images with stride 1 only; the first layer needs none.
    own: dict[str, ConvAlgorithm] = {
        name: "kernel" for name in names[1:] if layers[name].stride == (1, 1) and layers[name].groups == 1
    }
    if kernels:
        candidates += [{**slices, **first, **own}] if own else []
        if together.keys() == layers.keys():
            return [together, {**slices, **first, **own}]
        return [*added, *([{**slices, **first, **together}] if together else []), *candidates]
    return candidates if exact else [*candidates, grouped]


def has_many_channels(module: nn.Module) -> bool:
    """True if a convolution is so wide that matrix products are the fastest algorithm for the network."""
    return any(layer.in_channels > MANY_CHANNELS for layer in convolutions(module).values())


MANY_CHANNELS = 64
"""Input channels above which a convolution counts as wide."""


def with_kernels(module: nn.Module, widest: int = 8) -> nn.Module:
    """Have convolutions of at most `widest` channels computed by the Triton kernel, the fastest for evaluation."""
    few = {
        name: layer for name, layer in convolutions(module).items() if layer.in_channels <= widest and layer.groups == 1
    }
    replace_layers(module, lambda name, layer: StackConv2d(few[name], "kernel") if name in few else None)
    return module
