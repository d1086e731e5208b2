"""Text of generated pages: Markdown from docstrings, tables, and tables of the results pages."""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, except that `code` stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\<*_\[\]$|])", r"\\\1", part) for part in parts)


def cell(text: object) -> str:
    """Return a table cell: one line, without a bar that would end it."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(str(text).split()))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; its cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(one) for one in line) + " |" for line in lines) + "\n"


def option_texts(docstring: str) -> dict[str, str]:
    """Return the meaning of each option: lines `name: text` of a docstring, with the indented lines after them.

    `rate, momentum: text` and `centre and scale: text` mean each of these.
    """
    found = [(names, " ".join(text.split())) for names, text in _OPTION.findall(docstring)]
    return {name: text for names, text in found for name in re.split(r", | and ", names)}


_NAME = r"[a-z_]\w*"
_OPTION = re.compile(rf"^({_NAME}(?:(?:, | and ){_NAME})?): (.+(?:\n +\S.*)*)\n?", re.MULTILINE)


@cache
def written_texts() -> dict[str, dict[str, str]]:
    """Return the meanings of options and arguments that no docstring lists, by kind or by kind and part."""
    return tomllib.loads(Path(__file__).with_name("option_texts.toml").read_text(encoding="utf-8"))["texts"]


def written_text(kind: str, part: str, option: str) -> str:
    """Return the written meaning of a part's option, or of a command's argument; a part's own comes first."""
    texts = written_texts()
    names = part.split(" ")
    places = [f"{kind}.{' '.join(names[:end])}" for end in range(len(names), 0, -1)]
    return next((texts[place][option] for place in [*places, kind] if option in texts.get(place, {})), "")


def without_options(docstring: str) -> str:
    """Return a docstring without the lines about options."""
    return _OPTION.sub("", docstring)


def docstring_page(docstring: str) -> str:
    """Return a docstring as Markdown: paragraphs, formulas as they are indented, options as a list."""
    text = inspect.cleandoc(docstring).replace("``", "`")
    blocks = []
    for block in filter(str.strip, re.split(r"\n[ \t]*\n", text)):
        lines = block.split("\n")
        if all(line.startswith("    ") for line in lines if line):
            blocks.append("```text\n" + inspect.cleandoc(block) + "\n```")
        elif _OPTION.match(block):
            before = [f"- `{name}`: {escaped(meaning)}" for name, meaning in option_texts(block).items()]
            blocks.append("\n".join(before))
        else:
            blocks.append(escaped(" ".join(block.split())))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def doc_of(part: Any) -> str:
    """Return the docstring that a part has itself; one that is inherited says something else."""
    own = part.__dict__.get("__doc__") if inspect.isclass(part) else part.__doc__
    return inspect.cleandoc(own or "")


@dataclass(frozen=True)
class ResultTable:
    """A table of a results page."""

    page: str
    """Path of the page from the folder of the documentation."""
    title: str
    """Heading of the page."""
    heading: str
    head: list[str]
    rows: list[list[str]]

    def link(self, depth: int) -> str:
        """Return a link to the table from a page so many folders deep."""
        slug = re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")
        anchor = f"#{slug}" if self.heading else ""
        return f"[{self.title}{': ' + self.heading if self.heading else ''}]({'../' * depth}{self.page}{anchor})"

    def shown(self, keep: Callable[[list[str]], bool] = lambda row: True, columns: Sequence[int] = ()) -> str:
        """Return the rows to keep as Markdown, all columns or some."""
        chosen = columns or range(len(self.head))
        return table([self.head[at] for at in chosen], [[row[at] for at in chosen] for row in self.rows if keep(row)])


@cache
def result_tables(page: Path) -> list[ResultTable]:
    """Return all tables of a page, each with the heading that it stands under."""
    lines = page.read_text(encoding="utf-8").splitlines()
    title = next((line[2:] for line in lines if line.startswith("# ")), page.stem)
    found, heading, at = [], "", 0
    while at < len(lines):
        if lines[at].startswith("## "):
            heading = lines[at][3:]
        if lines[at].startswith("|") and at + 1 < len(lines) and re.fullmatch(r"\|[\s:|-]+\|", lines[at + 1]):
            end = at
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            head, _, *rows = (_cells(line) for line in lines[at:end])
            where = page.relative_to(DOCS).as_posix()
            found.append(ResultTable(where, title, heading, head, rows))
            at = end
        at += 1
    return found


def _cells(line: str) -> list[str]:
    # A number and its interval stay in one line.
    line = line.replace(" ± ", "\u00a0±\u00a0")
    return [one.strip() for one in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def with_quotes(text: str, depth: int) -> str:
    """Replace `<!-- quote: PAGE "HEADING" table=2 columns=0,2 rows=REGEX -->` by that table of the page.

    It stands on its own line. Without `table` it is the first under the heading; without columns all are quoted,
    without rows too.
    """
    return re.sub(r"^<!-- quote: (.+?) -->$", lambda found: _quoted(found[1], depth), text, flags=re.MULTILINE)


def _quoted(wanted: str, depth: int) -> str:
    found = re.fullmatch(r'(\S+) "([^"]*)"(?: table=(\d+))?(?: columns=([\d,]+))?(?: rows=(.+))?', wanted)
    if found is None:
        raise ValueError(f"A quote reads: quote: PAGE \"HEADING\" table=2 columns=0,2 rows=REGEX; not '{wanted}'.")
    page, heading, place, columns, rows = found.groups()
    tables = [one for one in result_tables(DOCS / page) if one.heading == heading]
    if len(tables) < int(place or 1):
        raise ValueError(f"docs/{page} has {len(tables)} tables under the heading '{heading}'.")
    one = tables[int(place or 1) - 1]
    kept = [row for row in one.rows if re.search(rows or "", " | ".join(row))]
    if not kept:
        raise ValueError(f"No row of '{heading}' in docs/{page} matches '{rows}'.")
    shown = one.shown(lambda row: row in kept, [int(at) for at in columns.split(",")] if columns else ())
    return f"{shown}\nFrom {one.link(depth)}."
