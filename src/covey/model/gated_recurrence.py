"""The recurrence of a GRU layer as one operator, forward and backward, for one model or a stack of them.

As for the LSTM (`recurrence`): a step is one product with the recurrent weights and a few operations on its result, and
the gradient of the weights is one product over all steps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covey.model.operators import define, stack_rule


def gated_scan(inputs: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
    """Run one layer over `inputs` `[steps, n, 3 hidden]` from h = `start`; return h after each step.

    With W_hh the `weight`, b_hh the `bias`, σ the logistic function and ⊙ the elementwise product, each step computes

        (a_r, a_z, a_n) = inputs,  (b_r, b_z, m) = W_hh h + b_hh,
        r = σ(a_r + b_r),  z = σ(a_z + b_z),  c = tanh(a_n + r ⊙ m),  h ← (1 - z) ⊙ c + z ⊙ h.
    """
    dtype = inputs.dtype
    trace: Tensor = torch.ops.covey.gru(inputs, weight.to(dtype), bias.to(dtype), start.to(dtype))
    return trace[..., : weight.shape[-1]]


# ------------------------------------------------------------------------- implementation of the operators
# Shapes are without lanes; a stack has `lanes` as its first dimension.


def _forward(inputs: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
    """`[steps, n, 3 hidden]`, `[3 hidden, hidden]`, `[3 hidden]`, `[n, hidden]` → the trace `[steps, n, 5 hidden]`.

    The trace holds h, r, z, c and m.
    """
    if inputs.dim() == 3:
        return _forward(inputs[None], weight[None], bias[None], start[None])[0]
    h, transposed, trace = start, weight.transpose(1, 2), []
    for step in range(inputs.shape[1]):
        recurrent = torch.baddbmm(bias[:, None], h, transposed)
        of_r, of_z, of_c = inputs[:, step].chunk(3, dim=-1)
        more_r, more_z, m = recurrent.chunk(3, dim=-1)
        r, z = (of_r + more_r).sigmoid(), (of_z + more_z).sigmoid()
        c = (of_c + r * m).tanh()
        h = torch.lerp(c, h, z)
        trace.append(torch.cat([h, r, z, c, m], dim=-1))
    return torch.stack(trace, dim=1)


def _backward(gradient: Tensor, trace: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    """∂/∂h after each step, the trace, W_hh, h at the start → `[steps + 1, n, 4 hidden]`.

    A step's row holds ∂/∂(a_r, a_z, a_n, m), and the last one ∂/∂start, followed by zeros.
    """
    if gradient.dim() == 3:
        return _backward(gradient[None], trace[None], weight[None], start[None])[0]
    steps = trace.shape[1]
    h_after, r, z, c, m = trace.chunk(5, dim=-1)
    grad_h = torch.zeros_like(start)
    rows = []
    for step in reversed(range(steps)):
        before = h_after[:, step - 1] if step else start
        r_now, z_now, c_now = r[:, step], z[:, step], c[:, step]
        grad_h = grad_h + gradient[:, step]
        of_c = grad_h * (1 - z_now) * (1 - c_now * c_now)
        of_z = grad_h * (before - c_now) * z_now * (1 - z_now)
        of_m = of_c * r_now
        of_r = of_c * m[:, step] * r_now * (1 - r_now)
        rows.append(torch.cat([of_r, of_z, of_c, of_m], dim=-1))
        grad_h = torch.baddbmm(grad_h * z_now, torch.cat([of_r, of_z, of_m], dim=-1), weight)
    last = torch.cat([grad_h, *(torch.zeros_like(grad_h) for _ in range(3))], dim=-1)
    return torch.stack([*rows[::-1], last], dim=1)


# ------------------------------------------------------------------------- registration as operators


def _differentiate(inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    _, weight, _, start, trace = inputs
    hidden = weight.shape[-1]
    found: Tensor = torch.ops.covey.gru_gradient(gradient[..., :hidden], trace, weight, start)
    rows, of_start = found[..., :-1, :, :], found[..., -1, :, :hidden]
    of_inputs = rows[..., : 3 * hidden]
    if not (needed[1] or needed[2]):
        return of_inputs, None, None, of_start
    recurrent = torch.cat([rows[..., : 2 * hidden], rows[..., 3 * hidden :]], dim=-1)
    before = torch.cat([start[..., None, :, :], trace[..., :-1, :, :hidden]], dim=-3)
    of_weight = recurrent.flatten(-3, -2).transpose(-1, -2) @ before.flatten(-3, -2)
    return of_inputs, of_weight, recurrent.sum(dim=(-3, -2)), of_start


def _forward_shape(inputs: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], 5 * weight.shape[-1])


def _backward_shape(gradient: Tensor, trace: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    steps, samples = gradient.shape[-3:-1]
    return gradient.new_empty(*gradient.shape[:-3], steps + 1, samples, 4 * weight.shape[-1])


define(
    "gru(Tensor inputs, Tensor weight, Tensor bias, Tensor start) -> Tensor",
    _forward,
    _forward_shape,
    stack_rule("gru", 4),
    _differentiate,
    keeps_output=True,
)
define(
    "gru_gradient(Tensor gradient, Tensor trace, Tensor weight, Tensor start) -> Tensor",
    _backward,
    _backward_shape,
    stack_rule("gru_gradient", 4),
)
