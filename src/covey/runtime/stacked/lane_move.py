"""The update of all lanes' parameters, given gradients. The equations are those of `LocalOptimizer`, lane by lane."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.client.optimizer import BETAS, EPSILON, NORM_EPSILON
from covey.model.trees import Tree
from covey.runtime.stacked.linear_update import update_weights

if TYPE_CHECKING:
    from covey.runtime.stacked.lane_step import Lanes, StepTerms


def move(
    lanes: "Lanes", gradients: Tree, rate: Tensor, busy: Tensor, terms: "StepTerms", without: Collection[str] = ()
) -> None:
    """Move the parameters of all lanes, but for those `without` a gradient, given ∇loss, and the working copies."""
    momentum, weight_decay, proximal, clip = lanes.settings.unbind(dim=1)

    def of_loss(name: str) -> Tensor:
        return gradients[name].to(lanes.parameters[name].dtype)

    def pulled(name: str, gradient: Tensor) -> Tensor:
        """Add the gradient of the proximal term."""
        parameter = lanes.parameters[name]
        return gradient + broad(proximal, parameter) * (parameter - lanes.received[name])

    def of_objective(name: str) -> Tensor:
        return pulled(name, of_loss(name)) if terms.proximal else of_loss(name)

    factors = _clip_factors([of_objective(name) for name in gradients], clip) if terms.clip else None
    if terms.adam:
        lanes.taken.add_(busy)
    for name, parameter in lanes.parameters.items():
        if name in without:
            continue
        gradient = of_loss(name) if factors is None else broad(factors, parameter) * of_objective(name)
        if terms.weight_decay and not terms.decoupled:
            gradient = gradient + broad(weight_decay, parameter) * parameter
        if terms.proximal and factors is None:
            gradient = pulled(name, gradient)
        if terms.adam:
            gradient = _adam_direction(lanes, name, gradient, busy)
        if terms.momentum:
            gradient = broad(momentum, parameter) * lanes.velocity[name] + gradient
            lanes.velocity[name].copy_(gradient)
        if terms.weight_decay and terms.decoupled:
            parameter.mul_(1 - broad(rate * weight_decay, parameter))
        parameter.sub_(broad(rate, parameter) * gradient)
        if lanes.working[name].dtype != parameter.dtype:
            lanes.working[name].copy_(parameter)


def move_weight(lanes: "Lanes", name: str, by_output: Tensor, x: Tensor, rate: Tensor, terms: "StepTerms") -> None:
    """Move a weight of all lanes, given its layer's inputs `[lanes, b, i]` and gradients by outputs `[lanes, b, o]`."""
    weight, working = lanes.parameters[name], lanes.working[name]
    copied = working.dtype != weight.dtype
    received, velocity = lanes.received.get(name), lanes.velocity.get(name)
    given = by_output, x, rate, lanes.settings, received, weight, working if copied else None, velocity
    update_weights(*given, decays=terms.weight_decay)


def _clip_factors(gradients: Sequence[Tensor], most: Tensor) -> Tensor:
    """Return the factors `[lanes]` that bring a lane's norm over all gradients down to `most`; 1 where `most` is 0."""
    squares = torch.stack([gradient.reshape(len(most), -1).square().sum(dim=1) for gradient in gradients])
    factors = (most / (squares.sum(dim=0).sqrt() + NORM_EPSILON)).clamp(max=1.0)
    return torch.where(most > 0, factors, 1.0)


def _adam_direction(lanes: "Lanes", name: str, gradient: Tensor, busy: Tensor) -> Tensor:
    """Return Adam's m̂ / (√ŝ + ε) of a parameter; change the moments of busy lanes."""
    mean, square = lanes.first_moment[name], lanes.second_moment[name]
    first = torch.lerp(mean, gradient, 1 - BETAS[0])
    second = BETAS[1] * square + (1 - BETAS[1]) * gradient.square()
    mean.copy_(torch.where(broad(busy, mean), first, mean))
    square.copy_(torch.where(broad(busy, square), second, square))
    # In float64: in float32, 1 - β₂ of the first step would have four digits.
    steps = lanes.taken.clamp_min(1).double()
    start, root = 1 - BETAS[0] ** steps, (1 - BETAS[1] ** steps).sqrt()
    mean_now = first / broad(start.to(gradient.dtype), gradient)
    return mean_now / (second.sqrt() / broad(root.to(gradient.dtype), gradient) + EPSILON)


def broad(values: Tensor, like: Tensor) -> Tensor:
    """Reshape `[lanes]` to broadcast over `[lanes, ...]`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
