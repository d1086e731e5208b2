"""SGD for the predictors of many clients at once: one network each, all in the same step.

On a CPU, who has taken its last step drops out. On a GPU a step of all is one CUDA graph: what it computes takes
microseconds, and launching its operations one by one takes milliseconds. There whoever is done goes on in vain, its
predictor put aside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.graphs import recorded, warm_up
from covey.layout import Layout

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
def trained_predictors(start: Tensor, layout: Layout, lessons: Lessons, rate: float, momentum: float) -> Tensor:
    """The predictors `[k, d_p]` of clients that begin with `start` `[d_p]`."""
    device = lessons.gradients.device
    train = _by_graph if device.type == "cuda" and any(lessons.schedules) else _step_by_step
    return train(start.to(device, torch.float32), layout, lessons, rate, momentum)


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


def _by_graph(start: Tensor, layout: Layout, lessons: Lessons, rate: float, momentum: float) -> Tensor:
    """Everybody as many steps as whoever has the most."""
    gradients, shares, schedules = lessons.gradients, lessons.shares, lessons.schedules
    clients, most = len(schedules), max(map(len, schedules))
    batch = len(next(steps[0] for steps in schedules if steps))
    # A graph keeps the arithmetic that it was recorded with.
    arithmetic = torch.backends.cuda.matmul.allow_tf32
    step = _captured(layout, clients, batch, shares.shape[1], rate, momentum, gradients.device, arithmetic)
    step.begin(start)
    table = torch.zeros(most, clients, batch, dtype=torch.int64)
    for client, steps in enumerate(schedules):
        if steps:
            table[: len(steps), client] = torch.stack(list(steps))
    rows = table.flatten(1).to(gradients.device)
    found = start.repeat(clients, 1)
    for number in range(most):
        torch.index_select(gradients, 0, rows[number], out=step.gradients)
        torch.index_select(shares, 0, rows[number], out=step.shares)
        step.graph.replay()
        ended = [client for client, steps in enumerate(schedules) if len(steps) == number + 1]
        if ended:
            place = torch.tensor(ended, device=found.device)
            for slot in (*layout.parameters, *layout.buffers):
                found[place, slot.start : slot.start + slot.size] = step.named[slot.name][place].flatten(1)
    return found


class _Captured:
    """A step of so many predictors as a CUDA graph, with the tensors that it reads and writes."""

    def __init__(
        self,
        layout: Layout,
        clients: int,
        batch: int,
        classes: int,
        rate: float,
        momentum: float,
        device: torch.device,
    ) -> None:
        slots = (*layout.parameters, *layout.buffers)
        inputs = layout.parameters[0].size
        self.named = {slot.name: torch.ones(clients, *slot.shape, device=device) for slot in slots}
        self.velocity = {slot.name: torch.zeros_like(self.named[slot.name]) for slot in layout.parameters}
        self.gradients = torch.zeros(clients * batch, inputs, device=device)
        self.shares = torch.zeros(clients * batch, classes, device=device)
        self._slots = slots

        def step() -> None:
            given = self.gradients.view(clients, batch, inputs)
            _sgd_step(self.named, self.velocity, given, self.shares.view(clients, batch, classes), rate, momentum)

        warm_up(step, device)
        self.graph = recorded(step)

    def begin(self, start: Tensor) -> None:
        """All predictors at `start` `[d_p]`, at rest."""
        for slot in self._slots:
            self.named[slot.name].copy_(slot.of(start).expand_as(self.named[slot.name]))
        for values in self.velocity.values():
            values.zero_()


@lru_cache(maxsize=2)
def _captured(
    layout: Layout,
    clients: int,
    batch: int,
    classes: int,
    rate: float,
    momentum: float,
    device: torch.device,
    arithmetic: bool,
) -> _Captured:
    """Rounds of a run are alike; few are kept, since a step holds three times as much memory as its predictors."""
    return _Captured(layout, clients, batch, classes, rate, momentum, device)


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
