"""A trial of a trainer before its first round: two made-up clients at once, as a GPU would run them.

What works for one client at a time may not work for many: a branch on a tensor's value, numbers of torch's generator.
A trial finds it on every runtime, so that a trainer that runs on a CPU also runs on a GPU.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map

from covey.client.learner import Learner
from covey.client.trainer_fit import each_loss
from covey.core.trainer import Batch, LocalClient, Loss, Trainer, TrainerRef, Values, parameter_tree
from covey.data.dataset import Samples
from covey.errors import Refusal, require
from covey.model.dropout import dropout_layers
from covey.model.frozen import start_training
from covey.model.trees import Tree
from covey.runtime.stacked.lane_net import LaneNet, SplitModel
from covey.runtime.stacked.stack_module import stack_module
from covey.runtime.stacked.trainer_lanes import TrainerLanes
from covey.task.learning_task import Task

_CLIENTS, _SAMPLES, _FILLED = 2, 2, 1
"""Clients, their samples, and how many more fill up a batch."""

_TOLERANCE, _LEAST = 0.05, 1e-6
"""Largest difference between two steps that should be alike, of their norm: bfloat16 is rough."""


def check_trainer(ref: TrainerRef, learner: Learner, samples: Samples) -> None:
    """Refuse a trainer whose three client functions do not do what they must; `samples` are a few of any client's."""
    trainer, layout, device, dtype = ref.part, learner.layout, learner.device, learner.dtype
    own = dict(vars(trainer))
    few = Samples(samples.x[:_SAMPLES].to(device), samples.y[:_SAMPLES].to(device))
    count = len(few.y)
    module = start_training(stack_module(copy.deepcopy(learner.module), {}).to(device, dtype))
    state = layout.read(module).to(device, dtype).expand(_CLIENTS, -1).clone()
    w = parameter_tree(state, layout)
    with _explained(ref.name):
        lanes = TrainerLanes.of(ref, layout, _CLIENTS, learner.classes, dtype, device)
        lanes.received.copy_(state[:, : layout.trainable])
        x = learner.inputs(few.x).contiguous()

        def shared(value: Tensor) -> Tensor:
            return value.expand(_CLIENTS, *value.shape)

        weight = torch.full((count,), 1 / count, dtype=dtype, device=device)
        batch = Batch(
            x=shared(x),
            y=shared(few.y),
            weight=shared(weight),
            rate=torch.full((_CLIENTS,), 0.1, dtype=dtype, device=device),
            epoch=torch.zeros(_CLIENTS, dtype=torch.int64, device=device),
            key=torch.zeros(_CLIENTS, dtype=torch.int64, device=device),
        )
        buffers = {slot.name: slot.of(state) for slot in layout.buffers}
        drops = [f"{name}.key" for name in dropout_layers(module)]
        before = {name: value.clone() for name, value in w.items()}
        model = SplitModel(module)
        step = vmap(_step(trainer, ref.name, model, drops, dtype, learner.task), randomness="error")
        begun = lanes.carry

        def is_finite(length: float) -> bool:
            """Have both clients do all there is to do, with steps of this length."""
            lanes.numbers.fill_(1)
            lanes.numbers[:, 2] = length
            gradient, lanes.carry = step(w, buffers, batch, lanes.client(), begun)
            ends = lanes.final(torch.arange(_CLIENTS, device=device), w, buffers)
            found = [*gradient.values(), *(one for one in ends if one is not None)]
            return all(bool(torch.isfinite(one).all()) for one in found)

        require(
            not is_finite(1.0) or trainer.needs_length or is_finite(torch.nan),
            f"The trainer '{ref.name}' uses client.length, which only SGD without clipping has: say needs_length = "
            "True.",
        )
    changed = [name for name, value in w.items() if not torch.equal(value, before[name])]
    require(not changed, f"The trainer '{ref.name}' changes parameters in place ({changed[:1]}); return new tensors.")
    stored = [name for name, value in vars(trainer).items() if name not in own or own[name] is not value]
    require(
        not stored,
        f"The trainer '{ref.name}' stores '{''.join(stored[:1])}' in self on the client, where many clients share one "
        "trainer: carry it, keep it or reply it.",
    )
    with _explained(ref.name):
        losses = vmap(_own_losses(trainer, model, drops, dtype, learner.task), randomness="error")
        leaves = {name: value.detach().clone().requires_grad_() for name, value in before.items()}
        require(
            not losses(leaves, buffers, batch, lanes.client(), begun).requires_grad,
            f"The loss of the trainer '{ref.name}' uses w, of which net.gradient knows nothing: its gradient would be "
            "missing. Add the gradient of a term of parameters alone to what net.gradient returns.",
        )
        filled = batch._replace(
            x=shared(torch.cat([x, x[:_FILLED]])),
            y=shared(torch.cat([few.y, few.y[:_FILLED]])),
            weight=shared(torch.cat([weight, torch.zeros_like(weight[:_FILLED])])),
        )
        lanes.numbers.fill_(1)
        _require_alike(ref.name, *(step(before, buffers, one, lanes.client(), begun) for one in (batch, filled)))


def _require_alike(name: str, alone: Any, filled: Any) -> None:
    """Refuse a trainer whose step is another one where a batch is filled up by samples of weight 0."""
    for one, other in zip(tree_flatten(alone)[0], tree_flatten(filled)[0], strict=True):
        if isinstance(one, Tensor) and one.is_floating_point() and bool(torch.isfinite(one).all()):
            gap = float((one.double() - other.double()).norm())
            require(
                gap <= _TOLERANCE * float(one.double().norm()) + _LEAST,
                f"The trainer '{name}' takes another step where a batch is filled up by samples of weight 0, as "
                "clients' last batches are on a GPU: weigh samples by batch.weight, do not divide by their number, "
                "and mix none with those of weight 0.",
            )


def _step(trainer: Trainer, name: str, model: SplitModel, drops: list[str], dtype: torch.dtype, task: Task) -> Any:
    """Return a client's step, which checks what the trainer returns."""

    def step(w: Tree, buffers: Tree, batch: Batch, client: LocalClient, carry: Values) -> tuple[Tree, Values]:
        masks = dict.fromkeys(drops, batch.key)
        net = LaneNet(model, w, w, buffers, masks, dtype, task, uses_features=trainer.uses_features)
        found: Any = trainer.client_step(w, batch, client, carry, net)
        require(
            isinstance(found, tuple) and len(found) == 2,
            f"client_step of the trainer '{name}' must return a pair: the gradient, and what it carries.",
        )
        gradient, carried = found
        fits = isinstance(gradient, dict) and gradient.keys() == w.keys()
        wrong = [one for one in w if fits and gradient[one].shape != w[one].shape]
        require(
            fits and not wrong,
            f"client_step of the trainer '{name}' must return a gradient of every parameter, in its shape"
            + (f"; that of {wrong[0]} is {tuple(gradient[wrong[0]].shape)}." if wrong else "."),
        )
        require(
            _shapes(carried) == _shapes(carry),
            f"client_step of the trainer '{name}' must carry on what client_init begins with, by the same names and in "
            "the same shapes.",
        )
        require(net.loss is not None, f"client_step of the trainer '{name}' asks the net for no gradient.")
        return gradient, carried

    return step


class _LossesAlone(LaneNet):
    """Computes a trainer's own losses for outputs that depend on nothing."""

    own: Tensor | None = None

    def gradient(self, w: Tree, batch: Batch, loss: Loss | None = None) -> Tree:
        if loss is not None:
            tensors = {**{name: value.detach() for name, value in w.items()}, **self._fresh(), **self._masks}
            output = self._output(tensors, batch, features=self._uses_features)
            found = each_loss(loss, output, batch.y).sum()
            self.own = found if self.own is None else self.own + found
        return {name: torch.zeros_like(value) for name, value in w.items()}

    def features(self, w: Tree, batch: Batch) -> Tensor:
        return super().features(w, batch).detach()


def _own_losses(trainer: Trainer, model: SplitModel, drops: list[str], dtype: torch.dtype, task: Task) -> Any:
    """Return a client's step that gives the sum of the trainer's own losses."""

    def losses(w: Tree, buffers: Tree, batch: Batch, client: LocalClient, carry: Values) -> Tensor:
        masks = dict.fromkeys(drops, batch.key)
        net = _LossesAlone(model, w, w, buffers, masks, dtype, task, uses_features=trainer.uses_features)
        trainer.client_step(w, batch, client, carry, net)
        return torch.zeros((), device=batch.weight.device) if net.own is None else net.own

    return losses


def _shapes(values: Any) -> Any:
    flat, spec = tree_flatten(tree_map(lambda one: tuple(one.shape) if isinstance(one, Tensor) else None, values))
    return flat, spec


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say in a sentence what a trainer must not do; other errors are its own and keep their traceback."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "data-dependent control flow" in text or ".item()" in text:
            raise Refusal(
                f"The trainer '{name}' branches on a tensor's value, or reads it as a number, which many clients at "
                "once cannot do: use torch.where."
            ) from error
        if "random" in text:
            raise Refusal(
                f"The trainer '{name}' draws from torch's generator: draw from batch.key (covey.randomness), so that "
                "the same seed gives the same run."
            ) from error
        if "in-place" in text or "inplace" in text:
            raise Refusal(f"The trainer '{name}' changes a tensor in place: return new ones.") from error
        raise
    except TypeError as error:
        if "Output" in str(error):
            raise Refusal(
                f"The loss of the trainer '{name}' takes its first argument for a tensor: the model's outputs are "
                f"output.logits ({error})."
            ) from error
        raise
    except KeyError as error:
        raise Refusal(
            f"The trainer '{name}' uses {error}, which is not there: its fields sent, kept and replied declare names."
        ) from error
