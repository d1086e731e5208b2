"""One step of local training, by SGD, Adam or AdamW, for every lane of a stack at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_flatten

from covey.client.batches import crop_and_flip
from covey.client.optimizer import BETAS, EPSILON, NORM_EPSILON
from covey.core.trainer import Batch, LocalClient, TrainerRef
from covey.errors import Refusal
from covey.model.dropout import dropout_layers
from covey.model.layout import Layout
from covey.runtime.stacked.batch_norm import SampleWeights
from covey.runtime.stacked.lane_net import LaneNet, SplitModel
from covey.runtime.stacked.trainer_lanes import TrainerLanes
from covey.task.learning_task import Task

COMPUTE_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
"""Precision → dtype of the forward pass."""

Named = dict[str, Tensor]

Step = Callable[..., None]
"""`step(lanes, x, **row)`: `x` the samples on the device, `row` a row of the schedule; changes `lanes` in place."""


@dataclass(frozen=True)
class StepTerms:
    """Optional terms of the step; disabled ones are compiled out."""

    momentum: bool
    weight_decay: bool
    proximal: bool
    crop: int
    flip: bool
    adam: bool = False
    """Adam or AdamW in place of SGD."""
    decoupled: bool = False
    """Weight decay apart from the gradient, as in AdamW."""
    clip: bool = False
    traced: str = ""
    """Name of the parameter whose gradient is kept at every step (`Lanes.gradient`); empty: none."""
    trainer: TrainerRef | None = None
    """How clients train, if not plainly."""


@dataclass(eq=False)
class Lanes:
    """The tensors that a step reads or changes; first dimension: lanes."""

    parameters: Named
    working: Named
    """The parameters in the dtype of the forward pass: a bf16 copy, or the same tensors."""
    velocity: Named
    """Empty without momentum."""
    first_moment: Named
    """Adam's mean of gradients; empty with SGD."""
    second_moment: Named
    """Adam's mean of squared gradients; empty with SGD."""
    taken: Tensor
    """`[lanes]`, int64: Adam's steps of the current segment."""
    received: Named
    """The model that the proximal term pulls to; empty without that term."""
    buffers: Named
    settings: Tensor
    """`[lanes, 4]`: momentum, weight decay, proximal term, greatest norm of the gradient (0: any)."""
    loss: Tensor
    """`[lanes]`, float64: summed over the samples of the current segment."""
    gradient: Tensor | None = None
    """`[lanes, h]`, float32: gradient of the loss by the traced parameter, of the last step; None if none is traced."""
    trainer: TrainerLanes | None = None

    @classmethod
    def of(
        cls,
        layout: Layout,
        count: int,
        terms: StepTerms,
        dtype: torch.dtype,
        compute: torch.dtype,
        device: torch.device,
        classes: int = 0,
    ) -> "Lanes":
        """Allocate `count` lanes, all zero."""

        def zeros(wanted: bool) -> Named:
            return {
                slot.name: torch.zeros(count, *slot.shape, dtype=dtype, device=device)
                for slot in layout.parameters
                if wanted
            }

        buffers = {slot.name: torch.zeros(count, *slot.shape, dtype=dtype, device=device) for slot in layout.buffers}
        parameters = zeros(True)
        traced = [slot.size for slot in layout.parameters if slot.name == terms.traced]
        return cls(
            parameters=parameters,
            working={name: value.to(compute) for name, value in parameters.items()},
            velocity=zeros(terms.momentum),
            first_moment=zeros(terms.adam),
            second_moment=zeros(terms.adam),
            taken=torch.zeros(count, dtype=torch.int64, device=device),
            received=zeros(terms.proximal),
            buffers=buffers,
            settings=torch.zeros(count, 4, dtype=dtype, device=device),
            loss=torch.zeros(count, dtype=torch.float64, device=device),
            gradient=torch.zeros(count, traced[0], device=device) if traced else None,
            trainer=TrainerLanes.of(terms.trainer, layout, count, classes, dtype, device) if terms.trainer else None,
        )

    def changed_by_a_step(self) -> list[Tensor]:
        """Return the tensors that a step writes to, each once."""
        moments = (self.first_moment, self.second_moment)
        named = (self.parameters, self.working, self.velocity, *moments, self.buffers)
        traced = [] if self.gradient is None else [self.gradient]
        carried = self.trainer.carried() if self.trainer else []
        values = [value for values in named for value in values.values()]
        return _unique([self.loss, self.taken, *traced, *values, *carried])

    def tensors(self) -> list[Tensor]:
        """Return all tensors, each once."""
        own = self.trainer.tensors() if self.trainer else []
        return _unique([*self.changed_by_a_step(), *self.received.values(), self.settings, *own])


def _unique(tensors: list[Tensor]) -> list[Tensor]:
    """Drop repeats: `working` may hold the parameters themselves."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def make_step(
    module: nn.Module,
    terms: StepTerms,
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
    compute: torch.dtype,
    task: Task,
) -> Step:
    """Return the step of a module whose layers are those of `stack_module`.

    The equations are those of `LocalOptimizer`, lane by lane. A lane's gradient depends on its own batch only: padding
    has weight 0, and an idle lane has rate 0.
    """
    drops = [f"{name}.key" for name in dropout_layers(module)]

    def loss_of(
        parameters: Named, buffers: Named, x: Tensor, y: Tensor, weight: Tensor, key: Tensor
    ) -> tuple[Tensor, Named]:
        """One lane: return the weighted mean loss of its batch, and its buffers afterwards."""
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        with SampleWeights(module, weight):
            logits = functional_call(module, (parameters, fresh, dict.fromkeys(drops, key)), (x,))
        losses = task.loss(logits.to(dtype), y)
        return (losses * weight).sum(), fresh

    differentiate = vmap(grad_and_value(loss_of, has_aux=True), randomness="error")
    by_trainer = _trainer_step(module, terms, drops, dtype, task) if terms.trainer else None

    def step(
        lanes: Lanes,
        samples: Tensor,
        sample: Tensor,
        label: Tensor,
        weight: Tensor,
        count: Tensor,
        rate: Tensor,
        key: Tensor,
        crops: Tensor | None = None,
        flips: Tensor | None = None,
        epoch: Tensor | None = None,
    ) -> None:
        x = samples[sample]
        if crops is not None and flips is not None:
            flat = crop_and_flip(x.flatten(0, 1), terms.crop, crops.flatten(0, 1), flips.flatten(0, 1))
            x = flat.view(*sample.shape, *flat.shape[1:])
        if x.dtype == torch.uint8 or x.is_floating_point():
            x = torch.addcmul(shift, x.to(dtype), scale).to(compute)
        busy = rate > 0
        if by_trainer is None or lanes.trainer is None or epoch is None:
            gradients, (loss, statistics) = differentiate(lanes.working, lanes.buffers, x, label, weight, key)
            first = gradients
        else:
            batch = Batch(x, label, weight, rate, epoch, key)
            gradients, carry, loss, statistics, first = by_trainer(lanes, batch)
            for place, one in zip(lanes.trainer.carried(), tree_flatten(carry)[0], strict=True):
                place.copy_(torch.where(_broad(busy, place), one, place))
        if lanes.gradient is not None:
            lanes.gradient.copy_(first[terms.traced].flatten(1))
        _move(lanes, gradients, rate, busy, terms)
        for name, buffer in lanes.buffers.items():
            buffer.copy_(torch.where(_broad(busy, buffer), statistics[name].to(dtype), buffer))
        lanes.loss.add_(loss.double() * count)

    return step


def _trainer_step(
    module: nn.Module, terms: StepTerms, drops: list[str], dtype: torch.dtype, task: Task
) -> Callable[[Lanes, Batch], tuple[Named, dict[str, Any], Tensor, Named, Named]]:
    """Return the function that has all lanes do a trainer's step.

    It returns the gradients to follow, what is carried, losses, batch-norm statistics, and the gradients of the losses.
    """
    assert terms.trainer is not None
    trainer = terms.trainer.part
    model = SplitModel(module)

    def of_lane(
        w: Named, working: Named, buffers: Named, batch: Batch, client: LocalClient, carry: dict[str, Any]
    ) -> tuple[Named, dict[str, Any], Tensor, Named, Named]:
        masks = dict.fromkeys(drops, batch.key)
        net = LaneNet(model, w, working, buffers, masks, dtype, task, uses_features=trainer.uses_features)
        gradient, carried = trainer.client_step(w, batch, client, carry, net)
        if net.loss is None:
            raise Refusal(f"client_step of the trainer {type(trainer).__name__} asks the net for no gradient.")
        traced = {terms.traced: net.first[terms.traced]} if terms.traced else {}
        return gradient, carried, net.loss, net.statistics, traced

    stacked = vmap(of_lane, randomness="error")

    def step(lanes: Lanes, batch: Batch) -> tuple[Named, dict[str, Any], Tensor, Named, Named]:
        assert lanes.trainer is not None
        found: tuple[Named, dict[str, Any], Tensor, Named, Named] = stacked(
            lanes.parameters, lanes.working, lanes.buffers, batch, lanes.trainer.client(), lanes.trainer.carry
        )
        return found

    return step


def _move(lanes: Lanes, gradients: Named, rate: Tensor, busy: Tensor, terms: StepTerms) -> None:
    """Move the parameters of all lanes, given ∇loss, and the working copies."""
    momentum, weight_decay, proximal, clip = lanes.settings.unbind(dim=1)

    def of_loss(name: str) -> Tensor:
        return gradients[name].to(lanes.parameters[name].dtype)

    def pulled(name: str, gradient: Tensor) -> Tensor:
        """Add the gradient of the proximal term."""
        parameter = lanes.parameters[name]
        return gradient + _broad(proximal, parameter) * (parameter - lanes.received[name])

    def of_objective(name: str) -> Tensor:
        return pulled(name, of_loss(name)) if terms.proximal else of_loss(name)

    factors = _clip_factors([of_objective(name) for name in gradients], clip) if terms.clip else None
    if terms.adam:
        lanes.taken.add_(busy)
    for name, parameter in lanes.parameters.items():
        gradient = of_loss(name) if factors is None else _broad(factors, parameter) * of_objective(name)
        if terms.weight_decay and not terms.decoupled:
            gradient = gradient + _broad(weight_decay, parameter) * parameter
        if terms.proximal and factors is None:
            gradient = pulled(name, gradient)
        if terms.adam:
            gradient = _adam_direction(lanes, name, gradient, busy)
        if terms.momentum:
            gradient = _broad(momentum, parameter) * lanes.velocity[name] + gradient
            lanes.velocity[name].copy_(gradient)
        if terms.weight_decay and terms.decoupled:
            parameter.mul_(1 - _broad(rate * weight_decay, parameter))
        parameter.sub_(_broad(rate, parameter) * gradient)
        if lanes.working[name].dtype != parameter.dtype:
            lanes.working[name].copy_(parameter)


def _clip_factors(gradients: Sequence[Tensor], most: Tensor) -> Tensor:
    """Return the factors `[lanes]` that bring a lane's norm over all gradients down to `most`; 1 where `most` is 0."""
    squares = torch.stack([gradient.reshape(len(most), -1).square().sum(dim=1) for gradient in gradients])
    factors = (most / (squares.sum(dim=0).sqrt() + NORM_EPSILON)).clamp(max=1.0)
    return torch.where(most > 0, factors, 1.0)


def _adam_direction(lanes: Lanes, name: str, gradient: Tensor, busy: Tensor) -> Tensor:
    """Return Adam's m̂ / (√ŝ + ε) of a parameter; change the moments of busy lanes."""
    mean, square = lanes.first_moment[name], lanes.second_moment[name]
    first = torch.lerp(mean, gradient, 1 - BETAS[0])
    second = BETAS[1] * square + (1 - BETAS[1]) * gradient.square()
    mean.copy_(torch.where(_broad(busy, mean), first, mean))
    square.copy_(torch.where(_broad(busy, square), second, square))
    # In float64: in float32, 1 - β₂ of the first step would have four digits.
    steps = lanes.taken.clamp_min(1).double()
    start, root = 1 - BETAS[0] ** steps, (1 - BETAS[1] ** steps).sqrt()
    mean_now = first / _broad(start.to(gradient.dtype), gradient)
    return mean_now / (second.sqrt() / _broad(root.to(gradient.dtype), gradient) + EPSILON)


def _broad(values: Tensor, like: Tensor) -> Tensor:
    """Reshape `[lanes]` to broadcast over `[lanes, ...]`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
