"""Settings as nested mappings: reading, checking and merging them."""

import difflib
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.config.sections import SECTIONS
from covey.errors import Refusal
from covey.registries import datasets, environments, models
from covey.registry import Registry, coerce
from covey.trust import is_own, paths_in

PARTS = ("dataset", "environment", "model", "selector", "aggregator", "many")
"""Keys of the parts that are chosen by name."""

_HOLDING_NO_CODE: Mapping[str, Registry[Any]] = {"dataset": datasets, "environment": environments, "model": models}


def parse_bytes(text: str) -> int:
    """Parse `8GiB`, `500 MB` or `1e9` as a number of bytes."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in units or float(match[1]) <= 0:
        raise Refusal(f"memory_limit must be a size such as 8GiB or 500MB, not '{text}'.")
    return int(float(match[1]) * units[match[2].lower()])


def section_values(section: str, given: Any) -> dict[str, Any]:
    """Return a section's values, with keys and types checked."""
    hints = typing.get_type_hints(SECTIONS[section])
    if not isinstance(given, Mapping):
        raise Refusal(f"{section} must be a section with keys such as {section}.{next(iter(hints))}, not {given!r}.")
    values = {}
    for key, value in given.items():
        if key not in hints:
            raise Refusal(unknown_key(f"{section}.{key}", [f"{section}.{name}" for name in hints]))
        values[key] = coerce(value, hints[key], f"{section}.{key}")
    return values


def chosen(section: str, given: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the name and options of a part given as `"name"` or `{"name": ..., option: value}`."""
    if given is None or isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping):
        options = dict(given)
        name = options.pop("name", None)
        return (None if name is None else str(name)), options
    raise Refusal(f"{section} must be a name, or a section with a name and options, not {given!r}.")


def own_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of code of somebody's own in settings, by their places such as `selector` or `aggregator.inner`.

    Options of Covey's own data sets, environments and models hold no code; columns of a table may look like it.
    """
    found = {}
    if isinstance(method := given.get("method"), str):
        found = dict(zip(("selector", "aggregator"), method.split("+", 1), strict=False)) if "+" in method else {}
    for section in PARTS:
        if not isinstance(given.get(section), (str, Mapping)):
            continue
        name, options = chosen(section, given[section])
        found |= {section: name} if name is not None else {}
        registry = _HOLDING_NO_CODE.get(section)
        if registry is not None and name is not None and not is_own(name) and name not in registry.plugin_names():
            continue
        for option, value in options.items():
            found |= {f"{section}.{option}": path for path in paths_in(value)}
    return {where: name for where, name in found.items() if is_own(name)}


def unknown_key(key: str, known: list[str]) -> str:
    """Return the sentence that says that there is no such setting."""
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"There is no setting '{key}'.{hint} Known: {', '.join(known)}."


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(f"The configuration file {path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"The configuration file {path} is not valid TOML: {error}.") from error


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`, section by section.

    Naming another part (`environment = "iid"` over a section about `dirichlet`) drops the old part's options.
    """
    merged = dict(base)
    for key, value in over.items():
        if key in (*PARTS, *SECTIONS):
            old_name, old = chosen(key, merged.get(key))
            name, options = chosen(key, value)
            if name is not None and old_name is not None and name != old_name:
                old = {}
            name = name or old_name
            merged[key] = {**({"name": name} if name else {}), **old, **options}
        else:
            merged[key] = value
    return merged


def assignment(text: str) -> dict[str, Any]:
    """Parse `local.rate=0.1` as a nested mapping."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise Refusal(f"'{text}' is not of the form key=value, such as local.rate=0.1.")
    return nested(key, value.strip())


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return `("local.rate", 0.1)` as `{"local": {"rate": 0.1}}`."""
    section, dot, option = key.partition(".")
    return {section: {option: value}} if dot else {section: value}
