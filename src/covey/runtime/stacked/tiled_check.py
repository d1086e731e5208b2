"""Convolutions that the Triton kernels for many channels may compute, and a check of these on the device at hand.

With the variable COVEY_TILES=1, a GPU times steps with these layers beside others, and takes them where they are
faster and right. Off otherwise: nobody has timed them on a GPU yet.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from covey.runtime.stacked.convolution import convolutions
from covey.runtime.stacked.pooled_check import LANES, SAMPLES
from covey.runtime.stacked.tiled_convolution import tiled_convolution
from covey.runtime.stacked.tiled_convolution_plan import TUNED, tuned

SETTING = "COVEY_TILES"
"""Environment variable: with 1, a GPU tries the kernels for many channels."""

LEAST_CHANNELS = 8
"""Channels below which rows of the product are too short to read."""


def wanted() -> bool:
    """True if the kernels for many channels are to be tried."""
    return os.environ.get(SETTING) == "1"


def tileable(module: nn.Module) -> list[str]:
    """Return the names of convolutions that the kernels take; filters of one pixel have no patches to save."""
    return [
        name
        for name, layer in convolutions(module).items()
        if layer.groups == 1 and layer.in_channels >= LEAST_CHANNELS and layer.kernel_size != (1, 1)
    ]


def worst_error(
    layer: nn.Conv2d, image: Sequence[int], dtype: torch.dtype, device: torch.device, samples: int = SAMPLES
) -> float:
    """Return the largest error of output and gradients, each relative to its largest value, for images `[i, h, w]`."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x, weight = drawn(LANES, samples, *image).requires_grad_(), drawn(LANES, *layer.weight.shape).requires_grad_()
    bias = None if layer.bias is None else drawn(LANES, *layer.bias.shape).requires_grad_()
    y = tiled_convolution(x, weight, bias, layer.stride, layer.padding)
    upstream = drawn(*y.shape)
    given = [one for one in (x, weight, bias) if one is not None]
    exact = [one.detach().double().requires_grad_() for one in given]
    lanes = ((one[0], dict(zip(("weight", "bias"), one[1:], strict=False))) for one in zip(*exact, strict=True))
    expected = torch.stack([functional_call(layer, parameters, (images,)) for images, parameters in lanes])
    right = [expected, *torch.autograd.grad(expected, exact, upstream.double())]
    found = [y, *torch.autograd.grad(y, given, upstream, retain_graph=True)]
    with tuned(filters=replace(TUNED["filters"], programs=0)):
        # All pixels in one part, as with many lanes: that is another kernel.
        found += torch.autograd.grad(y, weight, upstream)
    pairs = zip(found, [*right, right[2]], strict=True)
    errors = torch.stack([((one.double() - other).abs().max() / other.abs().max()).detach() for one, other in pairs])
    # What is not a number is wrong.
    return float(errors.nan_to_num(torch.inf).max())
