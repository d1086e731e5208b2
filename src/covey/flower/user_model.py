"""A user's model on Flower: its logits, its last layer, and the number of its outputs.

A client finds the last layer in a pass through its model. A server has no samples to pass, and follows the code of
`forward` in place of it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from covey.errors import Refusal
from covey.model.last_layer import HeadSearch, head_name, state_head
from covey.model.outputs import logits_of, unclear_output
from covey.randomness import torch_seed

_SAMPLES = 2


class ModelWithHead(nn.Module):
    """A user's model that returns its logits, with the name of its last layer where the user gave one (`head`)."""

    def __init__(self, model: nn.Module, head: str | None = None) -> None:
        super().__init__()
        self.model = model
        self.__dict__["covey_kind"] = type(model).__name__
        stated = head or getattr(model, "head", None)
        if isinstance(stated, str):
            self.head = f"model.{stated}"
        self.outputs: int | None = None
        """Numbers that a pass has shown it to return for a sample; None if that is not known."""
        if hasattr(model, "tokens"):
            self.tokens = model.tokens

    def forward(self, x: Tensor) -> Tensor:
        out = self.model(x)
        logits = out if isinstance(out, Tensor) else logits_of(out)
        if logits is None:
            raise Refusal(unclear_output(self.model, out))
        return logits


def traced(model: nn.Module, head: str | None = None) -> ModelWithHead:
    """Return a user's model with its last layer as the code of `forward` says, without a pass through it.

    It is the linear layer that the output comes from, with nothing but functions and layers without parameters behind
    it. Code that cannot be followed leaves the linear layer that the model registers last.
    """
    module = ModelWithHead(model, head)
    if not head_name(module):
        state_head(module, _followed(model))
    return module


def passed(model: nn.Module, shape: tuple[int, ...], *, words: bool, head: str | None = None) -> ModelWithHead:
    """Return a user's model with its last layer, and number of outputs, as a pass shows.

    It is the linear layer that is called last, if it gives as many numbers as the model. A model that fails has the
    linear layer that it registers last; its training then says why. Samples are made up, so that nothing depends on
    the client's.
    """
    module = ModelWithHead(model, head)
    search = HeadSearch(module)
    logits = _logits(module, shape, words)
    search.end(logits)
    if not head_name(module):
        state_head(module, _registered_last(module) if logits is None else search.last_like(logits))
    if logits is not None and logits.dim() == 2:
        module.outputs = logits.shape[1]
    return module


def outputs_of(module: ModelWithHead) -> int:
    """Return the number of a model's outputs: those that a pass has shown, or those of its last layer."""
    if module.outputs is not None:
        return module.outputs
    head = dict(module.named_modules()).get(head_name(module), nn.Identity())
    rows: int | None = next((parameter.shape[0] for parameter in head.parameters()), None)
    if not head_name(module) or rows is None:
        raise Refusal(
            f"The number of outputs of the model {type(module.model).__name__} is not known: it does not return logits "
            "(samples, classes), and its last layer is not known either. Name it: head='name of the layer'."
        )
    return rows


@torch.no_grad()
def _logits(module: nn.Module, shape: tuple[int, ...], words: bool) -> Tensor | None:
    """Return a model's logits for made-up samples, in evaluation mode; None if it fails on them."""
    first, trained = next(module.parameters(), torch.zeros(0)), module.training
    sample = torch.zeros(_SAMPLES, *shape, dtype=torch.int64 if words else first.dtype, device=first.device)
    try:
        with torch_seed(0, "trial"):
            found: Tensor = module.eval()(sample)
    except Exception:
        return None
    finally:
        module.train(trained)
    return found


def _registered_last(module: nn.Module) -> str:
    """Return the name of the last linear layer among a model's layers; empty if there is none."""
    return next((name for name, layer in reversed(list(module.named_modules())) if isinstance(layer, nn.Linear)), "")


def _followed(model: nn.Module) -> str:
    """Return the name, in a `ModelWithHead`, of the linear layer that a model's output comes from; empty if none."""
    if isinstance(model, nn.Linear):
        return "model"
    try:
        graph = fx.Tracer().trace(model)
    except Exception:
        # Users' code may branch on values, or be called with more than samples.
        found = _registered_last(model)
        return f"model.{found}" if found else ""
    node = _first(next(iter(reversed(graph.nodes))).args[0])
    while node is not None:
        if node.op == "call_module":
            layer = model.get_submodule(str(node.target))
            if isinstance(layer, nn.Linear):
                return f"model.{node.target}"
            if any(True for _ in layer.parameters()):
                return ""
        elif node.op not in ("call_function", "call_method"):
            return ""
        inputs = [one for one in node.all_input_nodes if one.op != "get_attr"]
        # A method such as `view` is called on its first input.
        node = inputs[0] if len(inputs) == 1 or node.op == "call_method" else None
    return ""


def _first(output: Any) -> fx.Node | None:
    """Return the logits in what a traced model returns."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values())) if len(output) == 1 else None)
    elif isinstance(output, (tuple, list)):
        output = output[0] if output else None
    return output if isinstance(output, fx.Node) else None
