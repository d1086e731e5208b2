"""Which settings of a comparison go to which of its methods.

Most go to all. An option of a part goes to the methods whose part has it, and one of the server's optimiser to those
that have such an optimiser, so that a method can be tuned beside others.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from covey.config.recipe import recipe_of
from covey.config.schema import Config
from covey.config.server_sections import ServerStep
from covey.config.values import chosen
from covey.errors import Refusal, require
from covey.registries import aggregators, manymodels, selectors, trainers
from covey.registry import Registry

_PARTS: Mapping[str, Registry[Any]] = {one.section: one for one in (selectors, aggregators, trainers, manymodels)}
"""Sections whose part depends on the method."""

_OPTIMIZER = "optimizer"


def given_to(methods: Sequence[str], base: Mapping[str, Any], vary: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the settings of each method, of those in `base`; `vary` names the settings that the comparison varies."""
    given = [dict(base) for _ in methods]
    for section in (*_PARTS, "server"):
        options = _options(section, base.get(section))
        having = {option: _having(methods, f"{section}.{option}", base, vary) for option in options}
        if any(one is not None for one in having.values()):
            for own, method in zip(given, methods, strict=True):
                own.pop(section, None)
                takes = [one for one, users in having.items() if users is None or method in users]
                own |= {section: {option: options[option] for option in takes}} if takes else {}
    return given


def without_use(methods: Sequence[str], base: Mapping[str, Any], vary: Collection[str]) -> dict[str, list[str]]:
    """Return the settings that vary without any use to a method, by method; they are not varied for it."""
    having = {key: _having(methods, key, base, vary) for key in vary}
    found = {
        method: [key for key, users in having.items() if users is not None and method not in users]
        for method in methods
    }
    return {method: keys for method, keys in found.items() if keys}


def _options(section: str, given: Any) -> dict[str, Any]:
    """Return the options of a section; none if it names its part, which then has to know them all."""
    if section == "server":
        return dict(given) if isinstance(given, Mapping) else {}
    name, options = chosen(section, given)
    return {} if name is not None else options


def _having(methods: Sequence[str], key: str, base: Mapping[str, Any], vary: Collection[str]) -> list[str] | None:
    """Return the methods that have a use for a setting; None if it goes to all, as most do.

    A part that all methods share, or that is given, refuses an option that it lacks itself.
    """
    section, _, option = key.partition(".")
    if section == "server" and option:
        told = isinstance(base.get(section), Mapping) and _OPTIMIZER in base[section]
        if told or option == _OPTIMIZER or f"{section}.{_OPTIMIZER}" in vary or option not in vars(ServerStep()):
            return None
        found = [method for method in methods if _has_server_option(method, option)]
        return found or None
    if section not in _PARTS or not option or section in vary or chosen(section, base.get(section))[0] is not None:
        return None
    registry = _PARTS[section]
    parts = {method: getattr(recipe_of(method), section) for method in methods}
    takes = {part: registry[part].options for part in parts.values() if part is not None}
    if not takes or len(set(parts.values())) == 1:
        return None
    if not any(option in known for known in takes.values()):
        raise Refusal(" ".join(registry.unknown_option(part, option) for part in takes))
    return [method for method, part in parts.items() if option in takes.get(part, ())]


def _has_server_option(method: str, option: str) -> bool:
    """True if the optimiser of a method, which it has on the server, has an option."""
    optimizer = recipe_of(method).server.get(_OPTIMIZER, "none")
    return getattr(ServerStep(optimizer=optimizer), option) is not None


def require_different(lines: Sequence[tuple[str, str, Config]]) -> None:
    """Refuse lines of a comparison (label, method, configuration) that are the same run under two names."""
    seen: dict[str, str] = {}
    for label, method, config in lines:
        recipe = recipe_of(method)
        told = repr(sorted({**config.as_mapping(), "method": ""}.items())) + repr((recipe.reshape, recipe.resident))
        same = seen.setdefault(told, label)
        require(
            same == label,
            f"With these settings {same} and {label} are the same run. Settings such as local.proximal and "
            "server.optimizer go to all methods of a comparison, options of a part to the methods that have it: "
            "leave one of the two out, or give such an option, as in --methods fedavg,uniform+average+fedprox --set "
            "trainer.mu=0.1.",
        )
