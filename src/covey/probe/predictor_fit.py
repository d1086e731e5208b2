"""SGD for the predictors of many clients at once: one network for each client, all in the same step.

On a CPU, clients drop out after their last step. On a GPU a step of all clients is one CUDA graph, as launching its
operations one by one takes far longer than computing them. There finished clients keep stepping; their result is
already saved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.model.cuda_graph import record_graph, warm_up
from covey.model.layout import Layout

Named = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """The pairs that k clients train on, and in which steps."""

    gradients: Tensor
    """`[b, inputs]`, over all clients."""
    shares: Tensor
    """`[b, classes]`"""
    schedules: Sequence[Sequence[Tensor]]
    """Client → step → rows to train on, equally many in every step."""


@torch.enable_grad()
def trained_predictors(
    start: Tensor, layout: Layout, pairs: TrainingPairs, rate: float, momentum: float, steps: "RecordedSteps"
) -> Tensor:
    """Train the predictors `[k, d_p]` of clients from `start` `[d_p]`; `steps` caches recorded CUDA graphs."""
    device = pairs.gradients.device
    start = start.to(device, torch.float32)
    if device.type == "cuda" and any(pairs.schedules):
        try:
            return _by_graph(start, layout, pairs, rate, momentum, steps)
        except torch.OutOfMemoryError:
            steps.forget()
    return _step_by_step(start, layout, pairs, rate, momentum)


def _step_by_step(start: Tensor, layout: Layout, pairs: TrainingPairs, rate: float, momentum: float) -> Tensor:
    """Train step by step, clients with the most steps first, so that finished ones drop off the end."""
    gradients, shares, schedules = pairs.gradients, pairs.shares, pairs.schedules
    slots = (*layout.parameters, *layout.buffers)
    named = {slot.name: slot.of(start.expand(len(schedules), -1)).clone() for slot in slots}
    velocity = {slot.name: torch.zeros_like(named[slot.name]) for slot in layout.parameters}
    longest_first = sorted(range(len(schedules)), key=lambda client: -len(schedules[client]))
    for step in range(len(schedules[longest_first[0]])):
        active = [client for client in longest_first if len(schedules[client]) > step]
        chosen = torch.stack([schedules[client][step] for client in active]).to(gradients.device)
        here, pushes = ({name: values[: len(active)] for name, values in of.items()} for of in (named, velocity))
        _sgd_step(here, pushes, gradients[chosen], shares[chosen], rate, momentum)
    places = [longest_first.index(client) for client in range(len(schedules))]
    return torch.cat([named[slot.name].flatten(1) for slot in slots], dim=1)[places]


def _by_graph(
    start: Tensor, layout: Layout, pairs: TrainingPairs, rate: float, momentum: float, steps: "RecordedSteps"
) -> Tensor:
    """Train with a recorded step; all clients step as often as the one with the most steps."""
    gradients, shares, schedules = pairs.gradients, pairs.shares, pairs.schedules
    clients, most = len(schedules), max(map(len, schedules))
    batch = len(next(rows[0] for rows in schedules if rows))
    tf32 = torch.backends.cuda.matmul.allow_tf32
    step = steps.of(_Kind(layout, batch, shares.shape[1], rate, momentum, gradients.device, tf32), clients)
    step.begin(start)
    table = torch.zeros(most, step.clients, batch, dtype=torch.int64)
    for client, rows in enumerate(schedules):
        if rows:
            table[: len(rows), client] = torch.stack(list(rows))
    chosen = table.flatten(1).to(gradients.device)
    found = start.repeat(clients, 1)
    for number in range(most):
        torch.index_select(gradients, 0, chosen[number], out=step.gradients)
        torch.index_select(shares, 0, chosen[number], out=step.shares)
        step.graph.replay()
        ended = [client for client, rows in enumerate(schedules) if len(rows) == number + 1]
        if ended:
            place = torch.tensor(ended, device=found.device)
            for slot in (*layout.parameters, *layout.buffers):
                found[place, slot.start : slot.start + slot.size] = step.named[slot.name][place].flatten(1)
    return found


@dataclass(frozen=True)
class _Kind:
    """Everything that a recorded step depends on, except the number of clients."""

    layout: Layout
    batch: int
    classes: int
    rate: float
    momentum: float
    device: torch.device
    tf32: bool
    """A graph keeps the precision that it was recorded with."""


class RecordedSteps:
    """A cache of steps recorded as CUDA graphs: at most two, as each holds a stack of models."""

    def __init__(self) -> None:
        self._kept: list[_Recorded] = []

    def of(self, kind: _Kind, clients: int) -> "_Recorded":
        """Return a step for at least `clients` and at most 1.5 times as many; the surplus is not used."""
        for step in self._kept:
            if step.kind == kind and clients <= step.clients <= 1.5 * clients:
                return step
        del self._kept[:-1]
        self._kept.append(_Recorded(kind, clients))
        return self._kept[-1]

    def forget(self) -> None:
        """Free all recorded steps."""
        self._kept.clear()
        torch.cuda.empty_cache()


class _Recorded:
    """One step of many predictors as a CUDA graph, with the tensors that it reads and writes."""

    def __init__(self, kind: _Kind, clients: int) -> None:
        self.kind = kind
        self.clients = clients
        layout, batch, classes, device = kind.layout, kind.batch, kind.classes, kind.device
        self._slots = (*layout.parameters, *layout.buffers)
        inputs = layout.parameters[0].size
        self.named = {slot.name: torch.ones(clients, *slot.shape, device=device) for slot in self._slots}
        self.velocity = {slot.name: torch.zeros_like(self.named[slot.name]) for slot in layout.parameters}
        self.gradients = torch.zeros(clients * batch, inputs, device=device)
        self.shares = torch.zeros(clients * batch, classes, device=device)
        given = self.gradients.view(clients, batch, inputs), self.shares.view(clients, batch, classes)

        def step() -> None:
            _sgd_step(self.named, self.velocity, *given, kind.rate, kind.momentum)

        warm_up(step, device)
        self.graph = record_graph(step)

    def begin(self, start: Tensor) -> None:
        """Reset all predictors to `start` `[d_p]`, with zero velocity."""
        for slot in self._slots:
            self.named[slot.name].copy_(slot.of(start).expand_as(self.named[slot.name]))
        for values in self.velocity.values():
            values.zero_()


def _sgd_step(named: Named, velocity: Named, gradients: Tensor, shares: Tensor, rate: float, momentum: float) -> None:
    """Take one step of k predictors on `[k, b, inputs]` and `[k, b, classes]`, in place; loss MSE(n·C_p(g), n·d)."""
    classes = shares.shape[2]
    leaves = {name: named[name].detach().requires_grad_() for name in velocity}
    found = classes * _stack_forward({**named, **leaves}, gradients)
    loss = (found - classes * shares).square().mean(dim=(1, 2)).sum()
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    pushes = list(velocity.values())
    torch._foreach_mul_(pushes, momentum)
    torch._foreach_add_(pushes, slopes)
    torch._foreach_add_([named[name] for name in velocity], pushes, alpha=-rate)


def _stack_forward(named: Named, gradients: Tensor) -> Tensor:
    """Run k `ClassPredictor`s forward in training: `[k, b, inputs]` → `[k, b, classes]`."""
    x = gradients
    for norm, linear in (("body.0", "body.1"), ("body.3", "body.4")):
        x = F.relu(_stack_linear(named, linear, _stack_norm(named, norm, x)))
    return F.softmax(_stack_linear(named, "out", _stack_norm(named, "body.6", x)), dim=2)


def _stack_linear(named: Named, layer: str, x: Tensor) -> Tensor:
    return torch.baddbmm(named[f"{layer}.bias"][:, None], x, named[f"{layer}.weight"].transpose(1, 2))


def _stack_norm(named: Named, layer: str, x: Tensor) -> Tensor:
    """Normalise each model's batch, as one batch norm over the channels of all models."""
    stack, batch, channels = x.shape
    mean, variance, weight, bias = (
        named[f"{layer}.{name}"].view(-1) for name in ("running_mean", "running_var", "weight", "bias")
    )
    side_by_side = x.transpose(0, 1).reshape(batch, stack * channels)
    out = F.batch_norm(side_by_side, mean, variance, weight, bias, training=True)
    return out.view(batch, stack, channels).transpose(0, 1)
