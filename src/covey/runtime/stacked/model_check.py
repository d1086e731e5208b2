"""A trial of a model of somebody's own before its first round: a step of two made-up clients at once, as on a GPU.

A stack fills up clients' last batches with samples of weight zero. A model that mixes the samples of a batch sees them,
so the step of a filled-up batch is compared with that of the samples alone on the local runtime.
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import vmap

from covey.client.learner import Learner
from covey.core.trainer import Batch, parameter_tree
from covey.data.dataset import Dataset, Samples
from covey.errors import Refusal
from covey.model.attention import in_plain_attention
from covey.model.dropout import dropout_layers, set_dropout_key
from covey.model.factory import copied
from covey.model.frozen import start_training
from covey.model.layout import Layout
from covey.model.trees import Tree
from covey.runtime.stacked.lane_net import LaneNet, SplitModel
from covey.runtime.stacked.stack_module import stack_module

_LANES, _SAMPLES, _FILLED = 2, 3, 5
"""Clients, their samples, and the size of their batch."""

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Largest difference, of the norm of what is compared."""


def why_not_stacked(module: nn.Module, dataset: Dataset) -> str:
    """Return why a stack cannot train a model as the local runtime does; "" if it can."""
    if type(module).__module__.startswith("covey."):
        return ""
    places = torch.arange(_FILLED) % len(dataset.y)
    few = Samples(dataset.x[places], dataset.y[places])
    try:
        learner, alone = _alone(module, dataset, Samples(few.x[:_SAMPLES], few.y[:_SAMPLES]))
        filled = _filled(learner, few, Layout.of(module).read(module))
    except (Refusal, RuntimeError, NotImplementedError) as error:
        return _reason(error)
    for what, one, other in zip(("gradient", "buffers"), alone, filled, strict=True):
        if float((one - other).norm()) > _TOLERANCE[learner.dtype] * float(one.norm()):
            return (
                f"it mixes the samples of a batch: its {what} would change with the samples of weight zero that fill "
                "up clients' last batches; torch's batch norms are the exception"
            )
    return ""


def _alone(module: nn.Module, dataset: Dataset, samples: Samples) -> tuple[Learner, tuple[Tensor, Tensor]]:
    """Return the gradient and the buffers of a step on the local runtime; in float32 if the model allows no float64."""
    try:
        learner = Learner(copied(module), dataset, "fp64")
        return learner, _step_alone(learner, samples)
    except RuntimeError:
        learner = Learner(copied(module), dataset)
        return learner, _step_alone(learner, samples)


def _step_alone(learner: Learner, samples: Samples) -> tuple[Tensor, Tensor]:
    layout = learner.layout
    learner.start(layout.read(learner.module))
    set_dropout_key(learner.module, 0)
    named = dict(learner.module.named_parameters())
    loss = learner.loss(samples.x, samples.y)
    found = torch.autograd.grad(loss, [named[slot.name] for slot in layout.parameters], materialize_grads=True)
    return _flat(found), layout.read(learner.module)[layout.trainable :].clone()


def _filled(learner: Learner, samples: Samples, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same of one of two clients at once, whose batch is filled up."""
    layout, dtype = learner.layout, learner.dtype
    module = start_training(stack_module(copy.deepcopy(learner.module), {}))
    state = start.to(dtype).expand(_LANES, -1).clone()
    weight = (torch.arange(_FILLED) < _SAMPLES).to(dtype) / _SAMPLES
    x = learner.inputs(samples.x).contiguous()
    batch = Batch(
        x=x.expand(_LANES, *x.shape),
        y=samples.y.expand(_LANES, *samples.y.shape),
        weight=weight.expand(_LANES, -1),
        rate=torch.zeros(_LANES, dtype=dtype),
        epoch=torch.zeros(_LANES, dtype=torch.int64),
        key=torch.zeros(_LANES, dtype=torch.int64),
    )
    model, drops = SplitModel(module), [f"{name}.key" for name in dropout_layers(module)]

    def step(w: Tree, buffers: Tree, batch: Batch) -> tuple[Tree, Tree]:
        masks = dict.fromkeys(drops, batch.key)
        net = LaneNet(model, w, w, buffers, masks, dtype, learner.task, uses_features=False)
        return net.gradient(w, batch), net.statistics

    buffers = {slot.name: slot.of(state) for slot in layout.buffers}
    both = in_plain_attention(vmap(step, randomness="error"))
    found, after = both(parameter_tree(state, layout), buffers, batch)
    first = (found[slot.name][0] for slot in layout.parameters), (after[slot.name][0] for slot in layout.buffers)
    return _flat(first[0]), _flat(first[1])


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(one.reshape(-1) for one in tensors)])


def _reason(error: Exception) -> str:
    """Return an error as a reason."""
    text = str(error).strip()
    if isinstance(error, Refusal):
        return text
    if "data-dependent control flow" in text or ".item()" in text:
        return "it branches on a tensor's value, or reads it as a number: torch.where does neither"
    if "in-place" in text or "inplace" in text:
        return "it changes a tensor in place"
    return text.partition("\n")[0] or type(error).__name__
