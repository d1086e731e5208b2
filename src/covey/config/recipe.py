"""Recipes: the parts and settings of a named method."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.registries import methods
from covey.registry import import_path, is_held
from covey.trust import is_own

if TYPE_CHECKING:
    from covey.environment.federated_data import Federation


@dataclass(frozen=True)
class Recipe:
    """The parts and settings of a method."""

    summary: str
    """One sentence for `covey list methods`."""
    selector: str | None = "uniform"
    """A part is given by name, or as a class, a function or an instance, which gets a name."""
    aggregator: str | None = "average"
    selecting: Mapping[str, Any] = field(default_factory=dict)
    """Options of the selector that differ from its defaults."""
    weighing: Mapping[str, Any] = field(default_factory=dict)
    """Options of the aggregator that differ from its defaults."""
    trainer: str | None = "sgd"
    training: Mapping[str, Any] = field(default_factory=dict)
    """Options of the trainer that differ from its defaults."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """Values of local training that differ from the defaults."""
    server: Mapping[str, Any] = field(default_factory=dict)
    """Values of the server's optimiser that differ from the defaults."""
    averaging: Mapping[str, Any] = field(default_factory=dict)
    """Values of the average over rounds that differ from the defaults."""
    reshape: Callable[["Federation", int], "Federation"] | None = None
    """Replaces the federation, given the seed; for references such as IID."""
    resident: bool = False
    """True if trained models stay with the clients."""
    many: str | None = None
    """A method with many models, in place of selector and aggregator."""

    def __post_init__(self) -> None:
        for section in ("selector", "aggregator", "trainer"):
            part = getattr(self, section)
            if part is not None and not isinstance(part, str):
                object.__setattr__(self, section, _given_parts().name_of_part(section, part))


def recipe_of(name: str) -> Recipe:
    """Return the recipe `name`; `fedacs+feddrl` names a selector and an aggregator, and may name a trainer.

    A method of somebody's own, `package.module:name` or an object, is a recipe, makes a method with many models, or is
    a selector, an aggregator or a trainer: FedAvg with that part.
    """
    if name not in methods.names() and "+" in name:
        selector, aggregator, *others = name.split("+", 2)
        return Recipe("Parts chosen by name.", selector=selector, aggregator=aggregator, trainer=(*others, "sgd")[0])
    if name in methods.names():
        return methods[name].part
    part: Any = methods.held(name) if is_held(name) else None
    if part is None and is_own(name):
        part = import_path(name, "method", Recipe)
    if part is None:
        return methods[name].part
    if isinstance(part, Recipe):
        return part
    summary = " ".join((inspect.getdoc(part) or "A method of one's own.").split("\n\n")[0].split())
    role = _given_parts().role_of(part)
    if role is not None:
        parts: dict[str, Any] = {role: name}
        return Recipe(summary, **parts)
    return Recipe(summary, selector=None, aggregator=None, many=name)


def _given_parts() -> Any:
    # Imported late: it knows the roles, a layer above configuration.
    return import_module("covey.core.given_parts")
