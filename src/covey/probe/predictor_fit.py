"""SGD for the predictors of many clients at once: one network each, all in the same step.

On a CPU, who has taken its last step drops out. On a GPU a step of all is one CUDA graph: what it computes takes
microseconds, and launching its operations one by one takes milliseconds. There whoever is done goes on in vain, its
predictor put aside.
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
class Lessons:
    """What k clients learn from, and when."""

    gradients: Tensor
    """`[b, inputs]`, of all clients."""
    shares: Tensor
    """`[b, classes]`"""
    schedules: Sequence[Sequence[Tensor]]
    """Client → step → rows that it learns from, as many in every step."""


@torch.enable_grad()
def trained_predictors(
    start: Tensor, layout: Layout, lessons: Lessons, rate: float, momentum: float, steps: "RecordedSteps"
) -> Tensor:
    """The predictors `[k, d_p]` of clients that begin with `start` `[d_p]`; `steps` saves recording them again."""
    device = lessons.gradients.device
    start = start.to(device, torch.float32)
    if device.type == "cuda" and any(lessons.schedules):
        try:
            return _by_graph(start, layout, lessons, rate, momentum, steps)
        except torch.OutOfMemoryError:
            steps.forget()
    return _step_by_step(start, layout, lessons, rate, momentum)


def _step_by_step(start: Tensor, layout: Layout, lessons: Lessons, rate: float, momentum: float) -> Tensor:
    """Those with the most steps first, so that who is done drops off the end."""
    gradients, shares, schedules = lessons.gradients, lessons.shares, lessons.schedules
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
    start: Tensor, layout: Layout, lessons: Lessons, rate: float, momentum: float, steps: "RecordedSteps"
) -> Tensor:
    """Everybody as many steps as whoever has the most."""
    gradients, shares, schedules = lessons.gradients, lessons.shares, lessons.schedules
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
    """What a recorded step depends on besides the number of clients."""

    layout: Layout
    batch: int
    classes: int
    rate: float
    momentum: float
    device: torch.device
    tf32: bool
    """A graph keeps the arithmetic that it was recorded with."""


class RecordedSteps:
    """Steps as CUDA graphs, for as long as whoever holds this lives: at most two, as each holds a stack of models."""

    def __init__(self) -> None:
        self._kept: list[_Recorded] = []

    def of(self, kind: _Kind, clients: int) -> "_Recorded":
        """A step for so many clients, or for up to half as many again, of whom the last ones have nothing to do."""
        for step in self._kept:
            if step.kind == kind and clients <= step.clients <= 1.5 * clients:
                return step
        del self._kept[:-1]
        self._kept.append(_Recorded(kind, clients))
        return self._kept[-1]

    def forget(self) -> None:
        self._kept.clear()
        torch.cuda.empty_cache()


class _Recorded:
    """A step of so many predictors as a CUDA graph, with the tensors that it reads and writes."""

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
        """All predictors at `start` `[d_p]`, at rest."""
        for slot in self._slots:
            self.named[slot.name].copy_(slot.of(start).expand_as(self.named[slot.name]))
        for values in self.velocity.values():
            values.zero_()


def _sgd_step(named: Named, velocity: Named, gradients: Tensor, shares: Tensor, rate: float, momentum: float) -> None:
    """One step of k predictors on `[k, b, inputs]` and `[k, b, classes]`, in place; loss MSE(n·C_p(g), n·d)."""
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
    """`ClassPredictor` in training, for k of them at once: `[k, b, inputs]` → `[k, b, classes]`."""
    x = gradients
    for norm, linear in (("body.0", "body.1"), ("body.3", "body.4")):
        x = F.relu(_stack_linear(named, linear, _stack_norm(named, norm, x)))
    return F.softmax(_stack_linear(named, "out", _stack_norm(named, "body.6", x)), dim=2)


def _stack_linear(named: Named, layer: str, x: Tensor) -> Tensor:
    return torch.baddbmm(named[f"{layer}.bias"][:, None], x, named[f"{layer}.weight"].transpose(1, 2))


def _stack_norm(named: Named, layer: str, x: Tensor) -> Tensor:
    """Batch norm of each model's batch, which is one batch norm with the channels of all of them."""
    stack, batch, channels = x.shape
    mean, variance, weight, bias = (
        named[f"{layer}.{name}"].view(-1) for name in ("running_mean", "running_var", "weight", "bias")
    )
    side_by_side = x.transpose(0, 1).reshape(batch, stack * channels)
    out = F.batch_norm(side_by_side, mean, variance, weight, bias, training=True)
    return out.view(batch, stack, channels).transpose(0, 1)
