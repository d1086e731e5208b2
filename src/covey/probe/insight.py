"""FedACS's insight: the change that one full-batch step makes to a client's last layer (Wang et al. 2022, section V).

Δw_i = γ·∇Cost_i(θ) at the constant initial rate γ, from the model that all clients of the round received, so that
insights differ by the clients' data alone. `head` sends the last layer; `full`, of the conference version, all layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.client.learner import Learner
from covey.core.interfaces import CohortProbe
from covey.data.dataset import Samples
from covey.errors import Refusal, require
from covey.model.last_layer import head_of
from covey.model.layout import Layout
from covey.probe.losses import alike, many_alike, means
from covey.registries import probes
from covey.registry import import_path

Function = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A user's own insight (section V-E): model in evaluation mode, inputs, labels → a tensor of any fixed shape."""

_AT_ONCE = 1 << 22
"""The most numbers of per-sample gradients in memory at a time."""


@probes.add("insight")
@dataclass(frozen=True)
class Insight(CohortProbe):
    """The change that one full-batch step at `rate` makes to the model received.

    Sent: `weight` and `bias` of the last layer (head), `change` of all parameters (full), or a function's `value`.
    """

    rate: float
    kind: str = "head"
    """head, full, or package.module:function."""

    name = "insight"
    code_options = ("kind",)

    def __post_init__(self) -> None:
        require(
            self.kind in ("head", "full") or ":" in self.kind,
            f"insight is head, full, or a function of yours as package.module:name, not '{self.kind}'.",
        )
        if ":" in self.kind:
            _ = self.function

    @cached_property
    def function(self) -> Function:
        """The user's function that `kind` names."""
        found: Function = import_path(self.kind, "insight")
        require(callable(found), f"The insight {self.kind} is not a function.")
        return found

    def require_head(self, layout: Layout, reader: str) -> None:
        """Refuse a model without a last layer to read, on behalf of `reader`, if this insight is about it."""
        if self.kind == "head":
            layout.require_head(f"{reader} (insight=head; full takes any model)")

    def measure_cohort(
        self, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, counts: Sequence[int]
    ) -> dict[str, Tensor]:
        if self.kind == "head":
            return {
                name: self.rate * value for name, value in head_gradients(learner, received, samples, counts).items()
            }
        parts = samples.split(counts)
        if self.kind == "full":
            return {"change": torch.stack([self.rate * full_gradient(learner, received, part) for part in parts])}
        return {"value": torch.stack([self._applied(learner, received, part) for part in parts])}

    def _applied(self, learner: Learner, received: Tensor, samples: Samples) -> Tensor:
        learner.place(received)
        with torch.no_grad(), learner.arithmetic():
            value = self.function(learner.module, learner.inputs(samples.x), samples.y)
        if not isinstance(value, Tensor):
            raise Refusal(f"The insight {self.kind} must return a tensor, not {type(value).__name__}.")
        return value.to(learner.dtype)


def vectors(fields: Mapping[str, Tensor]) -> Tensor:
    """Flatten a cohort's insights to vectors, weight before bias: `[k, h]`."""
    order = sorted(fields, key=lambda name: (name == "bias", name))
    return torch.cat([fields[name].flatten(1) for name in order], dim=1)


def head_gradients(learner: Learner, received: Tensor, samples: Samples, counts: Sequence[int]) -> dict[str, Tensor]:
    """Return the gradient of each client's mean loss for the last layer, without a backward pass through the body.

    Where the model ends in a linear layer with inputs h_j, logits z_j and labels y_j, the gradient is a product:
    ∇W = mean_j (softmax(z_j) - 1[y_j]) h_jᵀ and ∇b = mean_j (softmax(z_j) - 1[y_j]); for tasks without classes with
    the gradient of the loss for z_j in place of softmax(z_j) - 1[y_j].
    """
    learner.layout.require_head("The gradient of the last layer")
    head = head_of(learner.module)
    if isinstance(head, nn.Linear | nn.Conv2d) and (found := _caught(learner, received, samples, head)) is not None:
        return _head_by_products(head, *found, counts)
    return _stacked([_head_by_autograd(learner, received, part) for part in samples.split(counts)])


def _head_by_products(
    head: nn.Linear | nn.Conv2d, residual: Tensor, features: Tensor, counts: Sequence[int]
) -> dict[str, Tensor]:
    gradients = {"weight": mean_products(residual, features, counts).view(len(counts), *head.weight.shape)}
    return gradients if head.bias is None else {**gradients, "bias": means(residual, counts)}


def _caught(
    learner: Learner, received: Tensor, samples: Samples, head: nn.Linear | nn.Conv2d
) -> tuple[Tensor, Tensor] | None:
    """Return the losses' gradients for z_j, and h_j, of all samples: `[n, classes]`, `[n, features]`.

    None if the head is not the output, or not a product; a convolution is one if its kernel covers the image.
    """
    if isinstance(head, nn.Conv2d) and head.padding not in ((0, 0), "valid"):
        return None
    learner.place(received)
    caught: dict[str, Tensor] = {}
    changes = 0

    def catch(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal changes
        caught["in"], caught["out"], changes = given[0], out, out._version

    residuals, inputs = [], []
    hook = head.register_forward_hook(catch)
    try:
        with torch.no_grad():
            for x, y in learner.chunks(samples):
                with learner.arithmetic():
                    logits = learner.module(learner.inputs(x))
                features, out = caught["in"].flatten(1), caught["out"]
                # True if the model returns its last layer's output unchanged, perhaps in another shape.
                same = logits.data_ptr() == out.data_ptr() and logits._version == changes
                if (
                    not same
                    or logits.shape != (len(x), len(head.weight))
                    or features.shape != (len(x), head.weight[0].numel())
                ):
                    return None
                residuals.append(_residual(learner, logits.to(learner.dtype), y))
                inputs.append(features.to(learner.dtype))
    finally:
        hook.remove()
    return torch.cat(residuals), torch.cat(inputs)


def _residual(learner: Learner, logits: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each sample's loss for its outputs: `[n, outputs]`."""
    task = learner.task
    if task.has_classes:
        shares = F.softmax(logits, dim=1)
        return shares - F.one_hot(y, shares.shape[1]).to(learner.dtype)
    with torch.enable_grad():
        tracked = logits.detach().requires_grad_()
        return torch.autograd.grad(task.loss(tracked, y, reduction="sum"), tracked)[0]


def mean_products(residual: Tensor, features: Tensor, counts: Sequence[int]) -> Tensor:
    """Return each client's mean of r hᵀ over samples: `[n, classes]`, `[n, features]` → `[k, classes, features]`."""
    if not residual.is_cuda or not many_alike(counts):
        pieces = zip(torch.split(residual, list(counts)), torch.split(features, list(counts)), strict=True)
        return torch.stack([r.t() @ h / len(r) for r, h in pieces])
    found = residual.new_empty(len(counts), residual.shape[1], features.shape[1])
    for places, rows in alike(counts):
        at = rows.to(residual.device)
        found[places.to(residual.device)] = residual[at].transpose(1, 2) @ features[at] / rows.shape[1]
    return found


def sample_gradients(learner: Learner, received: Tensor, samples: Samples) -> Iterator[dict[str, Tensor]]:
    """Yield the last layer's gradients of single samples (`[b, ...]`), as many at a time as fit in memory."""
    step = max(1, _AT_ONCE // sum(slot.size for slot in learner.layout.head))
    for at in range(0, len(samples), step):
        part = Samples(samples.x[at : at + step], samples.y[at : at + step])
        yield head_gradients(learner, received, part, [1] * len(part))


@torch.enable_grad()
def _head_by_autograd(learner: Learner, received: Tensor, samples: Samples) -> dict[str, Tensor]:
    """`head_gradients` for any last layer: only its parameters are tracked, so the graph begins there."""
    learner.place(received)
    named = dict(learner.module.named_parameters())
    wanted = [named[slot.name] for slot in learner.layout.head]
    tracked = {parameter: parameter.requires_grad for parameter in named.values()}
    for parameter in named.values():
        parameter.requires_grad_(any(parameter is one for one in wanted))
    try:
        total = [torch.zeros_like(parameter) for parameter in wanted]
        for x, y in learner.chunks(samples):
            gradients = torch.autograd.grad(learner.loss(x, y, reduction="sum"), wanted)
            torch._foreach_add_(total, gradients)
    finally:
        for parameter, before in tracked.items():
            parameter.requires_grad_(before)
    leaves = [slot.name.rpartition(".")[2] for slot in learner.layout.head]
    return {leaf: value / len(samples) for leaf, value in zip(leaves, total, strict=True)}


@torch.enable_grad()
def full_gradient(learner: Learner, received: Tensor, samples: Samples) -> Tensor:
    """Return the gradient of the mean loss for all parameters, in evaluation mode: `[parameters]`."""
    learner.place(received)
    parameters = [parameter for parameter in learner.module.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for x, y in learner.chunks(samples):
        loss = learner.loss(x, y, reduction="sum")
        torch._foreach_add_(total, torch.autograd.grad(loss, parameters, materialize_grads=True))
    return torch.cat([value.flatten() for value in total]) / len(samples)


def _stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
