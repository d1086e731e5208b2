"""Recipes: how a named method is put together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.registries import methods

if TYPE_CHECKING:
    from covey.environment.federated_data import Federation


@dataclass(frozen=True)
class Recipe:
    """How a method is made.

    `local` prescribes values of local SGD that differ from the defaults, and `weighing` options of the aggregator;
    `reshape` replaces the federation (references do that); `many` names a method with many models, instead of
    `OneModel`.
    """

    summary: str
    selector: str | None = "uniform"
    aggregator: str | None = "average"
    weighing: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    reshape: Callable[["Federation", int], "Federation"] | None = None
    resident: bool = False
    many: str | None = None


def recipe_of(name: str) -> Recipe:
    """The recipe called `name`; `fedacs+feddrl` is a selector and an aggregator by their names."""
    if name not in methods.names() and "+" in name:
        selector, _, aggregator = name.partition("+")
        return Recipe("Parts chosen by name.", selector=selector, aggregator=aggregator)
    return methods[name].part
