"""Text of generated pages: Markdown from docstrings, tables, and tables of the results pages."""

import inspect
import re
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
    """Return the meaning of each option: lines `name: text` of a docstring, with the indented lines after them."""
    return {name: " ".join(text.split()) for name, text in _OPTION.findall(docstring)}


_OPTION = re.compile(r"^([a-z_]\w*): (.+(?:\n +\S.*)*)\n?", re.MULTILINE)


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
    """Replace `<!-- quote: PAGE "HEADING" columns=0,2 rows=REGEX -->` by that table of the page.

    It stands on its own line. Without columns all are quoted, without rows too.
    """
    return re.sub(r"^<!-- quote: (.+?) -->$", lambda found: _quoted(found[1], depth), text, flags=re.MULTILINE)


def _quoted(wanted: str, depth: int) -> str:
    found = re.fullmatch(r'(\S+) "([^"]*)"(?: columns=([\d,]+))?(?: rows=(.+))?', wanted)
    if found is None:
        raise ValueError(f"A quote reads: quote: PAGE \"HEADING\" columns=0,2 rows=REGEX; not '{wanted}'.")
    page, heading, columns, rows = found.groups()
    one = next((one for one in result_tables(DOCS / page) if one.heading == heading), None)
    if one is None:
        raise ValueError(f"docs/{page} has no table under the heading '{heading}'.")
    kept = [row for row in one.rows if re.search(rows or "", " | ".join(row))]
    if not kept:
        raise ValueError(f"No row of '{heading}' in docs/{page} matches '{rows}'.")
    shown = one.shown(lambda row: row in kept, [int(at) for at in columns.split(",")] if columns else ())
    return f"{shown}\nFrom {one.link(depth)}."
