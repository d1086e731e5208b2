"""Parts that are given as Python objects: classes, functions and instances, beside names.

A configuration holds names. What can be imported is called by its place, `package.module:name`. Anything else (a class
of a notebook, a lambda, an instance) is held by its registry, in this process alone, under a name that has a digest of
what it is: `Net@3f2a91c0`. Who reads the run's folder elsewhere gives the object again.
"""

import copy
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from covey.config.recipe import Recipe
from covey.core.interfaces import Aggregator, Selector
from covey.core.trainer import Trainer
from covey.errors import Refusal, require
from covey.model.factory import copied, require_usable
from covey.model.frozen import architecture, digest_of
from covey.registries import aggregators, datasets, environments, manymodels, methods, models, selectors, trainers
from covey.registry import Registry, is_held

_REGISTRIES: Mapping[str, tuple[Registry[Any], ...]] = {
    "dataset": (datasets,),
    "environment": (environments,),
    "model": (models,),
    "selector": (selectors,),
    "aggregator": (aggregators,),
    "trainer": (trainers,),
    "method": (methods, manymodels),
}
_ROLES: Mapping[str, type] = {"selector": Selector, "aggregator": Aggregator, "trainer": Trainer}
_WORDS = {"dataset": "a function that returns a covey.Dataset", "environment": "a function that splits labels"}
_PLAIN = (bool, int, float, complex, bytes, list, tuple, set, range)


def name_of_part(section: str, part: Any) -> str:
    """Return the name of a part that is given as an object, under which its registry has it from now on."""
    _require_kind(section, part)
    registry = _REGISTRIES[section][0]
    name = registry.name_of(part) or importable(part)
    if name is not None:
        return name
    digest, sure = _digest(part)
    called = part.func if isinstance(part, functools.partial) else part
    shown = called.__name__ if _makes(called) and hasattr(called, "__name__") else type(called).__name__
    shown = "function" if shown == "<lambda>" else shown
    held = f"{shown}@{digest}"
    number = 2
    while not sure and registry.held(held) is not None and registry.held(held) is not _source_of(registry, held, part):
        held, number = f"{shown}@{digest}.{number}", number + 1
    _hold(section, held, part)
    return held


def role_of(part: Any) -> str | None:
    """Return the section of a selector, an aggregator or a trainer, a class or an instance; None of anything else."""
    kind = part if inspect.isclass(part) else type(part)
    return next((section for section, role in _ROLES.items() if issubclass(kind, role)), None)


def hold_again(section: str, name: str, part: Any, where: str) -> tuple[str, ...]:
    """Take a part that a folder's run was given as an object; `name` is what the folder calls it.

    Returns the names that the caller vouches for: one that can be imported needs no other trust.
    """
    _require_kind(section, part)
    if not is_held(name):
        given = name_of_part(section, part)
        require(given == name, f"The run in {where} has the {section} '{name}', not '{given}': leave {section}= out.")
        return (name,)
    if section != "model":
        # A model is compared by its tensors, once it is built.
        digest, _ = _digest(part)
        require(
            name.partition("@")[2].partition(".")[0] == digest,
            f"The {section} given is not the one that the run in {where} was made with ({name}): its code or its "
            "values differ.",
        )
    _hold(section, name, part)
    return ()


_sources: dict[tuple[str, str], Any] = {}
"""Registry and name → the object that was given."""


def _source_of(registry: Registry[Any], name: str, part: Any) -> Any:
    """Return what a registry holds under a name if it was made of this very part."""
    return registry.held(name) if _sources.get((registry.kind, name)) is part else None


def _hold(section: str, name: str, part: Any) -> None:
    made = _builder(section, part)
    role = role_of(part) if section == "method" else None
    # A method that is a selector, an aggregator or a trainer is never made itself, but that part of it is.
    held = [(registry, part if role else made) for registry in _REGISTRIES[section]]
    for registry, one in [*held, *((registry, made) for registry in _REGISTRIES.get(role or "", ()))]:
        _sources[registry.kind, name] = part
        registry.hold(name, one)


def _builder(section: str, part: Any) -> Any:
    """Return what a registry holds for a part: itself if it makes parts, else a function that copies it."""
    if isinstance(part, Recipe) or _makes(part) or section in _WORDS:
        return part
    kept = copied(part) if isinstance(part, nn.Module) else copy.deepcopy(part)

    def build() -> Any:
        return copy.deepcopy(kept)

    return build


def _makes(part: Any) -> bool:
    """True for a class or a function, False for an instance."""
    return inspect.isclass(part) or inspect.isroutine(part) or isinstance(part, functools.partial)


def _require_kind(section: str, part: Any) -> None:
    """Refuse an object that cannot be such a part, as far as that can be told."""
    if isinstance(part, _PLAIN) or part is None:
        raise Refusal(f"{section} must be a name, or a section with a name and options, not {part!r}.")
    if section == "model":
        is_class = inspect.isclass(part)
        require(
            not is_class or issubclass(part, nn.Module),
            f"model={getattr(part, '__name__', part)} is a class, but no torch.nn.Module.",
        )
        require(
            isinstance(part, nn.Module) or callable(part),
            f"model must be a name, a torch.nn.Module, or a class or function that makes one, not a "
            f"{type(part).__name__}.",
        )
        if isinstance(part, nn.Module):
            require_usable(part)
    elif section in _WORDS:
        require(callable(part), f"{section} must be a name, or {_WORDS[section]}, not a {type(part).__name__}.")
    elif section == "method":
        require(
            isinstance(part, Recipe) or _makes(part) or role_of(part) is not None,
            "method must be a name, a covey.Recipe, a selector, an aggregator or a trainer, or a class that is called "
            f"as Method(setting, model), not a {type(part).__name__}.",
        )


def importable(part: Any) -> str | None:
    """Return `package.module:name` if a class or function can be imported so."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if not _makes(part) or not isinstance(module, str) or not isinstance(name, str) or not name.isidentifier():
        return None
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if module != "__main__" and found is part else None


def _digest(part: Any) -> tuple[str, bool]:
    """Return a short digest of an object's code and values, and whether it holds all there is."""
    found = hashlib.sha256()
    sure = _describe(part, found.update, 0)
    return found.hexdigest()[:8], sure


def _describe(value: Any, tell: Callable[[bytes], None], depth: int) -> bool:
    """Tell what an object is; return False if something about it cannot be told."""

    def say(text: str) -> None:
        tell(text.encode() + b";")

    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        say(repr(value))
        return True
    if depth > 8:
        return False
    if isinstance(value, nn.Module):
        tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        say(f"{type(value).__qualname__} {architecture(value)} {digest_of(tensors)} {value!r}")
        layers = [(name, type(layer), _plain_attributes(layer)) for name, layer in value.named_modules()]
        return _describe(layers, tell, depth + 1)
    if isinstance(value, Tensor):
        say(digest_of({"": value}))
        return True
    if isinstance(value, Mapping):
        return _describe_all([one for pair in value.items() for one in pair], tell, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        say(type(value).__name__)
        ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return _describe_all(ordered, tell, depth)
    if isinstance(value, functools.partial):
        return _describe_all((value.func, value.args, value.keywords), tell, depth)
    if _makes(value):
        return _describe_code(value, tell, depth)
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        say(f"{value.dtype} {getattr(value, 'shape', ())}")
        tell(value.tobytes())
        return True
    sure = _describe(type(value), tell, depth + 1)
    return _describe(dict(vars(value)), tell, depth + 1) and sure if hasattr(value, "__dict__") else False


def _plain_attributes(layer: nn.Module) -> dict[str, Any]:
    """Return what a layer has beside tensors and layers, such as its share of dropout."""
    return {name: value for name, value in vars(layer).items() if not name.startswith("_") and name != "training"}


def _describe_all(values: Iterable[Any], tell: Callable[[bytes], None], depth: int) -> bool:
    sure = True
    for one in values:
        sure = _describe(one, tell, depth + 1) and sure
    return sure


def _describe_code(value: Any, tell: Callable[[bytes], None], depth: int) -> bool:
    """Tell a class's or function's source, and the values that its functions have taken along."""
    tell(f"{getattr(value, '__qualname__', value)};".encode())
    place = importable(value)
    if place is not None:
        tell(place.encode())
        return True
    try:
        tell(textwrap.dedent(inspect.getsource(value)).encode())
        sure = True
    except (OSError, TypeError):
        sure = False
    functions = [one for one in vars(value).values() if inspect.isfunction(one)] if inspect.isclass(value) else [value]
    for function in functions:
        cells = getattr(function, "__closure__", None) or ()
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, cells, strict=False):
            if name not in ("__class__", getattr(value, "__name__", "")):
                try:
                    sure = _describe(cell.cell_contents, tell, depth + 1) and sure
                except ValueError:
                    sure = False
        sure = _describe(getattr(function, "__defaults__", None) or (), tell, depth + 1) and sure
    return sure


def initial_weights_given(name: str) -> bool:
    """True if a model's name stands for an instance, whose weights are the initial model whatever the seed."""
    return isinstance(_sources.get((models.kind, name)), nn.Module)
