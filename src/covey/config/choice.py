"""A part chosen by name, with its options."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.config.values import chosen
from covey.errors import Refusal
from covey.registry import Registry


@dataclass(frozen=True)
class Choice:
    """A part chosen by name, with all of its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


def chosen_part(
    registry: Registry[Any],
    given: Any,
    default: str | None,
    refused: Collection[str],
    stored: bool = False,
    prescribed: Mapping[str, Any] | None = None,
    *,
    earlier: bool = False,
) -> Any:
    """Return the chosen part, or the default one, with all of its options; None if there is neither.

    `prescribed` are options of the default part that differ from its own defaults. With `earlier`, options that are
    newer than what was stored have the values that held before they existed.
    """
    name, options = chosen(registry.section, given)
    name = name or default
    if name is None:
        return None
    options = {**(prescribed or {}), **options} if name == default else options
    if name in refused or registry.lacks(name):
        return Choice(name, options)
    try:
        return Choice(name, registry.options(name, options, earlier=earlier))
    except Refusal:
        # The part is gone or has other options by now; resuming the run will refuse.
        if stored:
            return Choice(name, options)
        raise
