"""SGD's step of the weights of linear layers, from the layers' inputs and the gradients by their outputs, in one pass.

For every lane, with x `[b, i]`, ∂y `[b, o]`, rate η, momentum μ, decay λ, proximal term ρ and received weight w⁰,

    g = ∂yᵀx + λ w + ρ (w - w⁰),  v ← μ v + g,  w ← w - η v,

and the working copy of w. A weight's gradient exists only inside the chip: per element, a GPU reads and writes the
weight, and the velocity if there is one, and writes the working copy. There it is a Triton kernel
(`linear_update_kernels`), whose sums over samples are in float32; elsewhere, and in float64, PyTorch computes the same.
"""

import torch
from torch import Tensor

from covey.model.operators import define
from covey.runtime.stacked.linear_update_kernels import fits, update_by_triton
from covey.runtime.stacked.triton_support import available


def update_weights(
    gradient: Tensor,
    x: Tensor,
    rate: Tensor,
    settings: Tensor,
    received: Tensor | None,
    weight: Tensor,
    working: Tensor | None,
    velocity: Tensor | None,
    *,
    decays: bool,
) -> None:
    """Change weights `[lanes, o, i]`, their working copies and velocities in place.

    `x` is `[lanes, b, i]`, `gradient` `[lanes, b, o]`, `rate` `[lanes]`; `settings` are those of `Lanes`. Without
    momentum there is no `velocity`, without a proximal term no `received`; `decays` says if there is weight decay.
    Where the forward pass reads the weights themselves, `working` is None.
    """
    given = gradient.contiguous(), x.contiguous(), rate, settings, received
    torch.ops.covey.update_weights(*given, weight, working, velocity, decays)


def update_plainly(
    gradient: Tensor,
    x: Tensor,
    rate: Tensor,
    settings: Tensor,
    received: Tensor | None,
    weight: Tensor,
    working: Tensor | None,
    velocity: Tensor | None,
    decays: bool,
) -> None:
    """Compute the operator by PyTorch: the equations above, one after another."""
    momentum, decay, proximal = (one[:, None, None] for one in settings.unbind(dim=1)[:3])
    step = torch.bmm(gradient.mT.to(weight.dtype), x.to(weight.dtype))
    if decays:
        step = step + decay * weight
    if received is not None:
        step = step + proximal * (weight - received)
    if velocity is not None:
        step = momentum * velocity + step
        velocity.copy_(step)
    weight.sub_(rate[:, None, None] * step)
    if working is not None:
        working.copy_(weight)


def _update(
    gradient: Tensor,
    x: Tensor,
    rate: Tensor,
    settings: Tensor,
    received: Tensor | None,
    weight: Tensor,
    working: Tensor | None,
    velocity: Tensor | None,
    decays: bool,
) -> None:
    by_triton = available(x) and weight.dtype == torch.float32 and fits(x, weight)
    update = update_by_triton if by_triton else update_plainly
    update(gradient, x, rate, settings, received, weight, working, velocity, decays)


def _nothing(*inputs: object) -> None:
    """The operator returns nothing."""


define(
    "update_weights(Tensor gradient, Tensor x, Tensor rate, Tensor settings, Tensor? received, Tensor(a!) weight,"
    " Tensor(b!)? working, Tensor(c!)? velocity, bool decays) -> ()",
    _update,
    _nothing,
)
