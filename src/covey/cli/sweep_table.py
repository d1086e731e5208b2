"""A sweep as a table in the terminal: a row for each method and combination of settings."""

from collections.abc import Mapping, Sequence
from typing import Literal

from rich import box
from rich.table import Table

from covey.job.comparison.plan import Variant
from covey.job.result_text import RowText

_PADDING = 3
"""Characters beside each column."""


def sweep_table(
    variants: Sequence[Variant], rows: Sequence[Mapping[str, object]], figures: Mapping[str, RowText], width: int
) -> tuple[Table, int]:
    """Return the table with as many figures as fit into `width`, and how many were left out.

    The first two, the score and its interval, and the difference come first.
    """
    table = Table(box=box.SIMPLE_HEAD)
    columns: list[list[str]] = []
    left = width - 2
    keys = short_names(variants)
    if len({one.method for one in variants}) > 1 or not keys:
        columns.append(["method", *(one.method for one in variants)])
    columns += [[name, *(str(one.varied.get(key, "-")) for one in variants)] for key, name in keys.items()]
    described = len(columns)
    left -= sum(_width(column) for column in columns)
    first = list(figures)[:2]
    for name in sorted(figures, key=lambda name: (name not in first, " against " not in name)):
        column = [name, *(figures[name](row) for row in rows)]
        left -= _width(column)
        if left < 0 and len(columns) > described:
            break
        columns.append(column)
    for place, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if place < described else "right"
        table.add_column(column[0], justify=side, width=_width(column) - _PADDING)
    for cells in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*cells)
    return table, len(figures) - (len(columns) - described)


def short_names(variants: Sequence[Variant]) -> dict[str, str]:
    """Return the settings that differ, by their last part where no other has the same."""
    varied = dict.fromkeys(key for one in variants for key in one.varied)
    keys = [key for key in varied if len({str(one.varied.get(key, "-")) for one in variants}) > 1]
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def _width(column: Sequence[str]) -> int:
    """Return the width of a column whose name is broken between words."""
    name, *cells = column
    return max(map(len, (*name.split(), *cells))) + _PADDING
