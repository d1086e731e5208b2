"""A check of the fused layers on the device at hand: their kernels against PyTorch in float64, on made-up numbers."""

import copy
from collections.abc import Callable, Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.runtime.stacked.convolution import convolutions
from covey.runtime.stacked.pooled_convolution_kernels import DEAD

LANES, SAMPLES, _MOST_SAMPLES = 3, 5, 64

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-3, torch.float16: 3e-3, torch.bfloat16: 1e-2}
"""Largest error, relative to the largest value; float32 may multiply in tf32."""


def image_shapes(
    module: nn.Module, names: Collection[str], sample: Sequence[int], device: torch.device
) -> dict[str, Sequence[int]]:
    """Return the shapes `[i, h, w]` of the images that these convolutions get for samples `[c, h, w]`."""
    copied = copy.deepcopy(module).to(device, torch.float32).eval()
    layers: dict[str, nn.Conv2d] = convolutions(copied)
    shapes: dict[str, Sequence[int]] = {}
    for name in names:
        layers[name].register_forward_pre_hook(lambda _, given, name=name: shapes.update({name: given[0].shape[1:]}))
    with torch.no_grad():
        copied(torch.zeros(2, *sample, device=device))
    return shapes


def layers_agree(
    module: nn.Module,
    names: Collection[str],
    sample: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    batch: int = SAMPLES,
    error_of: Callable[..., float] | None = None,
) -> bool:
    """True if each of these convolutions, with its pool and ReLU, is right for samples `[c, h, w]`.

    `error_of` is `worst_error`, or that of another operator. With the batch of the steps that follow, a small one,
    these use the kernels that are compiled for the check.
    """
    layers, shapes = convolutions(module), image_shapes(module, names, sample, device)
    samples = min(batch, _MOST_SAMPLES)
    try:
        error_of = error_of or worst_error
        errors = (error_of(layers[name], shapes[name], dtype, device, samples) for name in names)
        return all(error <= TOLERANCES[dtype] for error in errors)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # A kernel that does not compile for this device is not right for it.
        return False


def worst_error(
    layer: nn.Conv2d, image: Sequence[int], dtype: torch.dtype, device: torch.device, samples: int = SAMPLES
) -> float:
    """Return the largest error of output and gradients, each relative to its largest value, for images `[i, h, w]`."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    padding = [int(pad) for pad in layer.padding]
    x, weight = drawn(LANES, samples, *image), drawn(LANES, *layer.weight.shape)
    bias = None if layer.bias is None else drawn(LANES, *layer.bias.shape)
    y, chosen = torch.ops.covey.pooled_convolution(x, weight, bias, padding)
    upstream = drawn(*y.shape)
    of_filters, of_biases = torch.ops.covey.pooled_convolution_filters(
        upstream, chosen, x, weight.shape[3:], padding, bias is not None
    )
    of_images = torch.ops.covey.pooled_convolution_images(upstream, chosen, weight, image[1:], padding)
    exact = [one.double().requires_grad_() for one in (x, weight, bias) if one is not None]
    largest, at_place = _exactly(exact, chosen, padding)
    # Gradients are those of the same choices: where two values are nearly equal, either is right.
    wanted = torch.autograd.grad(at_place, exact, upstream.double())
    pairs = [(y, largest), (at_place, largest), (of_images, wanted[0]), (of_filters, wanted[1])]
    pairs += [] if bias is None else [(of_biases, wanted[2])]
    if int(chosen.max()) > DEAD:
        return float("inf")
    errors = torch.stack([((one.double() - other).abs().max() / other.abs().max()).detach() for one, other in pairs])
    # What is not a number is wrong.
    return float(errors.nan_to_num(torch.inf).max())


def _exactly(exact: Sequence[Tensor], chosen: Tensor, padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the pooled output after ReLU, and the values at the places that were chosen."""
    biases = exact[2] if len(exact) == 3 else [None] * len(exact[0])
    lanes = zip(exact[0], exact[1], biases, strict=True)
    convolved = torch.stack([F.conv2d(one, weight, bias, 1, tuple(padding)) for one, weight, bias in lanes])
    rows, columns = (2 * size for size in chosen.shape[-2:])
    squares = convolved[..., :rows, :columns].reshape(*chosen.shape[:-1], 2, -1, 2).transpose(-3, -2)
    four = squares.flatten(-2)
    at_place = four.gather(-1, chosen.long().clamp(max=3)[..., None])[..., 0]
    return four.amax(-1).relu(), torch.where(chosen == DEAD, 0.0, at_place)
