"""The recurrence of an LSTM layer as one operator, forward and backward, for one model or a stack of them.

Unrolled in Python, a layer is hundreds of small operations to differentiate and compile. As one operator it takes two
per step: the product with the recurrent weights and the cell, for which PyTorch has a fused kernel on a GPU. The
gradient of the weights is one product over all steps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covey.model.operators import define, stack_rule


def scan(inputs: Tensor, weight: Tensor) -> Tensor:
    """Run one layer from h = c = 0 over `inputs` `[steps, n, 4 hidden]`; return h after each step `[steps, n, hidden]`.

    With W_hh the `weight`, σ the logistic function and ⊙ the elementwise product, each step computes

        (i, f, g, o) = inputs + W_hh h;  c ← σ(f) ⊙ c + σ(i) ⊙ tanh(g);  h ← σ(o) ⊙ tanh(c).
    """
    trace: Tensor = torch.ops.covey.lstm(inputs, weight.to(inputs.dtype))
    return trace[..., : weight.shape[-1]]


# ------------------------------------------------------------------------- implementation of the operators
# Shapes are without lanes; a stack has `lanes` as its first dimension.


def _forward(inputs: Tensor, weight: Tensor) -> Tensor:
    """`[steps, n, 4 hidden]`, `[4 hidden, hidden]` → the trace `[steps, n, 6 hidden]`: h, c, and σ or tanh of gates."""
    if inputs.dim() == 3:
        return _forward(inputs[None], weight[None])[0]
    lanes, steps, samples = inputs.shape[:3]
    hidden = weight.shape[-1]
    # Steps first: the inputs of a step are contiguous, the samples of all lanes one after another.
    gates_of = inputs.transpose(0, 1).reshape(steps, lanes * samples, 4 * hidden)
    transposed = weight.transpose(1, 2)
    h = c = inputs.new_zeros(lanes * samples, hidden)
    trace = []
    for step in range(steps):
        recurrent = torch.bmm(h.view(lanes, samples, hidden), transposed).view(lanes * samples, 4 * hidden)
        h, c, gates = _cell(gates_of[step], recurrent, c)
        trace.append(torch.cat([h, c, gates], dim=1))
    return torch.stack(trace).view(steps, lanes, samples, 6 * hidden).transpose(0, 1).contiguous()


def _backward(gradient: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
    """∂/∂h after each step `[steps, n, hidden]`, the trace, W_hh → ∂/∂inputs `[steps, n, 4 hidden]`."""
    if gradient.dim() == 3:
        return _backward(gradient[None], trace[None], weight[None])[0]
    lanes, steps, samples, hidden = gradient.shape
    by_step = trace.transpose(0, 1).reshape(steps, lanes * samples, 6 * hidden)
    from_above = gradient.transpose(0, 1).reshape(steps, lanes * samples, hidden)
    cells = by_step[:, :, hidden : 2 * hidden].contiguous()
    gates = by_step[:, :, 2 * hidden :].contiguous()
    nothing = torch.zeros_like(cells[0])
    grad_h, grad_c = from_above[-1], nothing
    results = []
    for step in reversed(range(steps)):
        before = cells[step - 1] if step else nothing
        grad_gates, grad_c = _cell_backward(grad_h, grad_c, before, cells[step], gates[step])
        results.append(grad_gates)
        if step:
            through_time = torch.bmm(grad_gates.view(lanes, samples, 4 * hidden), weight)
            grad_h = from_above[step - 1] + through_time.view(lanes * samples, hidden)
    return torch.stack(results[::-1]).view(steps, lanes, samples, 4 * hidden).transpose(0, 1).contiguous()


def _cell(inputs: Tensor, recurrent: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h and c after the step, and the gates σ(i), σ(f), tanh(g), σ(o)."""
    if inputs.is_cuda:
        fused: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._thnn_fused_lstm_cell(inputs, recurrent, c)
        return fused
    i, f, g, o = (inputs + recurrent).chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = torch.addcmul(i * g, f, c)
    return o * c.tanh(), c, torch.cat([i, f, g, o], dim=1)


def _cell_backward(grad_h: Tensor, grad_c: Tensor, before: Tensor, c: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Return ∂/∂(i, f, g, o) before σ and tanh, and ∂/∂c before the step."""
    if gates.is_cuda:
        fused = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(grad_h, grad_c, before, c, gates, False)
        return fused[0], fused[1]
    i, f, g, o = gates.chunk(4, dim=1)
    squashed = c.tanh()
    grad_c = torch.addcmul(grad_c, grad_h * o, 1 - squashed * squashed)
    parts = (
        grad_c * g * i * (1 - i),
        grad_c * before * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * squashed * o * (1 - o),
    )
    return torch.cat(parts, dim=1), grad_c * f


# ------------------------------------------------------------------------- registration as operators


def _differentiate(inputs: Sequence[Any], gradient: Tensor, needed: Sequence[bool]) -> tuple[Tensor, Tensor | None]:
    _, weight, trace = inputs
    hidden = weight.shape[-1]
    gates: Tensor = torch.ops.covey.lstm_gradient(gradient[..., :hidden], trace, weight)
    if not needed[1]:
        return gates, None
    # ∂/∂W_hh = Σ over steps of ∂/∂gates ⊗ h before the step; h is 0 before the first step.
    after, before = gates[..., 1:, :, :], trace[..., :-1, :, :hidden]
    return gates, after.flatten(-3, -2).transpose(-1, -2) @ before.flatten(-3, -2)


def _forward_shape(inputs: Tensor, weight: Tensor) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], 6 * weight.shape[-1])


def _backward_shape(gradient: Tensor, trace: Tensor, weight: Tensor) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], 4 * weight.shape[-1])


define(
    "lstm(Tensor inputs, Tensor weight) -> Tensor",
    _forward,
    _forward_shape,
    stack_rule("lstm", 4),
    _differentiate,
    keeps_output=True,
)
define(
    "lstm_gradient(Tensor gradient, Tensor trace, Tensor weight) -> Tensor",
    _backward,
    _backward_shape,
    stack_rule("lstm_gradient", 4),
)
