"""The last layer of a model, its head: named by the attribute `head`, or found in a pass through the model.

Few methods read it: insights (FedACS), class queries and predictors (On-Demand FL), features (MOON), and parts of
clients' own (FedPer, FedRep). All others run without one.
"""

from typing import Any

import torch
from torch import Tensor, nn

_FOUND = "covey_head"
"""Attribute for a name that was found; `head` may be the layer itself."""

_KIND = "covey_kind"
"""Attribute for what sentences call a model that is wrapped in another."""


def head_name(module: nn.Module) -> str:
    """Return the name of a model's last layer; empty if it is not known."""
    stated = getattr(module, "head", None)
    return stated if isinstance(stated, str) else str(module.__dict__.get(_FOUND, ""))


def state_head(module: nn.Module, name: str) -> None:
    """Write down the name of a model's last layer that was found."""
    if name:
        module.__dict__[_FOUND] = name


def head_of(module: nn.Module) -> nn.Module:
    """Return a model's last layer."""
    return module.get_submodule(head_name(module))


class HeadSearch:
    """Watches a pass through a model: its head is the last linear layer, if the output is that layer's, unchanged."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: list[tuple[str, Tensor, int]] = []
        self._hooks = [
            layer.register_forward_hook(self._watcher(name))
            for name, layer in module.named_modules()
            if name and isinstance(layer, nn.Linear)
        ]

    def _watcher(self, name: str) -> Any:
        def watch(layer: nn.Module, given: Any, out: Any) -> None:
            if isinstance(out, Tensor):
                self._seen.append((name, out, out._version))

        return watch

    def end(self, logits: Tensor | None) -> None:
        """Write down the head that was found, given the pass's logits (None if it failed)."""
        for hook in self._hooks:
            hook.remove()
        if logits is None or not self._seen or isinstance(getattr(self._module, "head", None), str):
            return
        name, out, version = self._seen[-1]
        same = logits.data_ptr() == out.data_ptr() and logits.shape == out.shape and logits._version == version
        once = [one for one, _, _ in self._seen].count(name) == 1
        if same and once and logits.numel():
            state_head(self._module, name)

    def last_like(self, logits: Tensor) -> str:
        """Return the linear layer that was called last, if its output has as many numbers as the logits; else ""."""
        return self._seen[-1][0] if self._seen and self._seen[-1][1].numel() == logits.numel() else ""


def shared_names(module: nn.Module) -> dict[str, str]:
    """Return every name of a parameter, and the first name of the same parameter."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def head_slots_of(module: nn.Module, trained: dict[str, Any]) -> tuple[tuple[Any, ...], str]:
    """Return the slots of a model's head, from those of its trained parameters; and why there are none.

    A head that shares a parameter with another layer has no gradient of its own.
    """
    kind, head = str(module.__dict__.get(_KIND, type(module).__name__)), head_name(module)
    if not head:
        return (), (
            f"that of the model {kind} is not known: it does not end in a linear layer. Give the model an attribute "
            "head = 'name of the layer', such as head = 'classifier.2'"
        )
    names = shared_names(module)
    own = [name for name in names if name == head or name.startswith(head + ".")]
    if not own:
        return (), ""
    firsts = {names[name] for name in own}
    others = sorted(name for name, first in names.items() if first in firsts and name not in own)
    if others:
        return (), f"that of the model {kind} ({head}) shares its weight with {others[0]}, so it has no gradient alone"
    found = tuple(slot for name, slot in trained.items() if name in own)
    return found, "" if found else f"that of the model {kind} ({head}) is frozen"


@torch.no_grad()
def output_shape(module: nn.Module, sample: Tensor) -> tuple[int, ...]:
    """Return the shape of a model's output for a batch."""
    return tuple(module(sample).shape)
