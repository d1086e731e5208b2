"""A run keeps the settings that it began with."""

from collections.abc import Mapping
from typing import Any

from covey.config.schema import Config
from covey.errors import require

_WITHOUT_EFFECT = ("workers", "data_dir", "host_memory_limit")
"""Settings that change no result."""

_NAMED = 3
"""Most settings that a refusal names."""


def require_same(before: Config, now: Config, run: str, instead: str) -> None:
    """Refuse to resume a run under other settings than it began with; `instead` says what else can be done."""
    was, given = (flat(config.as_mapping()) for config in (before, now))
    others = [key for key in {**was, **given} if key not in _WITHOUT_EFFECT and was.get(key) != given.get(key)]
    begun, wanted = (
        ", ".join(f"{key} = {values.get(key, 'nothing')}" for key in others[:_NAMED]) for values in (was, given)
    )
    more = f" ({len(others) - _NAMED} more settings differ)" if len(others) > _NAMED else ""
    require(
        not others,
        f"{run} was begun with {begun}, and is now given {wanted}{more}. A run keeps its settings: put them back, or "
        f"{instead}.",
    )


def flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat
