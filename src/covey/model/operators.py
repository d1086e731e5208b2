"""Custom operators `covey::*` that work under `vmap`, `torch.func.grad` and `torch.compile`, as PyTorch's own do."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function

_registry: Any = torch.library
_library = _registry.Library("covey", "FRAGMENT")

Differentiate = Callable[[Sequence[Any], Tensor, Sequence[bool]], Sequence[Tensor | None]]
"""`(inputs, gradient of the output, which inputs need one)` → a gradient or None for every input.

With `keeps_output`, the output is appended to the inputs; of several outputs, the first alone has a gradient.
"""


def define(
    schema: str,
    compute: Callable[..., Any],
    shape: Callable[..., Any],
    lanes: Callable[..., Any] | None = None,
    differentiate: Differentiate | None = None,
    *,
    keeps_output: bool = False,
) -> None:
    """Define the operator `covey::name(...)` of a schema.

    `compute` is the operator itself; `shape` returns empty tensors of the output's shape; `lanes` is the operator under
    `vmap`, as `torch.library.register_vmap` takes it, if it is used there; `differentiate` is its backward pass.
    """
    name = schema.split("(", maxsplit=1)[0]
    _library.define(schema)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    _registry.register_fake(f"covey::{name}", shape, lib=_library)
    if lanes is not None:
        _registry.register_vmap(f"covey::{name}", lanes, lib=_library)
    if differentiate is not None:
        _library.impl(name, _with_gradient(name, differentiate, keeps_output), "Autograd", with_keyset=True)


def _with_gradient(name: str, differentiate: Differentiate, keeps_output: bool) -> Callable[..., Any]:
    """Return the operator's implementation for the autograd dispatch key.

    `torch.library.register_autograd` makes an `autograd.Function` that refuses `torch.func.grad`, and one called
    outside an operator loses its backward pass when `vmap(grad(...))` is compiled. So the function is registered at the
    operator's autograd key, for a single level of differentiation, as PyTorch's own operators are.
    """

    class Differentiable(torch.autograd.function._SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, keys: Any, *inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                y = getattr(torch.ops.covey, name).default.redispatch(keys & torch._C._after_autograd_keyset, *inputs)
            outputs = y if isinstance(y, tuple) else (y,)
            ctx.mark_non_differentiable(*outputs[1:])
            kept = (*inputs, *outputs) if keeps_output else inputs
            ctx.others = [None if isinstance(value, Tensor) else value for value in kept]
            ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in kept))
            return y

        @staticmethod
        def backward(ctx: Any, gradient: Tensor, *of_others: Any) -> tuple[Tensor | None, ...]:
            inputs = [
                other if saved is None else saved for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)
            ]
            return None, *differentiate(inputs, gradient, ctx.needs_input_grad[1:])

    differentiable: Any = Differentiable

    def differentiably(keys: Any, *inputs: Any) -> Any:
        with enable_single_level_autograd_function():
            return differentiable.apply(keys, *inputs)

    return differentiably


def stacked(info: Any, tensor: Tensor | None, dimension: int | None) -> Tensor | None:
    """Return a tensor under `vmap` as a stack of lanes; one that all lanes share is not copied.

    It is made contiguous here, where the compiler can see it and produce it contiguous in the first place.
    """
    if tensor is None:
        return None
    if dimension is None:
        return tensor.expand(info.batch_size, *tensor.shape)
    return _written_once((tensor if dimension == 0 else tensor.movedim(dimension, 0)).contiguous())


def _written_once(tensor: Tensor) -> Tensor:
    """Return the tensor, as a view that has PyTorch's compiler keep what it is a view of.

    Otherwise the compiler writes an operator's input anew for every operator that reads it: often twice, as the
    backward pass reads most of them again.
    """
    functorch = torch._C._functorch
    if torch._guards.TracingContext.try_get() is None:
        return tensor
    if functorch.is_batchedtensor(tensor) or functorch.is_gradtrackingtensor(tensor):
        return tensor
    return tensor.as_strided(tensor.shape, tensor.stride())


def merged(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return tensors `[lanes, samples, ...]`, of a `vmap` within a `vmap`, as one stack `[lanes·samples, ...]`.

    Operators know one dimension of lanes, and would misread a second.
    """
    return [None if tensor is None else tensor.flatten(0, 1) for tensor in tensors]


def apart(info: Any, result: Tensor) -> Tensor:
    """Return a result for merged tensors as `[lanes, samples, ...]`."""
    return result.reshape(info.batch_size, len(result) // info.batch_size, *result.shape[1:])


def stack_rule(name: str, dimensions_of_a_stack: int) -> Callable[..., tuple[Tensor, int]]:
    """Return the rule under `vmap` of an operator that takes tensors alone, each of one model or of a stack.

    The first tensor of a stack has `dimensions_of_a_stack`; with one more, it is of a `vmap` within a `vmap`.
    """

    def rule(info: Any, dimensions: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        operator = getattr(torch.ops.covey, name)
        given = [stacked(info, tensor, at) for tensor, at in zip(tensors, dimensions, strict=True)]
        if given[0] is not None and given[0].dim() > dimensions_of_a_stack:
            return apart(info, operator(*merged(given))), 0
        result: Tensor = operator(*given)
        return result, 0

    return rule


def lanes_rule(name: str, tensors: int, outputs: int = 1) -> Callable[..., Any]:
    """Return the rule under `vmap` of an operator on images, whose first inputs are so many tensors.

    The first has four dimensions, and two more in a `vmap` within a `vmap`.
    """

    def rule(info: Any, dimensions: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        operator = getattr(torch.ops.covey, name)
        given = [stacked(info, *pair) for pair in zip(inputs[:tensors], dimensions[:tensors], strict=True)]
        assert given[0] is not None
        within = given[0].dim() == 6
        found = operator(*(merged(given) if within else given), *inputs[tensors:])
        if outputs == 1:
            return (apart(info, found) if within else found), 0
        return tuple(apart(info, one) for one in found) if within else found, (0,) * outputs

    return rule
