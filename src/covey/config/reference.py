"""The reference of all settings: name, type, default and meaning, read from the classes that declare them."""

import ast
import inspect
import textwrap
import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any, TypedDict

from covey.config.schema import Config
from covey.config.sections import SECTIONS
from covey.config.values import PARTS

_PART_MEANINGS = {
    "method": "Method to run: a name of `covey list methods`, or selector+aggregator or selector+aggregator+trainer.",
    "dataset": "Data set by name, with its options (`dataset.OPTION`).",
    "environment": "How the data is split among clients, with its options.",
    "model": "Network to train, with its options.",
    "selector": "Which clients are invited each round, with its options; by default the method's.",
    "aggregator": "How replies become the next model, with its options; by default the method's.",
    "trainer": "What a client does with the model, with its options; by default the method's.",
    "many": "Options of a method with many models.",
    "task": "What models learn, with its options; `auto` follows from the labels.",
}
_PART_DEFAULTS = {"method": "fedavg", "dataset": "digits", "environment": "uniform", "model": "mlp", "task": "auto"}


class SettingEntry(TypedDict):
    """A setting as the reference lists it."""

    name: str
    type: str
    default: str
    summary: str


def settings_reference() -> list[SettingEntry]:
    """Return every setting: the method and its parts, plain values, then the sections."""
    found = [
        SettingEntry(name=name, type="name", default=_PART_DEFAULTS.get(name, ""), summary=_PART_MEANINGS[name])
        for name in ("method", *PARTS)
    ]
    plain = {name: one for name, one in _entries(Config, "").items() if name not in (*_PART_MEANINGS, *SECTIONS)}
    plain.pop("refused")
    plain["cohort"]["type"], plain["cohort"]["default"] = "whole number or fraction", "0.1"
    found += plain.values()
    for section, declared in SECTIONS.items():
        found += _entries(declared, f"{section}.").values()
    return found


def _entries(declared: type, prefix: str) -> dict[str, SettingEntry]:
    """Return the settings that a dataclass declares, by name, with the text under each as its meaning."""
    hints, texts = typing.get_type_hints(declared), _texts(declared)
    return {
        one.name: SettingEntry(
            name=f"{prefix}{one.name}",
            type=_type_name(hints[one.name]),
            default=_default(one),
            summary=texts.get(one.name, ""),
        )
        for one in fields(declared)
    }


def _texts(declared: type) -> dict[str, str]:
    """Return the string under each attribute of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(declared))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value) if isinstance(after.value, ast.Constant) else ""
            found[before.target.id] = " ".join(str(text).split())
    return found


def _default(one: Field[Any]) -> str:
    if one.default is MISSING or one.default is None:
        return ""
    return str(one.default).lower() if isinstance(one.default, bool) else str(one.default)


def _type_name(hint: Any) -> str:
    """Return a type in words."""
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): ""}
    if hint in names:
        return names[hint]
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(filter(None, map(_type_name, typing.get_args(hint))))
    return str(getattr(hint, "__name__", hint))
