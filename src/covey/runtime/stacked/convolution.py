"""Convolutions of a stack: every lane has its own kernels, so cuDNN's fast paths for shared ones do not apply.

Three kinds of ways: one grouped convolution over all lanes (what vmap makes of a convolution), the patches of every
image laid out as a matrix and one batched matrix product (im2col), or a kernel of our own that never writes patches
to memory. Which is faster depends on channels, kernel and image, so whole steps are measured on the device at hand,
and what was found is kept for the next run.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.runtime.stacked.kernels import image_convolution

Way = Literal["grouped", "slices", "windows", "kernel"]
"""One grouped convolution; patches as slices side by side; patches as windows of a view; our own kernel.

Windows make the patches fastest, but their gradient for the image is a scatter: for the first layer, which
needs none. The gradient of slices is a sum of slices. Where every channel has a kernel to itself, slices need no
matrix: they are weighed and added, which a compiler makes one pass over the images.
"""


class StackConv2d(nn.Module):
    """A convolution computed in one of these ways; parameters as in `nn.Conv2d`."""

    def __init__(self, layer: nn.Conv2d, way: Way) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding, self.dilation, self.groups = (
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "kernel":
            x, weight, bias = _cast(x.device.type, x, self.weight, self.bias)
            return image_convolution(x, weight, bias, self.stride, self.padding)
        if self.way == "grouped":
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if self.groups > 1:
            return channelwise_convolution(x, self.weight, self.bias, self.stride, self.padding)
        return patches_convolution(x, self.weight, self.bias, self.stride, self.padding, windows=self.way == "windows")


def _cast(device: str, *tensors: Tensor | None) -> tuple[Any, ...]:
    """Tensors in the arithmetic of autocast, where that is on; operators of our own do not take part in it."""
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
    """Convolution as a matrix product: images `[b, i, h, w]`, kernels `[o, i, kh, kw]` → `[b, o, h', w']`."""
    product = _windows_product if windows else _slices_product
    out = product(_padded(x, weight, padding), weight, stride)
    return out if bias is None else out + bias[:, None, None]


def channelwise_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...] | str
) -> Tensor:
    """Convolution of every channel with a kernel of its own, `[c, 1, kh, kw]`."""
    slices = _slices(_padded(x, weight, padding), weight, stride)
    weights = weight.flatten(1).unbind(1)
    # One sum after another, which a compiler takes as one pass; a stack of them it would write to memory.
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
    """What lies under each element of the kernels, row by row: `[b, i, h', w']` each."""
    height, width = _output_size(x, weight, stride)
    slices = [
        x[:, :, row : row + stride[0] * height : stride[0], column : column + stride[1] * width : stride[1]]
        for row in range(weight.shape[2])
        for column in range(weight.shape[3])
    ]
    return [part[:, :, :height, :width] for part in slices]


def _windows_product(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Every window of an image as a row, times the kernels as columns."""
    wide, kernel_h, kernel_w = weight.shape[0], *weight.shape[2:]
    rows = x.unfold(2, kernel_h, stride[0]).unfold(3, kernel_w, stride[1]).permute(0, 2, 3, 1, 4, 5).flatten(3)
    kernels = weight.flatten(1).t()
    if x.is_cuda:
        rows = F.pad(rows, (0, -rows.shape[-1] % _WHOLE))
        kernels = F.pad(kernels, (0, -wide % _WHOLE, 0, -kernels.shape[0] % _WHOLE))
    out = (rows.flatten(0, 2) @ kernels)[:, :wide]
    return out.reshape(*rows.shape[:3], wide).permute(0, 3, 1, 2)


def _slices_product(x: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The kernels as rows, times the slice of all images under each of their elements.

    Kernels and their gradient keep the layout they are stored in, and neighbours in an image stay neighbours.
    """
    under = torch.stack([part.transpose(0, 1) for part in _slices(x, weight, stride)], dim=1)
    under = under.flatten(2).flatten(0, 1)
    kernels, places = weight.flatten(1), under.shape[1]
    if x.is_cuda:
        under = F.pad(under, (0, -places % _WHOLE, 0, -len(under) % _WHOLE))
        kernels = F.pad(kernels, (0, -kernels.shape[1] % _WHOLE))
    out = (kernels @ under)[:, :places]
    return out.reshape(len(weight), len(x), *_output_size(x, weight, stride)).transpose(0, 1)


_WHOLE = 8
"""Matrix units want rows of whole 16 bytes; zeros up to there cost less than a slow kernel."""


def convertible(layer: nn.Module) -> bool:
    """Whether a layer can be computed from patches, or channel by channel."""
    if type(layer) is not nn.Conv2d or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        return False
    return layer.groups == 1 or layer.groups == layer.in_channels == layer.out_channels


def convolutions(module: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: layer for name, layer in module.named_modules() if type(layer) is nn.Conv2d and convertible(layer)}


def replace_layers(module: nn.Module, make: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Put what `make(name, layer)` returns in the place of a layer, where it returns something."""
    for name, parent in list(module.named_modules()):
        for child_name, child in list(parent.named_children()):
            fresh = make(f"{name}.{child_name}" if name else child_name, child)
            if fresh is not None:
                setattr(parent, child_name, fresh)


def candidate_ways(module: nn.Module, kernels: bool = False, exact: bool = False) -> list[dict[str, Way]]:
    """Ways worth a measurement: our kernel or windows for the first layer, any way for the others; or all grouped.

    With many channels it is matrix products: on VGG-11 the other ways take 5 and 10 times as long, and to compile them
    only to learn that takes half a minute each. Where float32 is to be `exact`, none is grouped: cuDNN's gradient of
    grouped 5 x 5 kernels is off by 4e-4.
    """
    layers = convolutions(module)
    names = list(layers)
    first: dict[str, Way] = {names[0]: "kernel" if kernels else "windows"} if layers[names[0]].groups == 1 else {}
    grouped: dict[str, Way] = dict.fromkeys(names, "grouped")
    slices: dict[str, Way] = dict.fromkeys(names, "slices")
    if has_many_channels(module):
        return [{**slices, **first}]
    candidates = [{**slices, **first}, {**grouped, **first}] if len(names) > 1 else [{**slices, **first}]
    candidates = [ways for ways in candidates if not (exact and "grouped" in ways.values())]
    # Its gradient for the images is there for stride 1; the first layer needs none.
    own: dict[str, Way] = {
        name: "kernel" for name in names[1:] if layers[name].stride == (1, 1) and layers[name].groups == 1
    }
    if kernels:
        return [*candidates, {**slices, **first, **own}] if own else candidates
    return candidates if exact else [*candidates, grouped]


def has_many_channels(module: nn.Module) -> bool:
    """Whether some convolution is wide enough that matrix products are the fastest way for the network."""
    return any(layer.in_channels > MANY_CHANNELS for layer in convolutions(module).values())


MANY_CHANNELS = 64


def with_kernels(module: nn.Module, widest: int = 8) -> nn.Module:
    """The module with convolutions of few channels computed by our kernel, as evaluation on a GPU wants them."""
    few = {
        name: layer for name, layer in convolutions(module).items() if layer.in_channels <= widest and layer.groups == 1
    }
    replace_layers(module, lambda name, layer: StackConv2d(few[name], "kernel") if name in few else None)
    return module


def cache_file(kind: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "covey" / f"{kind}.json"


def read_cache(kind: str) -> dict[str, Any]:
    """What earlier runs on this machine measured to be fastest; nothing where it cannot be read."""
    try:
        known = json.loads(cache_file(kind).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def write_cache(kind: str, known: Mapping[str, Any]) -> None:
    """Keep measurements for the next run; a cache that cannot be written is done without."""
    file = cache_file(kind)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(known, indent=1), encoding="utf-8")
        beside.replace(file)


def nearest(known: Mapping[str, Any], place: Callable[[int], str], count: int) -> tuple[int, Any] | None:
    """What is known for so many lanes, or for the nearest number from half to twice as many; with that number."""
    near = sorted(range(-(-count // 2), 2 * count + 1), key=lambda other: (abs(other - count), other))
    return next(((other, known[where]) for other in near if (where := place(other)) in known), None)


def replay_seconds(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """Seconds of one replay."""
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats
