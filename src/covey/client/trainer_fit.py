"""Local training by a trainer: one client, batch by batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from covey.client.batches import steps_of
from covey.client.learner import Learner, LocalStep
from covey.client.length import length_of_steps
from covey.client.optimizer import LocalOptimizer
from covey.config.sections import Local
from covey.core.trainer import (
    Batch,
    LocalClient,
    Loss,
    Output,
    Packing,
    Trainer,
    TrainerRef,
    parameter_tree,
    personal_places,
    with_personal,
)
from covey.data.dataset import Samples
from covey.errors import Refusal, require
from covey.model.dropout import dropout_layers
from covey.model.last_layer import head_of
from covey.model.trees import Tree
from covey.randomness import bits, key, normal, system_normal
from covey.task.learning_task import Task

OnStep = Callable[[Sequence[Tensor], Tensor], None]

NO_SINGLE_SAMPLES = (
    "Gradients of single samples are not defined for models with batch norm, which mixes the samples of a batch: "
    "choose a model without it."
)

_NOISE, _SAMPLES = key("noise") >> 1, key("samples") >> 1
"""What the keys of a step's noise and of its samples differ from the step's by; 63 bits, which an int64 holds."""


@dataclass(frozen=True, eq=False)
class TrainerTask:
    """A trainer's part of one client's task."""

    ref: TrainerRef
    sent: Tensor = field(default_factory=lambda: torch.zeros(0))
    """What came with the order, packed."""
    kept: Tensor | None = None
    """What the client kept on its last visit, packed; None on its first."""
    age: int = 0
    """Rounds since that visit."""
    secret: bool = False
    """True on a real client: noise comes from the operating system, and not from the seed, which others know."""


class Fitted(NamedTuple):
    """The result of a client's training."""

    state: Tensor
    """`[d]`"""
    loss: float
    """Mean training loss over all steps."""
    reply: dict[str, Tensor]
    """What the trainer adds to the reply; a model is a vector `[p]`."""
    kept: Tensor | None
    """What the client keeps until its next visit, packed; None if it keeps nothing."""


def fit_by(
    task: TrainerTask,
    learner: Learner,
    start: Tensor,
    samples: Samples,
    work: Local,
    t: int,
    key: int,
    anchor: Tensor | None = None,
    on_step: OnStep | None = None,
) -> Fitted:
    """Train on a client's samples as a trainer says. Without one of its own, `Learner.fit` gives the same result."""
    trainer, layout, device = task.ref.part, learner.layout, learner.device
    if trainer.personal and task.kept is not None:
        start = with_personal(trainer, start, Packing(trainer.kept, layout).flat(task.kept), layout)
    state = start.to(learner.dtype, copy=True)
    learner.start(state)
    w = parameter_tree(state, layout)
    pulled_to = start if anchor is None else anchor
    received = list(parameter_tree(pulled_to.to(learner.dtype), layout).values()) if work.proximal else None
    optimizer = LocalOptimizer(work, list(w.values()), received)
    client = client_of(trainer, task, learner, start, samples, work, t)
    net = LocalNet(learner, w, trainer.uses_features, secret=task.secret)
    carry = trainer.client_init(client)
    total_loss = torch.zeros((), dtype=torch.float64, device=device)
    for one in learner.steps(samples, work, t, key, keyed=True):
        net.next_step()
        gradient, carry = trainer.client_step(w, _batch(one, learner), client, carry, net)
        gradients = _in_order(gradient, w, trainer)
        if on_step is not None:
            on_step(net.first_gradient(), one.y)
        optimizer.step(gradients, one.rate)
        total_loss += net.loss.detach() * len(one.y)
    reply, kept = trainer.client_final(w, client, carry)
    places = personal_places(trainer, layout)
    kept = kept if places is None else {**kept, trainer.personal: state[places.to(device)]}
    mean = float(total_loss) / (len(samples) * work.epochs)
    replied = Packing(trainer.replied, layout)
    values = replied.flat(replied.pack(reply).to(learner.dtype)) if trainer.replied else {}
    holds = Packing(trainer.kept, layout).pack(kept).to(learner.dtype) if trainer.kept else None
    return Fitted(state, mean, {name: value.clone() for name, value in values.items()}, holds)


def client_of(
    trainer: Trainer, task: TrainerTask, learner: Learner, start: Tensor, samples: Samples, work: Local, t: int
) -> LocalClient:
    """Return a client's facts as its trainer sees them."""
    layout, device, dtype = learner.layout, learner.device, learner.dtype
    per_epoch = steps_of(len(samples), work)

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=device)

    sent, kept = Packing(trainer.sent, layout), Packing(trainer.kept, layout)
    held = torch.zeros(kept.size, dtype=dtype) if task.kept is None else task.kept
    require(held.shape == (kept.size,), f"A client kept {held.numel():,} numbers and its trainer {kept.size:,}.")
    require(
        task.sent.shape == (sent.size,), f"The order has {task.sent.numel():,} numbers for a trainer of {sent.size:,}."
    )
    return LocalClient(
        received=parameter_tree(start.to(device, dtype), layout),
        sent=sent.trees(task.sent.to(device, dtype)),
        kept=kept.trees(held.to(device, dtype)),
        age=torch.tensor(task.age, device=device),
        samples=number(len(samples)),
        steps=number(per_epoch * work.epochs),
        length=number(length_of_steps(work, t, per_epoch)),
        class_counts=class_counts(samples.y, learner.classes).to(dtype),
    )


def _batch(one: LocalStep, learner: Learner) -> Batch:
    count, dtype, device = len(one.y), learner.dtype, learner.device
    return Batch(
        x=one.x,
        y=one.y,
        weight=torch.full((count,), 1 / count, dtype=dtype, device=device),
        rate=torch.tensor(one.rate, dtype=dtype, device=device),
        epoch=torch.tensor(one.epoch, device=device),
        key=torch.tensor(one.key, device=device),
    )


def _in_order(gradient: Tree, w: Tree, trainer: Trainer) -> list[Tensor]:
    """Return a gradient as a list; refuse one that is not for these parameters."""
    name = type(trainer).__name__
    require(
        isinstance(gradient, dict) and gradient.keys() == w.keys(),
        f"client_step of the trainer {name} must return a gradient for every parameter, and what it carries.",
    )
    return [gradient[one].to(w[one].dtype) for one in w]


class LocalNet:
    """The model of one client, as its trainer uses it."""

    def __init__(self, learner: Learner, own: Tree, uses_features: bool, *, secret: bool = False) -> None:
        self._learner = learner
        self._own = own
        self._names = list(own)
        self._drops = [f"{name}.key" for name in dropout_layers(learner.module)]
        self._uses_features = uses_features
        self._secret = secret
        self._loss: Tensor | None = None
        self._first: Sequence[Tensor] = ()
        self._noise: Tree | None = None

    def next_step(self) -> None:
        """Forget the step before."""
        self._loss, self._first, self._noise = None, (), None

    @property
    def loss(self) -> Tensor:
        """The loss of the step's first gradient."""
        assert self._loss is not None
        return self._loss

    def first_gradient(self) -> Sequence[Tensor]:
        return self._first

    def gradient(self, w: Tree, batch: Batch, loss: Loss | None = None) -> Tree:
        leaves = {name: w[name].detach().requires_grad_() for name in self._names}
        output = self._output(leaves, batch.x, moves_statistics=self._loss is None)
        losses = task_loss(self._learner.task, output, batch.y) if loss is None else each_loss(loss, output, batch.y)
        total = (losses * batch.weight).sum()
        found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        if self._loss is None:
            self._loss, self._first = total.detach(), found
        return dict(zip(self._names, found, strict=True))

    def losses(self, output: Output, y: Tensor) -> Tensor:
        return task_loss(self._learner.task, output, y)

    @torch.no_grad()
    def features(self, w: Tree, batch: Batch) -> Tensor:
        found = self._output(w, batch.x, moves_statistics=False, features=True).features
        assert found is not None
        return found

    def clipped_gradient(self, w: Tree, batch: Batch, bound: float) -> Tree:
        learner = self._learner
        require(not learner.layout.buffers, NO_SINGLE_SAMPLES)

        def loss_of(parameters: Tree, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
            logits = functional_call(learner.module, {**parameters, **dict.fromkeys(self._drops, key)}, (x[None],))
            return learner.task.loss(logits.to(learner.dtype), y[None], reduction="mean")

        detached = {name: value.detach() for name, value in w.items()}
        try:
            with learner.arithmetic():
                each = vmap(grad(loss_of), in_dims=(None, 0, 0, 0))(detached, batch.x, batch.y, sample_keys(batch))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            hint = "; try precision=fp32" if "BFloat16" in reason else ""
            raise Refusal(f"Gradients of single samples cannot be computed for this model: {reason}{hint}") from error
        found = clipped_mean(each, batch.weight, bound)
        if self._loss is None:
            with torch.no_grad():
                output = self._output(w, batch.x, moves_statistics=False)
                self._loss = (task_loss(learner.task, output, batch.y) * batch.weight).sum()
            self._first = [found[name] for name in self._names]
        return found

    def noise(self, w: Tree, batch: Batch) -> Tree:
        if self._noise is None:
            size = sum(value.numel() for value in w.values())
            secret = torch.from_numpy(system_normal((size,))) if self._secret else None
            self._noise = keyed_noise(w, batch) if secret is None else as_tree(secret.to(self._learner.device), w)
        return self._noise

    def _output(self, w: Tree, x: Tensor, *, moves_statistics: bool, features: bool = False) -> Output:
        learner, seen = self._learner, []
        tensors = dict(w)
        if not moves_statistics:
            buffers = dict(learner.module.named_buffers())
            tensors |= {slot.name: buffers[slot.name].clone() for slot in learner.layout.buffers}
        hook = None
        if self._uses_features or features:
            learner.layout.require_head("The trainer")
            hook = head_of(learner.module).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        with learner.arithmetic():
            logits: Tensor = functional_call(learner.module, tensors, (x,))
        if hook is None:
            return Output(logits.to(learner.dtype))
        hook.remove()
        require(len(seen) == 1, "The model's last layer is not used once in a pass, so it has no features.")
        return Output(logits.to(learner.dtype), seen[0].flatten(1).to(learner.dtype))


def task_loss(task: Task, output: Output, y: Tensor) -> Tensor:
    """Return the task's loss of each sample."""
    return task.loss(output.logits, y)


def class_counts(y: Tensor, classes: int) -> Tensor:
    """Return the samples of each class `[classes]`; empty where there are no classes."""
    return torch.bincount(y, minlength=classes) if classes else y.new_zeros(0, dtype=torch.int64)


def each_loss(loss: Loss, output: Output, y: Tensor) -> Tensor:
    """Return a trainer's own loss of each sample; refuse one that is a mean."""
    losses = loss(output, y)
    require(
        losses.shape == y.shape[:1],
        f"A trainer's loss must return one number for each sample, {tuple(y.shape[:1])}, not {tuple(losses.shape)}: "
        'leave the mean out (reduction="none").',
    )
    return losses


def sample_keys(batch: Batch) -> Tensor:
    """Return a key of its own for each sample of a batch, for dropout: `[b]`."""
    return bits(batch.key ^ _SAMPLES, len(batch.y))


def keyed_noise(w: Tree, batch: Batch) -> Tree:
    """Return standard normal numbers that follow from a batch's key, one for each parameter."""
    return as_tree(normal(batch.key ^ _NOISE, sum(value.numel() for value in w.values())), w)


def as_tree(drawn: Tensor, like: Tree) -> Tree:
    """Return numbers `[p]` as a tree of the shapes and types of another."""
    parts = torch.split(drawn, [value.numel() for value in like.values()])
    return {name: part.view(like[name].shape).to(like[name].dtype) for name, part in zip(like, parts, strict=True)}


def clipped_mean(each: Tree, weight: Tensor, bound: float) -> Tree:
    """Return Σ weight·g·min(1, bound/‖g‖) over the gradients `[b, ...]` of single samples.

    A gradient that is not finite, or whose norm overflows, counts as 0: whatever a sample is, it adds at most `bound`.
    """
    each = {name: value.to(weight.dtype) for name, value in each.items()}
    squares: Any = sum(value.flatten(1).square().sum(dim=1) for value in each.values())
    sound = squares.isfinite()
    factors = weight * (bound / squares.sqrt().clamp_min(1e-12)).clamp(max=1.0)

    def mean(value: Tensor) -> Tensor:
        kept = torch.where(sound.view(-1, *(1,) * (value.dim() - 1)), value, 0.0)
        return torch.einsum("b,b...->...", torch.where(sound, factors, 0.0), kept)

    return {name: mean(value) for name, value in each.items()}
