"""Steps of local training: SGD with momentum, Adam or AdamW, on a gradient with all its terms."""

import torch
from torch import Tensor

from covey.config.sections import Local

Tensors = tuple[Tensor, ...] | list[Tensor]
"""One tensor for each parameter."""

BETAS = 0.9, 0.999
"""Decay of Adam's two moments, as in `torch.optim.Adam`."""

EPSILON = 1e-8
"""Added to the root of Adam's second moment."""

NORM_EPSILON = 1e-6
"""Added to the norm that a gradient is clipped by, as in `torch.nn.utils.clip_grad_norm_`."""


class LocalOptimizer:
    """Moves a model's parameters, in place, through one local training; momentum and moments start from zero.

    g = ∇loss(w) + weight_decay·w + proximal·(w - w⁰), with w⁰ in `received`. Clipping scales the gradient of the local
    objective, ∇loss(w) + proximal·(w - w⁰), down to the norm `clip`.
    SGD: v ← momentum·v + g;  w ← w - rate·v.
    Adam, at step n: m ← β₁·m + (1 - β₁)·g;  s ← β₂·s + (1 - β₂)·g²;  w ← w - rate·m̂ / (√ŝ + ε), with m̂ = m / (1 - β₁ⁿ)
    and ŝ = s / (1 - β₂ⁿ).
    AdamW (Loshchilov and Hutter 2019) leaves weight_decay·w out of g, and takes w ← (1 - rate·weight_decay)·w before
    Adam's step.
    """

    def __init__(self, work: Local, parameters: list[Tensor], received: list[Tensor] | None) -> None:
        self.work = work
        self.parameters = parameters
        self.received = received
        """The model that the proximal term pulls to; None without that term."""
        self._velocity = _zeros(parameters) if work.momentum else None
        self._moments = (_zeros(parameters), _zeros(parameters)) if work.optimizer != "sgd" else None
        self._taken = 0

    def step(self, gradients: Tensors, rate: float) -> None:
        """Take a step, given ∇loss(w), which is not written to."""
        if self.work.clip:
            gradients = self._decayed(_clipped(self._pulled(gradients), self.work.clip))
        else:
            gradients = self._pulled(self._decayed(gradients))
        if self.work.optimizer == "adamw" and self.work.weight_decay:
            torch._foreach_mul_(self.parameters, 1 - rate * self.work.weight_decay)
        if self._moments is not None:
            self._adam(*self._moments, gradients, rate)
            return
        if self._velocity is not None:
            torch._foreach_mul_(self._velocity, self.work.momentum)
            torch._foreach_add_(self._velocity, gradients)
            gradients = self._velocity
        torch._foreach_add_(self.parameters, gradients, alpha=-rate)

    def _adam(self, first: list[Tensor], second: list[Tensor], gradients: Tensors, rate: float) -> None:
        self._taken += 1
        torch._foreach_lerp_(first, gradients, 1 - BETAS[0])
        torch._foreach_mul_(second, BETAS[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - BETAS[1])
        roots = torch._foreach_sqrt(second)
        torch._foreach_div_(roots, (1 - BETAS[1] ** self._taken) ** 0.5)
        torch._foreach_add_(roots, EPSILON)
        torch._foreach_addcdiv_(self.parameters, first, roots, -rate / (1 - BETAS[0] ** self._taken))

    def _decayed(self, gradients: Tensors) -> Tensors:
        """Add the gradient of the L2 penalty; AdamW has none."""
        decay = 0.0 if self.work.optimizer == "adamw" else self.work.weight_decay
        return torch._foreach_add(gradients, self.parameters, alpha=decay) if decay else gradients

    def _pulled(self, gradients: Tensors) -> Tensors:
        """Add the gradient of the proximal term."""
        if self.received is None:
            return gradients
        away = torch._foreach_sub(self.parameters, self.received)
        return torch._foreach_add(gradients, away, alpha=self.work.proximal)


def _zeros(parameters: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(parameter) for parameter in parameters]


def _clipped(gradients: Tensors, most: float) -> Tensors:
    """Scale gradients down to the norm `most` over all of them, if theirs is greater."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return torch._foreach_mul(gradients, (most / (norm + NORM_EPSILON)).clamp(max=1.0))
