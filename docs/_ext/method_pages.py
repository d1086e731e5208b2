"""A page for each method, made from the registries, the algorithms' own files and the results pages."""

import ast
import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from page_text import (
    DOCS,
    ROOT,
    ResultTable,
    cell,
    doc_of,
    docstring_page,
    escaped,
    option_texts,
    result_tables,
    table,
    without_options,
    written_text,
)
from source_lines import named_lines, outlined_lines

from covey.config.recipe import Recipe
from covey.config.reference import settings_reference
from covey.registries import aggregators, manymodels, methods, selectors, trainers
from covey.registry import Entry

_FAMILIES = {
    "References": "What federation could reach at best, or has to beat.",
    "Whom to invite": "The server chooses its clients; these clients train as in FedAvg.",
    "How clients train": "Clients use another loss, gradient or correction.",
    "How replies count": "The server combines what clients send in another way.",
    "Models of clients' own": "More than one model, or parts that stay with each client.",
}
_REFERENCES = ("fedavg", "iid", "central", "local-only")
_PLAIN = {"selector": "uniform", "aggregator": "average", "trainer": "sgd"}
_SECTIONS = ("local", "server", "averaging")
"""Sections of settings that a method may set."""
_LONGEST = 14
"""Rows of a results table that a method's page shows; the rest is one link away."""
_DIGITS = "digits"
"""The results page with all methods."""
_SKIPPED = ("What has been run", "Runs", "Setup", "Deviations")
"""Headings of results pages under which no result stands."""


@dataclass(frozen=True)
class Part:
    """A part of a method, with the key of its options."""

    section: str
    entry: Entry[Any]
    given: Mapping[str, Any]
    """Options for which the method has other defaults."""

    @property
    def module(self) -> Any:
        return inspect.getmodule(self.entry.part)


def pages() -> dict[str, str]:
    """Return every page of the folder `methods`, by its name."""
    found = {entry.name: _page(entry.name, entry.part) for entry in methods}
    return {f"methods/{name}.md": text for name, text in found.items()} | {"methods/index.md": _index()}


def _index() -> str:
    lines = [
        "# Methods",
        "",
        "A page for each method of `covey list methods`: what it is, its options, what clients send, what was "
        "measured, and when to use it. [Which method when](../explanation/which-method.md) helps to choose. "
        "[Combine parts](#combine-parts) makes more of them.",
        "",
        "The parts are names of `covey list`, with their options in [Parts](../reference/parts.md). *Down, up* are the "
        f"bytes that a client receives and sends in a round, in times the model's: {_stored_costs()['about']}.",
        "",
    ]
    for family, about in _FAMILIES.items():
        rows = [_index_row(entry) for entry in methods if _family(entry.name, entry.part) == family]
        lines += [f"## {family}", "", about, "", table(_INDEX_HEAD, rows)]
    lines += [_COMBINE]
    return "\n".join([*lines, "```{toctree}", ":hidden:", ":glob:", "", "*", "```", ""])


_COMBINE = """## Combine parts

Any selector goes with any aggregator and any trainer:

```
covey run --selector fedacs --aggregator cmfl-server --trainer moon
covey compare --methods fedavg,fedacs+feddrl-set,fedacs+average+moon
```

With any of them go a server's optimiser and an average over rounds:

```
covey run --method fedacs --set server.optimizer=momentum --set server.beta=0.9 --set averaging.ema=0.95
```

Training goes on from the model itself; the average is evaluated and handed out, and records show both. In a comparison,
an option of a part (`--set aggregator.learn=false`) goes to the methods that have it, and one of the server's optimiser
(`--set server.rate=0.1`) to those that have one. Parts of your own combine in the same way:
[your selector and aggregator](../tutorials/your-parts.md), [your trainer](../trainer.md).
"""

_INDEX_HEAD = ["method", "what it does", "who is invited", "what clients do", "how replies count", "down, up"]


def _index_row(entry: Entry[Recipe]) -> list[str]:
    """Return a method's line in the index: what it does, its parts, and its bytes as multiples of the model's."""
    recipe = entry.part
    counts = f"{recipe.aggregator}, then {recipe.server['optimizer']}" if recipe.server else recipe.aggregator
    if recipe.many:
        option = manymodels[recipe.many].options.get("participation")
        everyone = option is None or option.default == "all"
        counts = (
            "average of what is shared" if recipe.many in trainers.names() else "a model for each client or cluster"
        )
        parts = ["everyone" if everyone else "uniform", recipe.many if recipe.many in trainers.names() else "", counts]
    else:
        parts = [str(recipe.selector), str(recipe.trainer), str(counts)]
    cost = _stored_costs()["methods"].get(entry.name)
    sent = f"{cost['down']:.1f}, {cost['up']:.1f}" if cost else ""
    if recipe.resident:
        parts, sent = ["nobody: data are in one place", str(recipe.trainer), "one model"], "all data, once"
    return [f"[{entry.name}]({entry.name}.md)", cell(escaped(recipe.summary)), *parts, sent]


def _family(name: str, recipe: Recipe) -> str:
    if name in _REFERENCES:
        return "References"
    if recipe.many:
        return "Models of clients' own"
    if recipe.selector != _PLAIN["selector"]:
        return "Whom to invite"
    if recipe.trainer != _PLAIN["trainer"] or recipe.local:
        return "How clients train"
    return "How replies count"


def _page(name: str, recipe: Recipe) -> str:
    parts = _parts(recipe)
    sections = {
        "": _about(name, recipe),
        "When to use it": _guidance(name).get("use", ""),
        "When not to use it": _guidance(name).get("not", ""),
        "What it is": _what(recipe, parts),
        "Paper": _paper(name, parts),
        "Equations, and the lines that compute them": _equations(name, recipe, parts),
        "Options": _options(recipe, parts),
        "What a client sends": _sent(name),
        "What it costs": _costs(name),
        "Measured": _measured(name, parts),
    }
    heads = {title: f"## {title}" if title else f"# {name}" for title in sections}
    return "\n".join(f"{heads[title]}\n\n{text.rstrip()}\n" for title, text in sections.items() if text)


def _parts(recipe: Recipe) -> list[Part]:
    """Return the parts that make a method what it is: those of plain FedAvg only where nothing else is there."""
    named = {
        "selector": (selectors, recipe.selector, recipe.selecting),
        "aggregator": (aggregators, recipe.aggregator, recipe.weighing),
        "trainer": (trainers, recipe.trainer, recipe.training),
        "many": (manymodels, recipe.many, {}),
    }
    return [
        Part(section, registry[name], given)
        for section, (registry, name, given) in named.items()
        if name is not None and not (recipe.many and section != "many")
    ]


def _own(parts: list[Part]) -> list[Part]:
    return [one for one in parts if one.entry.name != _PLAIN.get(one.section)]


def _about(name: str, recipe: Recipe) -> str:
    return (
        f"{escaped(recipe.summary)}\n\n```\ncovey run --method {name}\ncovey compare --methods {_rivals(name)}\n```\n"
    )


def _rivals(name: str) -> str:
    return ",".join(dict.fromkeys(["fedavg", name, "iid"]))


def _what(recipe: Recipe, parts: list[Part]) -> str:
    rows = [[f"`{one.section}`", f"`{one.entry.name}`", cell(_summary(one))] for one in parts]
    text = table(["part", "name", "what it does"], rows)
    settings = [f"`{section}.{key}={value}`" for section in _SECTIONS for key, value in _given(recipe, section)]
    if settings:
        text += f"\nIt sets {listed(settings)}.\n"
    for one in _own(parts):
        text += f"\n{_further(one.entry.part)}"
        helper = _helper(one)
        if helper is not None:
            text += f"\n{_further(helper)}"
    return text


def _summary(part: Part) -> str:
    """Return a part's first sentence, and the options that the method sets otherwise."""
    told = [f"`{part.section}.{option}={str(value).lower()}`" for option, value in part.given.items()]
    return escaped(part.entry.summary) + (f" Here with {listed(told)}." if told else "")


def listed(words: list[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _further(part: Any) -> str:
    """Return what a part's docstring says after its summary, beside its options and when not to use it."""
    paragraphs = without_options(doc_of(part)).split("\n\n")[1:]
    return docstring_page("\n\n".join(one for one in paragraphs if not one.lstrip().startswith("Do not use it")))


def _helper(part: Part) -> Any:
    """Return the trainer of the same name, which says what clients of a method with many models do."""
    same = part.entry.name in trainers.names() and part.section == "many"
    return trainers[part.entry.name].part if same else None


def _given(recipe: Recipe, section: str) -> list[tuple[str, Any]]:
    return list(getattr(recipe, section).items())


@cache
def _written() -> dict[str, dict[str, str]]:
    """Return what is written by hand: papers, and when to use a method."""
    return tomllib.loads((Path(__file__).parent / "methods.toml").read_text(encoding="utf-8"))


def _guidance(name: str) -> dict[str, str]:
    return _written().get(name, {})


def _paper(name: str, parts: list[Part]) -> str:
    if paper := _guidance(name).get("paper"):
        return f"{paper}\n"
    texts = [doc_of(one.module).split("\n\n")[0] for one in _own(parts)]
    return "\n\n".join(
        escaped(" ".join(text.split())) for text in texts if re.search(r"\b(19|20)\d\d\b", text)
    ) + "\n" * bool(texts)


def _equations(name: str, recipe: Recipe, parts: list[Part]) -> str:
    modules = {name: None for one in _own(parts) for name in _modules(one)}
    if recipe.server:
        modules["covey.core.server_optimizer"] = None
    if not modules and recipe.aggregator == "average":
        modules["covey.aggregation.average"] = None
    rows = [row for module in modules for row in named_lines(module)]
    if "proximal" in recipe.local:
        # A term that a setting adds to any trainer; the trainer of the same name has it as the paper writes it.
        rows = [row for row in outlined_lines("covey.client.optimizer") if "proximal" in row[1]]
        rows += named_lines("covey.training.fedprox")
    borrowed = name in _REFERENCES or _guidance(name).get("paper", "").startswith("None")
    numbered = f"Numbers are those of the paper{'s that the lines name' if borrowed else ''}. "
    if not rows:
        own = dict.fromkeys(one.module.__name__ for one in _own(parts))
        rows, numbered = [row for module in own for row in outlined_lines(module)], ""
    files = sorted({row[0].rsplit(":", 1)[0] for row in rows})
    head = ["line", "what it computes"]
    return f"{numbered}The lines are of `src/covey`: {', '.join(f'`{one}`' for one in files)}.\n\n" + table(
        head, [[f"`{where.rsplit('/', 1)[-1]}`", text] for where, text in rows]
    )


def _modules(part: Part) -> Iterator[str]:
    """Yield a part's module and the algorithms beside it that it imports."""
    own = part.module.__name__
    yield own
    helper = _helper(part)
    if helper is not None:
        yield helper.__module__
    package = own.rsplit(".", 1)[0]
    for node in ast.walk(ast.parse(inspect.getsource(part.module))):
        module = (node.module if isinstance(node, ast.ImportFrom) else None) or ""
        # Averaging is FedAvg's, and belongs to every method.
        if module.startswith((f"{package}.", "covey.probe.")) and module != "covey.aggregation.average":
            yield module


# Options, what is sent, and what was measured.


def _options(recipe: Recipe, parts: list[Part]) -> str:
    rows = []
    for one in parts:
        texts = _texts_of(one.entry.part)
        for name, option in one.entry.options.items():
            default = one.given.get(name, option.default)
            rows.append(
                [
                    f"`{one.section}.{name}`",
                    cell(escaped(option.type_name)),
                    f"`{cell(shown_value(default))}`",
                    cell(escaped(texts.get(name) or written_text(one.section, one.entry.name, name))),
                ]
            )
    settings = _settings()
    for section in _SECTIONS:
        for name, value in _given(recipe, section):
            one = settings[f"{section}.{name}"]
            rows.append([f"`{section}.{name}`", one["type"], f"`{value}`", cell(escaped(one["summary"]))])
    if not rows:
        return "It has none of its own; all [settings](../reference/settings.md) apply.\n"
    return table(["option", "values", "default", "meaning"], rows)


@cache
def _settings() -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in settings_reference()}


@cache
def _texts_of(part: Any) -> dict[str, str]:
    return _texts(part)


def shown_value(value: Any) -> str:
    """Return a default as it is typed."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _texts(part: Any) -> dict[str, str]:
    """Return the meaning of each option, from docstrings of the class and its bases and of its `Options`."""
    found: dict[str, str] = {}
    for one in reversed(inspect.getmro(part)) if inspect.isclass(part) else [part]:
        found |= option_texts(doc_of(one)) if one is not object else {}
    options = getattr(part, "Options", None)
    return found | attribute_texts(options) if inspect.isclass(options) else found


def attribute_texts(declared: type) -> dict[str, str]:
    """Return the string under each attribute of a class and of its bases."""
    found: dict[str, str] = {}
    for one in reversed([base for base in inspect.getmro(declared) if base.__module__.startswith("covey")]):
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(one))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for before, after in pairwise(statements):
            named = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
            if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found[before.target.id] = " ".join(str(after.value.value).split())
    return found


def _sent(name: str) -> str:
    rows = [row for row in _privacy().rows if name in re.split(r",\s*", row[0])]
    if not rows:
        return "See [What a client sends](../privacy.md).\n"
    (_, fields, tells, secure), *_ = rows
    lines = [["leaves the client", fields], ["what it says", tells], ["under secure aggregation", secure]]
    return f"{table(['', ''], lines)}\n[What a client sends](../privacy.md) explains the fields.\n"


@cache
def _privacy() -> ResultTable:
    return next(one for one in result_tables(DOCS / "privacy.md") if one.head[0] == "method")


def _costs(name: str) -> str:
    cost = _stored_costs()["methods"].get(name)
    if cost is None:
        return ""
    if methods[name].part.resident:
        return "All data leave the clients before the first round; no round sends anything, and no bytes are counted.\n"
    return (
        f"In a round, a client that takes part receives {cost['down']:.2f} and sends {cost['up']:.2f} times the bytes "
        f"of the model. Measured in the third round of a small run ({_stored_costs()['about']}); answers of clients "
        "that are asked and not invited are counted with it. The overhead shrinks as the model grows.\n"
    )


@cache
def _stored_costs() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((Path(__file__).parent / "method_bytes.json").read_text(encoding="utf-8"))
    return stored


def _measured(name: str, parts: list[Part]) -> str:
    text = ""
    for page in sorted((DOCS / "results").glob("*.md")):
        labels = _labels(name, page.stem, parts)
        for one in result_tables(page):
            if one.heading in _SKIPPED or any(one.heading.startswith(word) for word in ("Deviations", "Differences")):
                continue
            if one.heading == "Claims" and _subject(page.stem) == name:
                text += f"\n{one.link(1)}\n\n{one.shown()}"
                continue
            if page.stem == _DIGITS:
                # Every method has a row there, beside FedAvg's.
                if any(row[0] == name for row in one.rows):
                    text += f"\n{one.link(1)}\n\n{one.shown(lambda row: row[0] in (name, 'fedavg'))}"
                continue
            rows = [row for row in one.rows if any(value in labels for value in row) and "not run yet" not in row]
            # Tables of accuracy under attack or over settings come in many forms; a page has the first of each kind.
            if rows and _first_of(one, page):
                text += f"\n{one.link(1)}\n\n{table(one.head, rows[:_LONGEST])}"
                if len(rows) > _LONGEST:
                    text += f"\nThe first {_LONGEST} of {len(rows)} rows.\n"
    return text.lstrip("\n") or "Not measured yet in any of the [results](../results.md).\n"


def _first_of(one: ResultTable, page: Path) -> bool:
    """True for the tables that show a method's results best: main tables, attacks, and what to beware of."""
    return page.stem == "attacks" or one.heading.startswith(("Table", "When not", "Clients with wrong", "Accuracy at"))


@cache
def _titles(page: str) -> dict[str, str]:
    if not (ROOT / "papers" / page / "scales.py").exists():
        return {}
    return dict(getattr(importlib.import_module(f"papers.{page}.scales"), "TITLES", {}))


@cache
def _recipes(page: str) -> dict[str, str]:
    """Return Covey's method for each name of a paper's plan that is another."""
    if not (ROOT / "papers" / page / "scales.py").exists():
        return {}
    return dict(getattr(importlib.import_module(f"papers.{page}.scales"), "RECIPES", {}))


def _labels(name: str, page: str, parts: list[Part]) -> set[str]:
    """Return what a method is called in a results page's tables."""
    titles, names = _titles(page), _recipes(page)
    own = {name, *(one.entry.name for one in _own(parts))}
    if name == "ondemand" and page == "ondemand":
        return {title for plan, title in titles.items() if plan.startswith(("on-demand", "ground-truth"))}
    return own | {title for plan, title in titles.items() if names.get(plan, plan) == name}


def _subject(page: str) -> str:
    return page if page in methods.names() else ""
