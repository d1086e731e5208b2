"""Layers computed in a faster way on a CPU, with the same results to the bit as long as gradients are finite.

For large linear layers that was seen on one of AMD's processors; others may add up in another order.

Where a layer, its input or the processor is not of the kind that is faster here, PyTorch computes it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW_CHANNELS = 16
"""PyTorch's pool is slow below so many channels: it takes as many numbers at a time."""

_FEW_FILTERS = 8
"""oneDNN computes 16 filters at a time: with so few, it has room for those of two pixels."""

_LARGE_FILTER = 5
"""Side of a filter from which oneDNN takes its slow way to the gradient of few inputs in bfloat16."""

_LARGE_POOL = 1 << 16
"""Numbers from which a pool gains more than the calls of Python cost."""

_LARGE_IMAGES = 1 << 17
"""Numbers in the output of a convolution from which it gains."""

_LARGE_PRODUCT = 1 << 22
"""Multiplications from which a matrix product gains."""

_NARROW = 64
"""Inputs and outputs that a linear layer has at least to gain."""

_BLOCK = 192
"""Terms that MKL adds up on AMD's processors before it adds them to the result; oneDNN adds up all."""


def relu_of_pool(x: Tensor) -> Tensor:
    """Return ReLU of the largest values of squares of 2 x 2."""
    if not _is_image_on_cpu(x):
        return F.relu(F.max_pool2d(x, 2))
    y = F.relu(_MaxPool.apply(x) if _pool_gains(x) else F.max_pool2d(x, 2))  # type: ignore[no-untyped-call]
    if y.requires_grad:
        # The gradient of a `flatten` has another layout, and ReLU is slow in two.
        y.register_hook(_as_channels_last)  # type: ignore[no-untyped-call]
    return y


def adopt_cpu_layers(module: nn.Module) -> None:
    """Turn large linear layers, convolutions of few channels, and pools of 2 x 2 into ours, in place."""
    there: Callable[[], bool] = torch.backends.mkldnn.is_available
    for layer in module.modules():
        if type(layer) is nn.Linear and min(layer.weight.shape) >= _NARROW and _product is not None:
            layer.__class__ = Linear
        elif type(layer) is nn.Conv2d and _is_plain_convolution(layer) and there():
            layer.__class__ = Conv2d
        elif type(layer) is nn.MaxPool2d and _is_plain(layer):
            layer.__class__ = MaxPool2d


class Conv2d(nn.Conv2d):
    """A convolution with few filters, which computes two pixels side by side at once, or with few inputs."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        width = x.shape[-1] + 2 * int(self.padding[1]) - self.kernel_size[1] + 1
        small = x.dim() == 4 and x.shape[0] * x.shape[2] * width * len(weight) < _LARGE_IMAGES
        if small or width % 2 or x.dtype == torch.float64 or not _is_image_on_cpu(x):
            plain: Tensor = super()._conv_forward(x, weight, bias)
            return plain
        if torch.is_autocast_enabled("cpu"):
            kind = torch.get_autocast_dtype("cpu")
            x, weight, bias = x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
        found: Tensor = _Convolution.apply(x, weight, bias, self.padding)  # type: ignore[no-untyped-call]
        return found


class MaxPool2d(nn.MaxPool2d):
    """A max pool of 2 x 2."""

    def forward(self, x: Tensor) -> Tensor:
        if _is_image_on_cpu(x) and _pool_gains(x):
            pooled: Tensor = _MaxPool.apply(x)  # type: ignore[no-untyped-call]
            return pooled
        plain: Tensor = super().forward(x)
        return plain


class Linear(nn.Linear):
    """A linear layer whose backward pass has two products of matrices by oneDNN."""

    def forward(self, x: Tensor) -> Tensor:
        if not _product_gains(x, self.weight):
            return super().forward(x)
        found: Tensor = _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def _is_image_on_cpu(x: Tensor) -> bool:
    """True for a batch of images on a CPU, channels innermost; not where functions are traced or transformed."""
    if type(x) is not Tensor or x.device.type != "cpu" or torch.compiler.is_compiling() or _is_transformed():
        return False
    return x.dim() == 4 and x.shape[1] > 1 and x.is_contiguous(memory_format=torch.channels_last)


def _is_transformed() -> bool:
    """True within `torch.func.grad` or `vmap`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _pool_gains(x: Tensor) -> bool:
    few = x.shape[1] < _FEW_CHANNELS and x.numel() >= _LARGE_POOL
    return few and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 and x.is_floating_point()


def _product_gains(x: Tensor, weight: Tensor) -> bool:
    if type(x) is not Tensor or x.device.type != "cpu" or torch.compiler.is_compiling() or _is_transformed():
        return False
    large = x.dim() == 2 and len(x) * weight.numel() >= _LARGE_PRODUCT
    single = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return large and single and torch.is_grad_enabled()


def _is_plain_convolution(layer: nn.Conv2d) -> bool:
    """True for few filters or inputs, where filters move by one pixel over images padded with zeros."""
    moves = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return moves and padded and (layer.out_channels <= _FEW_FILTERS or _has_few_inputs(layer.weight))


def _has_few_inputs(weight: Tensor) -> bool:
    """True if the gradient of a convolution's input takes longer in bfloat16 with channels innermost."""
    return weight.shape[1] <= _FEW_FILTERS and min(weight.shape[2:]) >= _LARGE_FILTER


def _is_plain(layer: nn.MaxPool2d) -> bool:
    """True for squares of 2 x 2 side by side."""

    def both(value: Any, wanted: int) -> bool:
        return bool(value == wanted or value == (wanted, wanted))

    beside = both(layer.kernel_size, 2) and both(layer.stride, 2) and both(layer.padding, 0) and both(layer.dilation, 1)
    return beside and not (layer.ceil_mode or layer.return_indices)


class _Convolution(torch.autograd.Function):
    """A convolution whose filters, and their copies moved by one pixel, move by two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.padding = padding
        if len(weight) > _FEW_FILTERS:
            return F.conv2d(x, weight, bias, padding=padding)
        filters = torch.cat((F.pad(weight, (0, 1)), F.pad(weight, (1, 0))))
        biases = None if bias is None else bias.repeat(2)
        pairs = F.conv2d(x, filters, biases, stride=(1, 2), padding=padding)
        n, _, height, half = pairs.shape
        # Both pixels of a pair lie side by side in memory, too.
        return pairs.permute(0, 2, 3, 1).reshape(n, height, 2 * half, len(weight)).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        x, weight, bias = inputs
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            y = F.conv2d(x, weight, bias, padding=ctx.padding)
            chosen = [one for one, needed in zip(inputs, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(y, chosen, gradient, create_graph=True))
            return *(next(found) if needed else None for needed in wanted), None
        sizes = None if bias is None else list(bias.shape)
        rest = (sizes, [1, 1], list(ctx.padding), [1, 1], False, [0, 0], 1)
        differentiate = torch.ops.aten.convolution_backward
        if not (wanted[0] and x.dtype == torch.bfloat16 and _has_few_inputs(weight)):
            return *differentiate(gradient, x, weight, *rest, list(wanted)), None
        # Channels outermost, oneDNN takes another way, which rounds sums of the same accuracy otherwise.
        of_x = differentiate(gradient.contiguous(), x.contiguous(), weight, *rest, [True, False, False])[0]
        others = differentiate(gradient, x, weight, *rest, [False, *wanted[1:]])
        return _as_channels_last(of_x), *others[1:], None


class _MaxPool(torch.autograd.Function):
    """A max pool of 2 x 2: whole rows of pixels are compared at once, first the columns of a square, then its rows.

    Of equal values the first gets the gradient, row by row, as in PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        # bfloat16 would be converted value by value.
        pixels = x.detach().permute(0, 2, 3, 1).to(_wide(x.dtype)).view(n, h, w // 2, 2, c)
        left, right = pixels.unbind(3)
        columns = torch.maximum(left, right).view(n, h // 2, 2, w // 2 * c)
        above, below = columns.unbind(2)
        # As numbers: a comparison that gives true or false is computed value by value.
        is_left = torch.ge(left, right, out=torch.empty_like(left, memory_format=torch.contiguous_format))
        is_above = torch.ge(above, below, out=torch.empty_like(above, memory_format=torch.contiguous_format))
        ctx.save_for_backward(x, is_left, is_above)
        return torch.maximum(above, below).view(n, h // 2, w // 2, c).to(x.dtype).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, is_left, is_above = ctx.saved_tensors
        if torch.is_grad_enabled():
            # A second derivative is wanted.
            again: Tensor = torch.autograd.grad(F.max_pool2d(x, 2), x, gradient, create_graph=True)[0]
            return again
        n, h, half, c = is_left.shape
        given = gradient.permute(0, 2, 3, 1).to(is_left.dtype).contiguous().view(n, h // 2, half * c)
        columns = given.new_empty(n, h // 2, 2, half * c)
        torch.mul(given, is_above, out=columns[:, :, 0])
        torch.sub(given, columns[:, :, 0], out=columns[:, :, 1])
        columns = columns.view(n, h, half, c)
        pixels = given.new_empty(n, h, half, 2, c)
        torch.mul(columns, is_left, out=pixels[..., 0, :])
        torch.sub(columns, pixels[..., 0, :], out=pixels[..., 1, :])
        return pixels.view(n, h, 2 * half, c).to(x.dtype).permute(0, 3, 1, 2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _as_channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


class _Linear(torch.autograd.Function):
    """A linear layer; for the shapes of its backward pass, oneDNN takes half the time of MKL on AMD's processors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        multiply = torch.mm if torch.is_grad_enabled() else _blocked
        return (
            multiply(gradient, weight) if of_x else None,
            multiply(gradient.t(), x) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _blocked(a: Tensor, b: Tensor) -> Tensor:
    """Return a·b as MKL adds it up: in blocks of terms."""
    assert _product is not None
    first, *others = (
        _product(a[:, at : at + _BLOCK], b[at : at + _BLOCK].t(), None, "none", [], "")
        for at in range(0, a.shape[1], _BLOCK)
    )
    for other in others:
        first += other
    found: Tensor = first
    return found


def _onednn_product() -> Callable[..., Tensor] | None:
    """Return oneDNN's product x·wᵀ, if this PyTorch has it and gains by it."""
    there: Callable[[], bool] = torch.backends.mkldnn.is_available
    known = there() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return torch.ops.mkldnn._linear_pointwise if known and _is_amd() else None


def _is_amd() -> bool:
    """True if MKL runs on a processor that it was not made for."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


_product = _onednn_product()
