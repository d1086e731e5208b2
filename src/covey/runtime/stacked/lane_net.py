"""The model of one lane, as a trainer uses it. Everything here runs inside `vmap`, which adds the lanes."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from covey.client.trainer_fit import (
    NO_SINGLE_SAMPLES,
    clipped_mean,
    each_loss,
    keyed_noise,
    sample_keys,
    task_loss,
)
from covey.core.trainer import Batch, Loss, Output
from covey.errors import require
from covey.model.last_layer import head_name
from covey.model.trees import Tree
from covey.runtime.stacked.batch_norm import SampleWeights
from covey.task.learning_task import Task

_LossAndBuffers = tuple[Tensor, Tree]
"""Named here, as a compiler cannot evaluate it inside a step."""


class SplitModel:
    """A model's layers below the last one, and the last one; for losses that use features."""

    def __init__(self, module: nn.Module) -> None:
        self.whole = module
        name = head_name(module)
        self.prefix = f"{name}."
        if name:
            self.body = copy.deepcopy(module)
            self.head = module.get_submodule(name)
            parent, _, leaf = name.rpartition(".")
            setattr(self.body.get_submodule(parent), leaf, nn.Identity())

    def output(self, tensors: Tree, x: Tensor, weight: Tensor, *, features: bool) -> Output:
        """Return logits, and features if asked to; buffers among the tensors are changed."""
        if not features:
            with SampleWeights(self.whole, weight):
                return Output(functional_call(self.whole, tensors, (x,)))
        below = self.below(tensors, x, weight)
        own = {name.removeprefix(self.prefix): one for name, one in tensors.items() if name.startswith(self.prefix)}
        logits: Tensor = functional_call(self.head, own, (below,))
        return Output(logits, below.flatten(1))

    def below(self, tensors: Tree, x: Tensor, weight: Tensor) -> Tensor:
        """Return the inputs of the last layer."""
        with SampleWeights(self.body, weight):
            others = {name: one for name, one in tensors.items() if not name.startswith(self.prefix)}
            found: Tensor = functional_call(self.body, others, (x,))
        return found


class LaneNet:
    """One step of one lane: gradients and features at any parameters, and what the first gradient found."""

    def __init__(
        self,
        model: SplitModel,
        own: Tree,
        working: Tree,
        buffers: Tree,
        masks: Tree,
        dtype: torch.dtype,
        task: Task,
        *,
        uses_features: bool,
    ) -> None:
        self._task = task
        self._model = model
        self._own = own
        self._working = working
        self._buffers = buffers
        self._masks = masks
        self._dtype = dtype
        self._uses_features = uses_features
        self.loss: Tensor | None = None
        """Loss of the step's first gradient, and beside it what it found."""
        self.statistics: Tree = buffers
        self.first: Tree = {}

    def gradient(self, w: Tree, batch: Batch, loss: Loss | None = None) -> Tree:
        def loss_of(parameters: Tree) -> _LossAndBuffers:
            fresh = self._fresh()
            output = self._output({**parameters, **fresh, **self._masks}, batch, features=self._uses_features)
            losses = task_loss(self._task, output, batch.y) if loss is None else each_loss(loss, output, batch.y)
            return (losses * batch.weight).sum(), fresh

        found, (value, fresh) = grad_and_value(loss_of, has_aux=True)(self._computing(w))
        if self.loss is None:
            self.loss, self.statistics, self.first = value, fresh, found
        return {name: one.to(self._dtype) for name, one in found.items()}

    def losses(self, output: Output, y: Tensor) -> Tensor:
        return task_loss(self._task, output, y)

    def features(self, w: Tree, batch: Batch) -> Tensor:
        fresh = self._fresh()
        tensors = {**self._computing(w), **fresh, **self._masks}
        return self._model.below(tensors, batch.x, batch.weight).flatten(1).to(self._dtype)

    def clipped_gradient(self, w: Tree, batch: Batch, bound: float) -> Tree:
        require(not self._buffers, NO_SINGLE_SAMPLES)
        one = torch.ones(1, dtype=batch.weight.dtype, device=batch.weight.device)

        def loss_of(parameters: Tree, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
            tensors = {**parameters, **dict.fromkeys(self._masks, key)}
            output = self._model.output(tensors, x[None], one, features=False)
            return self._task.loss(output.logits.to(self._dtype), y[None], reduction="mean")

        alone = vmap(grad(loss_of), in_dims=(None, 0, 0, 0))
        found = clipped_mean(alone(self._computing(w), batch.x, batch.y, sample_keys(batch)), batch.weight, bound)
        if self.loss is None:
            output = self._output({**self._computing(w), **self._masks}, batch, features=False)
            self.loss = (task_loss(self._task, output, batch.y) * batch.weight).sum()
            self.first = found
        return found

    def noise(self, w: Tree, batch: Batch) -> Tree:
        return keyed_noise(w, batch)

    def _fresh(self) -> Tree:
        """Return buffers that a pass may change."""
        return {name: buffer.clone() for name, buffer in self._buffers.items()}

    def _computing(self, w: Tree) -> Tree:
        """Return parameters in the dtype of the forward pass; the lane's own have a copy in it."""
        if w is self._own:
            return self._working
        return {name: one.to(self._working[name].dtype) for name, one in w.items()}

    def _output(self, tensors: Tree, batch: Batch, *, features: bool) -> Output:
        logits, below = self._model.output(tensors, batch.x, batch.weight, features=features)
        return Output(logits.to(self._dtype), None if below is None else below.to(self._dtype))
