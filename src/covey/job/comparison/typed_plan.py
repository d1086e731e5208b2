"""Settings of a plan as numbers and truth values, where the command line gave text."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from covey.config.same_settings import flat
from covey.errors import Refusal
from covey.job.comparison.plan import variants_of
from covey.job.typed_settings import typed


def with_types(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan whose settings have their types, so that it reads the same from the command line and Python."""
    variants = variants_of(plan)
    known: dict[str, Any] = {}
    for variant in variants:
        for key, value in flat(variant.configs[0].as_mapping()).items():
            if value is not None:
                known.setdefault(key, value)
    given = {key: _typed_setting(key, value, known) for key, value in plan["given"].items()}
    vary = {key: [_typed_varied(value, known.get(key)) for value in values] for key, values in plan["vary"].items()}
    found = {**plan, "given": given, "vary": vary}
    with suppress(Refusal):
        if [(one.label, one.configs) for one in variants_of(found)] == [(one.label, one.configs) for one in variants]:
            return found
    return plan


def _typed_setting(key: str, value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {option: typed(one, known.get(f"{key}.{option}")) for option, one in value.items()}
    return typed(value, known.get(key, known.get(f"{key}.name")))


def _typed_varied(value: Any, like: Any) -> Any:
    """Return a value that varies with its type; one that labels would write otherwise stays as it is."""
    found = value if isinstance(like, str) or not isinstance(value, str) else typed(value)
    return found if str(found) == str(value) else value
