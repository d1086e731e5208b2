"""One step of local training, by SGD, Adam or AdamW, for every lane of a stack at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_flatten

from covey.client.batches import crop_and_flip
from covey.core.trainer import Batch, LocalClient, TrainerRef
from covey.errors import Refusal
from covey.model.dropout import dropout_layers
from covey.model.layout import Layout
from covey.runtime.stacked.batch_norm import SampleWeights
from covey.runtime.stacked.lane_move import broad, move, move_weight
from covey.runtime.stacked.lane_net import LaneNet, SplitModel
from covey.runtime.stacked.split_linear import OutputGradients, split_layers
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

    @property
    def plain_sgd(self) -> bool:
        """True if a parameter's step depends on its own gradient alone, and is SGD's."""
        return not (self.adam or self.clip or self.trainer)


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
    layers = split_layers(module)
    weights = {f"{name}.weight": name for name in layers}
    assert terms.plain_sgd or not weights

    def loss_of(
        learned: Named, zeros: Named, held: Named, buffers: Named, x: Tensor, y: Tensor, weight: Tensor, key: Tensor
    ) -> tuple[Tensor, tuple[Named, Named]]:
        """One lane: return the weighted mean loss of its batch, its buffers afterwards, and inputs of split layers."""
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        with SampleWeights(module, weight), OutputGradients(layers, zeros) as taken:
            logits = functional_call(module, ({**learned, **held}, fresh, dict.fromkeys(drops, key)), (x,))
            inputs = taken.inputs()
        losses = task.loss(logits.to(dtype), y)
        return (losses * weight).sum(), (fresh, inputs)

    differentiate = vmap(grad_and_value(loss_of, argnums=(0, 1), has_aux=True), randomness="error")
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
            learned = {name: one for name, one in lanes.working.items() if name not in weights}
            held = {name: lanes.working[name] for name in weights}
            zeros = {layer: held[name].new_zeros(*weight.shape, held[name].shape[1]) for name, layer in weights.items()}
            (gradients, by_output), (loss, (statistics, inputs)) = differentiate(
                learned, zeros, held, lanes.buffers, x, label, weight, key
            )
            first = gradients
        else:
            batch = Batch(x, label, weight, rate, epoch, key)
            gradients, carry, loss, statistics, first = by_trainer(lanes, batch)
            for place, one in zip(lanes.trainer.carried(), tree_flatten(carry)[0], strict=True):
                place.copy_(torch.where(broad(busy, place), one, place))
        if lanes.gradient is not None:
            lanes.gradient.copy_(first[terms.traced].flatten(1))
        move(lanes, gradients, rate, busy, terms, without=weights)
        for name, layer in weights.items():
            move_weight(lanes, name, by_output[layer], inputs[layer], rate, terms)
        for name, buffer in lanes.buffers.items():
            buffer.copy_(torch.where(broad(busy, buffer), statistics[name].to(dtype), buffer))
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
