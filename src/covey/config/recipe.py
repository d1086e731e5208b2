"""Recipes: the parts and settings of a named method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.registries import methods

if TYPE_CHECKING:
    from covey.environment.federated_data import Federation


@dataclass(frozen=True)
class Recipe:
    """The parts and settings of a method."""

    summary: str
    """One sentence for `covey list methods`."""
    selector: str | None = "uniform"
    aggregator: str | None = "average"
    selecting: Mapping[str, Any] = field(default_factory=dict)
    """Options of the selector that differ from its defaults."""
    weighing: Mapping[str, Any] = field(default_factory=dict)
    """Options of the aggregator that differ from its defaults."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """Values of local training that differ from the defaults."""
    reshape: Callable[["Federation", int], "Federation"] | None = None
    """Replaces the federation, given the seed; for references such as IID."""
    resident: bool = False
    """True if trained models stay with the clients."""
    many: str | None = None
    """A method with many models, in place of selector and aggregator."""


def recipe_of(name: str) -> Recipe:
    """Return the recipe `name`; `fedacs+feddrl` names a selector and an aggregator."""
    if name not in methods.names() and "+" in name:
        selector, _, aggregator = name.partition("+")
        return Recipe("Parts chosen by name.", selector=selector, aggregator=aggregator)
    return methods[name].part
