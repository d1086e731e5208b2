"""The reference: settings, commands, parts and the Python interface, made from the code."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from method_pages import attribute_texts, shown_value
from page_text import cell, doc_of, docstring_page, escaped, option_texts, table, without_options, written_text

import covey
import covey.registries
from covey.cli.catalogue import KINDS
from covey.cli.main import app
from covey.config.reference import settings_reference
from covey.config.sections import SECTIONS
from covey.registry import Entry, Registry


def pages() -> dict[str, str]:
    """Return every generated page of the reference, by its name."""
    return {
        "reference/settings.md": _settings(),
        "reference/commands.md": _commands(),
        "reference/parts.md": _parts(),
        "reference/python.md": _python(),
    }


def _settings() -> str:
    lines = [
        "# Settings",
        "",
        "Every setting can be given as `--set NAME=VALUE`, in a TOML file (`--config FILE`) or in Python "
        "(`covey.run(NAME=VALUE)`, sections as dictionaries). `covey list settings` prints this list. Options of parts "
        "(`environment.alpha`, `aggregator.q`) are in [Parts](parts.md) and on the pages of "
        "[methods](../methods/index.md).",
        "",
    ]
    by_section: dict[str, list[list[str]]] = {}
    for one in settings_reference():
        section = one["name"].split(".")[0] if "." in one["name"] else ""
        default = f"`{one['default']}`" if one["default"] else ""
        by_section.setdefault(section, []).append(
            [f"`{one['name']}`", escaped(one["type"]), default, cell(escaped(one["summary"]))]
        )
    for section, rows in by_section.items():
        title = f"`{section}`" if section else "The run"
        about = doc_of(SECTIONS[section]).split("\n\n")[0] if section else ""
        lines += [f"## {title}", "", escaped(" ".join(about.split())), "", table(_HEAD, rows)]
    return "\n".join(lines)


_HEAD = ["setting", "type", "default", "meaning"]


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "Every command has `--help`. Exit codes: 0, done; 2, refused, with one sentence that says what is allowed; "
        "130, stopped by Ctrl-C.",
        "",
    ]
    for path, command in commands(typer.main.get_command(app)):
        described = re.sub(r"(?m)^\s*(Example: )(covey .*)$", "", command.help or "").strip()
        example = re.search(r"Example: (covey .*)", command.help or "")
        lines += [f"## {path}", "", docstring_page(described)]
        if example:
            lines += ["```", example[1], "```", ""]
        rows = [[f"`{_spelled(one)}`", _default(one), cell(escaped(_meaning(path, one)))] for one in _flags(command)]
        if rows:
            lines += [table(["argument or flag", "default", "meaning"], rows)]
    return "\n".join(lines)


def commands(command: Any, path: str = "covey") -> Iterator[tuple[str, Any]]:
    """Yield every command that can be called, with the words that call it."""
    subcommands = getattr(command, "commands", None)
    if not subcommands:
        yield path, command
    for name, one in (subcommands or {}).items():
        if not one.hidden:
            yield from commands(one, f"{path} {name}")


def _flags(command: Any) -> list[Any]:
    return [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]


def _spelled(one: Any) -> str:
    if one.param_type_name == "argument":
        return str(one.metavar or one.name.upper())
    flags = ", ".join([*one.opts, *one.secondary_opts])
    return flags if one.is_flag else f"{flags} {one.metavar or one.type.name.upper()}"


def _meaning(path: str, one: Any) -> str:
    return getattr(one, "help", "") or written_text("command", path, _spelled(one))


def _default(one: Any) -> str:
    default = one.default() if callable(one.default) else one.default
    missing = default is None or default is False or "UNSET" in repr(default) or default in ("", (), [])
    return "needed" if one.required else "" if missing else f"`{default}`"


def _parts() -> str:
    lines = [
        "# Parts",
        "",
        "What a configuration chooses by name, with the options of each. `covey list KIND` prints the same; parts of "
        "your own go by `package.module:name` ([how](../tutorials/your-parts.md)).",
        "",
    ]
    known: dict[str, Registry[Any]] = {
        one.plural: one for one in vars(covey.registries).values() if isinstance(one, Registry)
    }
    for plural, about in KINDS.items():
        # Methods have pages of their own.
        if plural == "methods":
            continue
        registry = known[plural]
        lines += [f"## {plural}", "", about, ""]
        for entry in registry:
            lines += [f"### {registry.kind} {entry.name}", "", *_part(entry, registry.section)]
    return "\n".join(lines)


def _typed(default: Any) -> str:
    """Return a default as it is typed; nothing for an empty text."""
    shown = cell(shown_value(default))
    return f"`{shown}`" if shown else ""


def _part(entry: Entry[Any], section: str) -> list[str]:
    part = entry.part
    texts = option_texts(doc_of(part))
    options = getattr(part, "Options", None)
    if inspect.isclass(options):
        texts |= attribute_texts(options)
    rows = []
    for name, one in entry.options.items():
        default = "needed" if one.default is inspect.Parameter.empty else _typed(one.default)
        meaning = cell(escaped(texts.get(name) or written_text(section, entry.name, name)))
        rows.append([f"`{section}.{name}`", cell(escaped(one.type_name)), default, meaning])
    described = doc_of(part) or entry.summary
    return [docstring_page(without_options(described)), *([table(["option", *_HEAD[1:]], rows)] if rows else [])]


_PYTHON_GROUPS = {
    "Do things": ("run", "resume", "compare", "report", "describe", "analyze", "ondemand", "federation"),
    "Results": ("Run", "Comparison", "Analysis", "OnDemand", "Scores"),
    "Algorithms of your own": (
        *("Selector", "Aggregator", "Trainer", "Method", "Probe", "CohortProbe", "Setting", "Replies", "Recipe"),
        *("MODEL", "Batch", "LocalClient", "Net", "Output", "answers", "map_tree", "Tree", "Values", "State"),
    ),
    "Data and configuration": ("Dataset", "Samples", "Federation", "Deal", "Config", "Local", "Layout", "Refusal"),
}


def _python() -> str:
    lines = [
        "# Python",
        "",
        "All of these are names of `covey`, and load when they are first used. Anything that is refused raises "
        "`covey.Refusal` with one sentence.",
        "",
    ]
    grouped = {name for names in _PYTHON_GROUPS.values() for name in names}
    left = [name for name in covey.__all__ if name not in grouped]
    registries = [name for name in left if isinstance(getattr(covey, name), Registry)]
    others = tuple(name for name in left if name not in registries)
    for title, names in {**_PYTHON_GROUPS, "Inside the round": others}.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"### covey.{name}", "", *_described(f"covey.{name}", getattr(covey, name))]
    lines += ["## Registries", "", '`@covey.selectors.add("mine")` gives a class of yours a name.', ""]
    rows = [[f"`covey.{name}`", KINDS.get(name, f"{getattr(covey, name).kind}s by name.")] for name in registries]
    lines += [table(["registry", "parts"], rows)]
    lines += [
        "## Flower",
        "",
        "It needs the extra `flower`: `pip install '.[flower]' --constraint constraints.txt` in a checkout.",
        "",
    ]
    import covey.flower as flower

    for name in flower.__all__:
        lines += [f"### covey.flower.{name}", "", *_described(f"covey.flower.{name}", getattr(flower, name))]
    return "\n".join(lines)


def _described(path: str, one: Any) -> list[str]:
    if inspect.isclass(one):
        return _class(path, one)
    if inspect.isfunction(one):
        return [_signature(path, one), docstring_page(doc_of(one))]
    return [f"`{path}` is `{cell(one)}`.", ""]


def _class(path: str, one: type) -> list[str]:
    lines = [docstring_page(doc_of(one))]
    texts = attribute_texts(one)
    fields = [name for name in inspect.get_annotations(one) if not name.startswith("_")]
    if fields:
        hints = inspect.get_annotations(one)
        rows = [[f"`{name}`", f"`{cell(_type(hints[name]))}`", cell(escaped(texts.get(name, "")))] for name in fields]
        lines += [table(["attribute", "type", "meaning"], rows)]
    for name, member in vars(one).items():
        function = getattr(member, "__func__", member)
        if isinstance(member, property) and not name.startswith("_") and doc_of(member):
            lines += [f"- `{name}`: {escaped(' '.join(doc_of(member).split()))}"]
        elif inspect.isfunction(function) and not name.startswith("_") and doc_of(function):
            lines += ["", _signature(f"{path.rpartition('.')[2]}.{name}", function), docstring_page(doc_of(function))]
    return [*lines, ""]


def _type(hint: Any) -> str:
    shown = str(hint) if isinstance(hint, str) or hasattr(hint, "__args__") else getattr(hint, "__name__", str(hint))
    return _MODULES.sub("", shown)


_MODULES = re.compile(r"typing\.|collections\.abc\.|pathlib\.|torch\.nn\.modules\.module\.|[a-z]\w*(\.\w+)*\.(?=[A-Z])")
"""Modules before the names of types, which readers know without."""


def _signature(path: str, function: Any) -> str:
    signature = inspect.signature(function)
    taken = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    signature = signature.replace(parameters=taken)
    shown = [str(one) for one in taken]
    line = f"{path}{signature}"
    if len(line) > 100:
        plain = str(signature)
        end = plain.rpartition(")")[2]
        starred = _with_stars(signature, shown)
        line = f"{path}(\n" + "".join(f"    {one},\n" for one in starred) + f"){end}"
    line = re.sub(r"-> '(.+)'$", r"-> \1", _MODULES.sub("", line.removeprefix(path)))
    return f"```text\n{path}{line}\n```\n"


def _with_stars(signature: inspect.Signature, shown: list[str]) -> Iterator[str]:
    kinds = [one.kind for one in signature.parameters.values()]
    for at, (kind, text) in enumerate(zip(kinds, shown, strict=True)):
        before = kinds[at - 1] if at else None
        if before is inspect.Parameter.POSITIONAL_ONLY and kind is not before:
            yield "/"
        if kind is inspect.Parameter.KEYWORD_ONLY and before not in (kind, inspect.Parameter.VAR_POSITIONAL):
            yield "*"
        yield text
