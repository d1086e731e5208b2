"""Outputs of models: a tensor, a tuple, a mapping, or an object with `logits`. Covey's code sees logits alone."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from covey.errors import Refusal


def logits_of(output: Any) -> Tensor | None:
    """Return the logits in a model's output; None if it is not clear which they are."""
    if isinstance(output, Mapping):
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        output = output.get("logits", tensors[0] if len(tensors) == 1 else None)
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, (tuple, list)):
        output = output[0] if output else None
    return output if isinstance(output, Tensor) else None


class TakesLogits:
    """A forward hook that replaces a model's output by its logits; `column` makes `[b]` of them `[b, 1]`."""

    def __init__(self, *, column: bool = False) -> None:
        self.column = column

    def __call__(self, module: nn.Module, given: Any, output: Any) -> Tensor:
        logits = _only_logits(module, output)
        return logits.unsqueeze(1) if self.column and logits.dim() == 1 else logits


def adopt_output(module: nn.Module, output: Any, *, column: bool = False) -> Tensor:
    """Have a model return its logits, if its output is something else; refuse one that holds none.

    With `column`, a model of one number for each sample may return it as `[b]`. Returns what it returns from now on.
    """
    logits = _only_logits(module, output)
    flat = column and logits.dim() == 1
    if isinstance(output, Tensor) and not flat:
        return logits
    hook = TakesLogits(column=flat)
    module.register_forward_hook(hook)
    return hook(module, None, output)


def _only_logits(module: nn.Module, output: Any) -> Tensor:
    logits = output if isinstance(output, Tensor) else logits_of(output)
    if logits is None:
        raise Refusal(unclear_output(module, output))
    return logits


def restore_output(module: nn.Module) -> nn.Module:
    """Have a model return what it did before `adopt_output`; return it."""
    for number, hook in list(module._forward_hooks.items()):
        if isinstance(hook, TakesLogits):
            del module._forward_hooks[number]
    return module


def unclear_output(module: nn.Module, output: Any) -> str:
    """Return the sentence about an output that holds no logits."""
    found = type(output).__name__
    if isinstance(output, Mapping):
        found += f" with {', '.join(map(str, output)) or 'nothing'}"
    return (
        f"The model {type(module).__name__} returns a {found}: return the logits as a tensor, first in a tuple, as "
        "'logits' in a dict, or as the attribute logits."
    )
