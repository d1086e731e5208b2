"""Local training, losses and scores of models given as flat states."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from covey import randomness
from covey.client.batches import batches, channels_last, steps_of
from covey.client.optimizer import LocalOptimizer
from covey.config.sections import Local
from covey.data.dataset import Dataset, Samples
from covey.data.sample_store import stored
from covey.errors import require
from covey.model.batched import BatchedModel
from covey.model.cpu_layers import adopt_cpu_layers
from covey.model.dropout import dropout_layers, set_dropout_key
from covey.model.frozen import constants_digest, frozen_parts, start_training
from covey.model.last_layer import head_name
from covey.model.layout import Layout

_PREPARED_BYTES = 1 << 26
"""Samples up to this size are normalised once, before the first epoch; larger ones batch by batch."""

Precision = Literal["fp32", "tf32", "bf16", "fp64"]


class LocalStep(NamedTuple):
    """A step of local training."""

    x: Tensor
    """`[b, ...]`: inputs of the model."""
    y: Tensor
    rate: float
    epoch: int
    """From 0."""
    key: int
    """Key of its dropout masks and other draws; 0 if there are none."""


class Tally(NamedTuple):
    """How m models did on samples, summed over them."""

    loss: Tensor
    """`[m]`, float64"""
    correct: Tensor
    """`[m, classes]`: right answers per class; no columns where there are no classes."""
    predicted: Tensor
    """`[m, classes]`: answers per class."""
    answers: Tensor
    """`[m, n, ...]`: every answer; empty where they are not kept."""


class Learner:
    """Trains and evaluates a model from flat states, one client after another.

    The module's tensors are views of the current state, so a step writes to that state.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        precision: Precision = "fp32",
        device: torch.device | str = "cpu",
    ) -> None:
        _fits(module, dataset)
        self.device = torch.device(device)
        self.dtype = torch.float64 if precision == "fp64" else torch.float32
        self.module = module.to(self.device, self.dtype)
        if self.device.type == "cpu":
            adopt_cpu_layers(module)
        self.layout = Layout.of(module)
        self.classes = dataset.classes
        self.task = dataset.learns
        self.never = torch.tensor(dataset.never, dtype=torch.int64, device=self.device)
        self.stop_words = dataset.stop_words
        self.stacks = self.device.type == "cuda"
        self.chunk = 500 if self.device.type == "cpu" else 5_000
        self._bf16 = precision == "bf16"
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._frozen = frozen_parts(module)
        self._drops = bool(dropout_layers(module))
        self._channels_last = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        spatial = (1,) * (len(dataset.shape) - 1)
        deviation = torch.tensor(dataset.deviation, dtype=self.dtype, device=self.device)
        mean = torch.tensor(dataset.mean, dtype=self.dtype, device=self.device)
        self.scale = (1 / deviation).view(-1, *spatial)
        self.shift = (-mean / deviation).view(-1, *spatial)
        self.kept: dict[str, Any] = {}
        """Caches of probes that live as long as the learner, such as recorded CUDA graphs."""

    @cached_property
    def constants(self) -> str:
        """Digest of the model's frozen parts; empty if it has none."""
        return constants_digest(self.module)

    @cached_property
    def batched(self) -> BatchedModel:
        """The model for many states at once, in the same precision."""
        with torch.inference_mode(False):
            return BatchedModel(self.module, self.dtype, torch.bfloat16 if self._bf16 else self.dtype)

    def inputs(self, x: Tensor) -> Tensor:
        """Return stored samples as model inputs: normalised per channel; tokens (int64) are unchanged."""
        if x.dtype != torch.uint8 and not x.is_floating_point():
            return x
        x = torch.addcmul(self.shift, x.to(self.dtype), self.scale)
        return channels_last(x) if self._channels_last and x.dim() == 4 else x

    def fit(
        self,
        start: Tensor,
        samples: Samples,
        work: Local,
        t: int,
        key: int,
        anchor: Tensor | None = None,
        on_step: Callable[[Sequence[Tensor], Tensor], None] | None = None,
    ) -> tuple[Tensor, float]:
        """Train on a client's samples; return the trained state `[d]` and the mean training loss over all steps.

        `LocalOptimizer` has the equations of a step; w⁰ is the model received, or `anchor`. `on_step` is called with
        ∇loss(w) on a batch, one tensor for each parameter, and the labels of the batch.
        """
        state = start.to(self.dtype, copy=True)
        self.start(state)
        parameters = [slot.of(state) for slot in self.layout.parameters]
        pulled_to = start if anchor is None else anchor
        received = [slot.of(pulled_to.to(self.dtype)) for slot in self.layout.parameters] if work.proximal else None
        optimizer = LocalOptimizer(work, parameters, received)
        total_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for one in self.steps(samples, work, t, key):
            loss = self._loss(one.x, one.y)
            # Never written to: parameters that are added to each other share one gradient tensor. Of one that the loss
            # does not depend on, it is 0.
            gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
            if on_step is not None:
                on_step(gradients, one.y)
            optimizer.step(gradients, one.rate)
            total_loss += loss.detach() * len(one.y)
        return state, float(total_loss) / (len(samples) * work.epochs)

    def steps(self, samples: Samples, work: Local, t: int, key: int, *, keyed: bool = False) -> Iterator[LocalStep]:
        """Yield the steps of a client's local training, each with its batch as model inputs; sets dropout masks.

        With `keyed`, steps have keys even if the model has no dropout.
        """
        # Crops and flips apply to stored images, which are then normalised batch by batch.
        whole = stored(samples.x) is None
        ready = whole and not (work.crop or work.flip) and samples.x.numel() * self.dtype.itemsize <= _PREPARED_BYTES
        if ready:
            samples = Samples(self.inputs(samples.x), samples.y)
        for epoch in range(work.epochs):
            rate = work.rate_at(t, epoch)
            epoch_key = randomness.key(key, epoch)
            wanted = self._drops or keyed
            masks = _mask_keys(epoch_key, steps_of(len(samples), work)) if wanted else []
            for step, (x, y) in enumerate(batches(samples, work, epoch_key)):
                mask = masks[step] if masks else 0
                if self._drops:
                    set_dropout_key(self.module, mask)
                yield LocalStep(x if ready else self.inputs(x), y, rate, epoch, mask)

    def start(self, state: Tensor) -> None:
        """Load a state into the module, in training mode: a step writes to that state."""
        self.layout.bind(self.module, state)
        start_training(self.module, self._frozen)

    def place(self, state: Tensor) -> None:
        """Load a state into the module, in evaluation mode."""
        self.layout.bind(self.module, state.to(self.device, self.dtype))
        self.module.eval()

    def chunks(self, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples in order, in chunks of the fastest size."""
        for at in range(0, len(samples), self.chunk):
            yield samples.x[at : at + self.chunk], samples.y[at : at + self.chunk]

    @torch.inference_mode()
    def losses(self, state: Tensor, samples: Samples) -> Tensor:
        """Return the loss of every sample, in evaluation mode: float64 `[n]`."""
        self.place(state)
        return torch.cat([self.loss(x, y, reduction="none").double() for x, y in self.chunks(samples)])

    def own_losses(self, states: Tensor, samples: Samples, counts: Sequence[int]) -> Tensor:
        """Return the mean loss of each client's model `[k, d]` on its own samples, concatenated over clients: `[k]`."""
        if self.stacks and len(counts) > 1:
            return self._own_losses_at_once(states, samples, counts)
        parts = samples.split(counts)
        return torch.stack([self.losses(state, part).mean() for state, part in zip(states, parts, strict=True)])

    @torch.inference_mode()
    def _own_losses_at_once(self, states: Tensor, samples: Samples, counts: Sequence[int]) -> Tensor:
        """`own_losses` with all models in one pass, clients padded to the largest."""
        models = self.batched.models(states)
        sizes = torch.tensor(counts, device=self.device)
        begins = torch.cumsum(sizes, dim=0) - sizes
        total = torch.zeros(len(counts), dtype=torch.float64, device=self.device)
        step = max(1, 2 * self.chunk // len(counts))
        for at in range(0, max(counts), step):
            within = torch.arange(at, min(at + step, max(counts)), device=self.device)
            real = within < sizes[:, None]
            places = begins[:, None] + within.minimum(sizes[:, None] - 1)
            x, y = samples.x[places], samples.y[places]
            flat = self.inputs(x.flatten(0, 1)).contiguous()
            inputs = flat.view(*places.shape, *flat.shape[1:])
            logits = self.batched.logits(models, inputs, own=True)
            losses = self.task.loss(logits.flatten(0, 1), y.flatten(0, 1))
            total += (losses.view(places.shape).double() * real).sum(dim=1)
        return total / sizes

    def mean_loss(self, state: Tensor, samples: Samples) -> float:
        """Return the mean loss of a state on samples, in evaluation mode."""
        return float(self.losses(state, samples).mean())

    def score(self, state: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
        """Return the summed loss (float64) and correct answers per class `[classes]` of a state, in evaluation mode."""
        found = self.scores(state[None], samples)
        return found.loss[0], found.correct[0]

    @torch.inference_mode()
    def scores(self, states: Tensor, samples: Samples, *, keep: bool = False) -> Tally:
        """Return how states `[m, d]` that differ in their head alone do; layers below it are computed once.

        With `keep`, and for tasks without classes, every answer is kept.
        """
        task = self.task
        losses = torch.zeros(len(states), dtype=torch.float64, device=self.device)
        counted = self.classes if task.has_classes else 0
        correct, predicted = torch.zeros(2, len(states), counted, dtype=torch.int64, device=self.device)
        answers: list[list[Tensor]] = [[] for _ in states]
        for x, y in self.chunks(samples):
            for number, logits in enumerate(self._logits(states, self.inputs(x))):
                losses[number] += task.loss(logits.to(self.dtype), y, reduction="sum").double()
                answer = task.answers(self.allowed(logits).to(self.dtype))
                if counted:
                    correct[number].index_add_(0, y, (answer == y).long())
                    predicted[number].index_add_(0, answer, torch.ones_like(y))
                if keep or not counted:
                    answers[number].append(answer)
        kept = torch.stack([torch.cat(parts) for parts in answers]) if answers and answers[0] else losses.new_zeros(0)
        return Tally(losses, correct, predicted, kept)

    def share_body(self, states: Tensor) -> bool:
        """True if states `[m, d]` differ in their last layer alone."""
        slots = (*self.layout.parameters, *self.layout.buffers)
        return all(
            torch.equal(here := slot.of(states), here[:1].expand_as(here))
            for slot in slots
            if slot not in self.layout.head
        )

    def _logits(self, states: Tensor, inputs: Tensor) -> Iterator[Tensor]:
        """Yield logits per state. Shared layers run once; falls back to full passes if the head is not the output."""
        ends: list[tuple[tuple[Tensor, ...], Tensor]] = []
        head = dict(self.module.named_modules()).get(head_name(self.module), self.module)
        hook = head.register_forward_hook(lambda _, given, found: ends.append((given, found)))
        self.place(states[0])
        with self.arithmetic():
            logits = self.module(inputs)
        hook.remove()
        yield logits
        is_last = len(ends) == 1 and ends[0][1] is logits
        last, given = (head, ends[0][0]) if is_last else (self.module, (inputs,))
        for state in states[1:]:
            self.place(state)
            with self.arithmetic():
                yield last(*given)

    def allowed(self, logits: Tensor) -> Tensor:
        """Return the logits `[..., classes]` that may be answers: those of classes, but for what is never predicted.

        A model may have more outputs than the data has classes, such as a head of 1,000 that it was trained with.
        """
        if self.task.has_classes:
            logits = logits[..., : self.classes]
        return logits.index_fill(-1, self.never, -torch.inf) if len(self.never) else logits

    def loss(self, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss of the module's current state on stored samples."""
        return self._loss(self.inputs(x), y, reduction)

    def _loss(self, inputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        with self.arithmetic():
            logits = self.module(inputs)
        return self.task.loss(logits.to(self.dtype), y, reduction)

    def arithmetic(self) -> AbstractContextManager[object]:
        """Autocast to bfloat16 if that is the precision; else nothing."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self._bf16 else nullcontext()


def _mask_keys(epoch_key: int, steps: int) -> list[int]:
    """Return a key for the dropout masks of each step of an epoch."""
    return randomness.bits(randomness.key(epoch_key, "dropout"), steps).tolist()


def _fits(module: nn.Module, dataset: Dataset) -> None:
    """Refuse tokens for a model of measurements, and the reverse, if the model declares which it takes."""
    given = not (dataset.x.dtype == torch.uint8 or dataset.x.is_floating_point())
    taken = getattr(module, "tokens", given)
    kinds = {True: "words (tokens)", False: "measurements or images"}
    require(
        taken == given,
        f"The model {type(module).__name__} takes {kinds[taken]}, and the samples of '{dataset.name}' are "
        f"{kinds[given]}; choose another model{' (lstm)' if given else ''} or another dataset.",
    )
