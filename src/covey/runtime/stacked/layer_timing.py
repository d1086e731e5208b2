"""Layers timed alone, where that decides between steps: compiling a step takes longer than timing its layers.

A step with fused layers and one with convolution kernels differ in these layers alone. If the fused ones, with pool and
ReLU, take no longer than the convolutions by themselves, pool and ReLU can only add to the other step.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn

from covey.model.cuda_graph import record_graph, warm_up
from covey.runtime.stacked.autotune import TIMED_STEPS, replay_seconds
from covey.runtime.stacked.convolution import convolutions
from covey.runtime.stacked.image_convolution import image_gradient
from covey.runtime.stacked.pooled_check import image_shapes

_STRIDE = [1, 1]


def fused_layers_win(
    module: nn.Module,
    names: Collection[str],
    sample: Sequence[int],
    lanes: int,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """True if these layers, fused, take no longer forwards and backwards than their convolutions alone."""
    layers, shapes = convolutions(module), image_shapes(module, names, sample, device)
    first = next(iter(layers))
    fused = alone = 0.0
    try:
        for name in names:
            one, other = _works(layers[name], (lanes, batch, *shapes[name]), dtype, device, images=name != first)
            fused, alone = fused + _seconds(one, device), alone + _seconds(other, device)
    except Exception:
        # Too little memory, or a kernel that does not compile: whole steps are timed, which says more.
        return False
    return fused <= alone


def _works(
    layer: nn.Conv2d, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, images: bool
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the fused layer and its convolution alone, forwards and backwards; `images` need a gradient or not."""
    padding, kernel = [int(pad) for pad in layer.padding], list(layer.kernel_size)
    x = torch.randn(*shape, dtype=dtype, device=device)
    weight = torch.randn(shape[0], *layer.weight.shape, dtype=dtype, device=device)
    bias = None if layer.bias is None else torch.randn(shape[0], len(layer.bias), dtype=dtype, device=device)
    pooled = torch.ops.covey.pooled_convolution(x, weight, bias, padding)[0]
    convolved = torch.ops.covey.image_convolution(x, weight, bias, _STRIDE, padding)

    def fused() -> None:
        _, chosen = torch.ops.covey.pooled_convolution(x, weight, bias, padding)
        torch.ops.covey.pooled_convolution_filters(pooled, chosen, x, kernel, padding, bias is not None)
        if images:
            torch.ops.covey.pooled_convolution_images(pooled, chosen, weight, list(shape[-2:]), padding)

    def alone() -> None:
        torch.ops.covey.image_convolution(x, weight, bias, _STRIDE, padding)
        torch.ops.covey.image_convolution_gradients(convolved, x, kernel, _STRIDE, padding, bias is not None)
        if images:
            image_gradient(convolved, weight, _STRIDE, padding)

    return fused, alone


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    warm_up(work, device)
    return replay_seconds(record_graph(work), TIMED_STEPS)
