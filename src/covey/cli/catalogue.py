"""The catalogue behind `covey list`: each built-in part with its summary and options.

`catalogue.json` stores it, so that `covey list` imports no part. Rewrite it with `python -m covey.cli.catalogue` when a
part, a summary or an option changes. Parts of other packages are not in it; they are loaded from their entry points.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

from covey.config.reference import settings_reference
from covey.errors import Refusal
from covey.registries import (
    aggregators,
    datasets,
    environments,
    manymodels,
    methods,
    models,
    runtimes,
    selectors,
    tasks,
    trainers,
)
from covey.registry import Entry, Registry
from covey.storage import write_json

FILE = Path(__file__).with_name("catalogue.json")

KINDS: dict[str, str] = {
    "methods": "A selector, an aggregator and a trainer, or a method with many models, under one name.",
    "environments": "How the data is split among clients.",
    "datasets": "Data to train and test on.",
    "tasks": "What models learn from the labels, and how that is measured.",
    "models": "Networks to train.",
    "selectors": "Which clients are invited each round.",
    "aggregators": "How the clients' replies become the next model.",
    "trainers": "What a client does with the model that it receives.",
    "manymodels": "Methods that keep more than one model.",
    "runtimes": "What executes the clients' work.",
}
"""Kinds of parts that `covey list` knows, with a sentence about each."""

_REGISTRIES: dict[str, Registry[Any]] = {
    registry.plural: registry
    for registry in (
        methods,
        environments,
        datasets,
        tasks,
        models,
        selectors,
        aggregators,
        trainers,
        manymodels,
        runtimes,
    )
}


SETTINGS = "settings"
"""The list of all settings, beside those of parts."""


class ListedPart(TypedDict):
    """A part as `covey list` shows it."""

    name: str
    summary: str
    options: dict[str, Any]
    """Option → default."""


def parts_of(kind: str) -> list[ListedPart]:
    """Return the parts of a kind: Covey's own, and those of other packages."""
    if kind not in KINDS:
        raise Refusal(f"There is no list of '{kind}'. Lists: {', '.join((*KINDS, SETTINGS))}.")
    stored: dict[str, list[ListedPart]] = json.loads(FILE.read_text(encoding="utf-8"))
    parts = {part["name"]: part for part in stored[kind]}
    registry = _REGISTRIES[kind]
    for name in registry.plugin_names():
        if name not in parts:
            parts[name] = _part(registry[name])
    return [parts[name] for name in sorted(parts)]


def settings_list() -> list[dict[str, str]]:
    """Return every setting with its type, default and meaning."""
    listed: list[dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))[SETTINGS]
    return listed


def build_catalogue() -> dict[str, Any]:
    """Return the built-in parts of every kind, read from the registries, and all settings."""
    return {SETTINGS: settings_reference()} | {
        kind: [_part(entry) for entry in registry if entry.name not in registry.plugin_names()]
        for kind, registry in _REGISTRIES.items()
    }


def _part(entry: Entry[Any]) -> ListedPart:
    options = {option.name: _json_value(option.default) for option in entry.options.values()}
    return {"name": entry.name, "summary": entry.summary, "options": options}


def _json_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str, dict)) else str(value)


if __name__ == "__main__":
    write_json(FILE, build_catalogue())
    print(f"Written: {FILE}")
