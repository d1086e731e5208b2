"""Builds models by name, and prepares them for federated training."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import Refusal, require
from covey.model.dropout import adopt_dropout
from covey.model.frozen import start_training
from covey.model.last_layer import HeadSearch
from covey.model.layers import adopt_layers
from covey.model.normalisation import adopt_batch_norm
from covey.model.outputs import adopt_output, logits_of
from covey.randomness import torch_seed
from covey.registries import models

ModelBuilder = Callable[..., nn.Module]
"""`build(shape, classes, *, option=default, ...) -> nn.Module`, or `build(*, option=default, ...)`."""

_SAMPLES = 2
"""Samples of the pass that shows what a model returns."""


def build_model(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int, *, tokens: bool = False
) -> nn.Module:
    """Build the model called `name`, initialised from the seed alone, for samples of a shape (`tokens`: words).

    Layers that draw from torch's generator, or that have no rule for a stack of models, are replaced by equal ones. A
    model of somebody's own is tried on two samples, to find out what it returns and which layer is its last.
    """
    build = models[name].part
    given = models.options(name, options)
    arguments = _arguments(name, build, shape, classes, given)
    with torch_seed(seed, "initialisation"):
        module = _built(name, build, arguments, given)
    require_usable(module)
    if not list(module.children()):
        # A single layer: layers are replaced in what holds them.
        module = nn.Sequential(module)
    adopt_layers(module)
    adopt_dropout(module)
    adopt_batch_norm(module)
    if not type(module).__module__.startswith("covey."):
        with torch_seed(seed, "trial"):
            _try(module, shape, classes, tokens)
    return module


def are_words(x: Tensor) -> bool:
    """True if samples are words (tokens), and not measurements or images."""
    return x.dtype != torch.uint8 and not x.is_floating_point()


def _arguments(
    name: str, build: Callable[..., Any], shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the positional arguments that a model is built with: shape and classes, or none."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):
        return ()
    places = [
        one for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())
    needed = [one for one in places if one.default is one.empty]
    named = len(places) >= 2 and "shape" in places[0].name and "class" in places[1].name
    arguments = (shape, classes) if needed or named or (takes_any and not places) else ()
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise Refusal(
            f"The model '{name}' is not called as name(shape, classes, *, option=default, ...), with the shape of a "
            f"sample and the number of classes, nor without arguments: {error}."
        ) from error
    return arguments


def _built(name: str, build: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> nn.Module:
    try:
        module: nn.Module = build(*arguments, **options)
    except Refusal:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        called = "shape = {}, classes = {}".format(*arguments) if arguments else "no arguments"
        raise Refusal(
            f"The model '{name}' cannot be built with {called}: {type(error).__name__}: {reason}. A class or function "
            "is called with the shape of a sample and the number of classes, or, if it needs nothing, without "
            "arguments; else give a function that calls it, such as lambda: Net(8, 3)."
        ) from error
    require(isinstance(module, nn.Module), f"The model '{name}' built a {type(module).__name__}, not an nn.Module.")
    return module


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a model; refuse one that cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        raise Refusal(
            f"The model {type(module).__name__} cannot be copied: {type(error).__name__}: {reason}. Tensors that are "
            "computed from others are no parameters: torch.nn.utils.parametrizations.weight_norm can be copied, and "
            "torch.nn.utils.weight_norm cannot."
        ) from error


def require_usable(module: nn.Module) -> None:
    """Refuse a model that cannot be trained here: TorchScript, lazy, elsewhere, in another precision, or all frozen."""
    kind = type(module).__name__
    require(
        not any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()),
        f"The model {getattr(module, 'original_name', kind)} is TorchScript, whose layers cannot be replaced: give the "
        "torch.nn.Module that it was made of.",
    )
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, one in named:
        require(
            not nn.parameter.is_lazy(one),
            f"The model {kind} has lazy parameters ({name}), whose shapes are not known yet: pass a batch through it "
            "before it is given, or give the shapes.",
        )
        require(
            one.device.type == "cpu",
            f"The model {kind} is on the device {one.device} ({name}): give it on the CPU (model.cpu()); runtimes "
            "place it where it is needed.",
        )
        require(
            one.dtype == torch.float32 or not (one.is_floating_point() or one.is_complex()),
            f"The model {kind} has tensors of the type {str(one.dtype).removeprefix('torch.')} ({name}), and models "
            "are given in float32 (model.float()); --precision bf16 or fp64 says how they are computed.",
        )
    parameters = list(module.parameters())
    require(bool(parameters), f"The model {kind} has no parameters to train.")
    require(
        any(parameter.requires_grad for parameter in parameters),
        f"All parameters of the model {kind} are frozen (requires_grad=False), so there is nothing to train: leave at "
        "least its last layer free.",
    )


def _try(module: nn.Module, shape: tuple[int, ...], classes: int, tokens: bool) -> None:
    """Pass two samples through a model: adopt its output, find its last layer, and refuse what cannot work."""
    kind = type(module).__name__
    words = bool(getattr(module, "tokens", tokens))
    sample = torch.zeros(_SAMPLES, *shape, dtype=torch.int64) if words else torch.rand(_SAMPLES, *shape)
    search, trained = HeadSearch(module), module.training
    found: Any = None
    try:
        with torch.no_grad():
            found = _output(module.eval(), sample)
    finally:
        search.end(_logits(found))
        module.train(trained)
    logits = adopt_output(module, found, column=classes == 1)
    require(
        logits.dim() == 2 and len(logits) == _SAMPLES and logits.is_floating_point(),
        f"The model {kind} returns a tensor {tuple(logits.shape)} for {_SAMPLES} samples, not outputs "
        f"({_SAMPLES}, {classes}): one for each class, target or label of a sample.",
    )
    require(
        logits.shape[1] >= classes,
        f"The model {kind} returns {logits.shape[1]} numbers for a sample, and the data needs {classes}: one for each "
        "class, target or label.",
    )
    _try_training(module, sample)
    module.train(trained)


def _logits(output: Any) -> Tensor | None:
    return output if isinstance(output, Tensor) else logits_of(output)


def _output(module: nn.Module, sample: Tensor) -> Any:
    try:
        return module(sample)
    except Refusal:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise Refusal(
            f"The model {type(module).__name__} fails on samples of the shape {tuple(sample.shape[1:])}: "
            f"{type(error).__name__}: {reason}.{_if_words(module, sample)}"
        ) from error


def _if_words(module: nn.Module, sample: Tensor) -> str:
    """Return what to say of samples that are numbers, and go into a model that looks words up."""
    looks_up = any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in module.modules())
    if not looks_up or not sample.is_floating_point():
        return ""
    return " Samples are numbers here: if they are numbers of words, say covey.federation(..., tokens=True)."


@torch.no_grad()
def _try_training(module: nn.Module, sample: Tensor) -> None:
    """Refuse a model whose training cannot be repeated or averaged; its buffers are left as they were.

    A buffer of whole numbers that changes (but batch norm's count of batches) could not be averaged. One that is
    replaced by another tensor is no longer a part of the state, so that its change would be lost.
    """
    kind, held = type(module).__name__, dict(module.named_buffers())
    before = {name: one.clone() for name, one in held.items()}
    generator = torch.get_rng_state()
    with torch.enable_grad():
        depends = _output(start_training(module), sample).requires_grad
    require(
        depends,
        f"The output of the model {kind} depends on none of its trained parameters as autograd sees it, so there is "
        "nothing to train: leave out detach(), torch.no_grad() and NumPy in forward().",
    )
    require(
        torch.equal(generator, torch.get_rng_state()),
        f"The model {kind} draws from torch's generator as it trains (F.dropout, say), so that a run could not be "
        "repeated: use the layer torch.nn.Dropout, which is replaced by one that draws from the run's seed.",
    )
    changed = [
        name
        for name, one in module.named_buffers()
        if not one.is_floating_point() and name.rpartition(".")[2] != "num_batches_tracked"
        if name in before and not torch.equal(one, before[name])
    ]
    replaced = [
        name
        for name, one in module.named_buffers()
        if name in held and one is not held[name] and one.shape == held[name].shape and not one.equal(before[name])
    ]
    for name, one in held.items():
        owner, _, leaf = name.rpartition(".")
        module.get_submodule(owner)._buffers[leaf] = one.copy_(before[name])
    require(
        not replaced,
        f"The model {kind} replaces the buffer {', '.join(replaced[:1])} by another tensor as it trains, so that what "
        "it learns there would be lost: change it in place (self.mean.mul_(0.9).add_(0.1 * new), say).",
    )
    require(
        not changed,
        f"The model {kind} changes the buffer {', '.join(changed[:1])} of whole numbers as it trains: only "
        "floating-point buffers are averaged, so make it one, or leave it out.",
    )


def image_shape(model: str, shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Return `shape` as (channels, height, width); refuse shapes that are no images, or too small for the model."""
    if len(shape) != 3 or min(shape[1:]) < at_least:
        raise Refusal(
            f"The model '{model}' needs images of at least {at_least} x {at_least} pixels, and samples here have the "
            f"shape {' x '.join(map(str, shape))}; choose another model (mlp takes any shape), or another dataset "
            "(digits becomes 32 x 32 with dataset.upscale=4)."
        )
    return shape[0], shape[1], shape[2]
