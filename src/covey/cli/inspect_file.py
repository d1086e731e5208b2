"""`covey inspect`: look at a file of one's own before anything runs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

import covey
from covey.cli import terminal as display
from covey.cli.flags import JsonFlag, SetFlag, print_json
from covey.config.values import assignment, overlay
from covey.errors import require

_COLUMNS = 60
"""Most columns that are shown."""


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV, Parquet, Feather or NPZ file, or .npy folder.")],
    label: Annotated[
        str | None,
        typer.Option(
            "--label", metavar="COLUMN", help="The column of labels (default: label, or one with such a name)."
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--client", metavar="COLUMN", help="The column of clients (default: client, or one with such a name)."
        ),
    ] = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Show what is understood of a file: columns, label, task, classes, clients, and what is odd.

    Example: covey inspect patients.csv --label outcome --client hospital
    """
    given: dict[str, Any] = {}
    for text in set_ or []:
        given = overlay(given, assignment(text))
    require(set(given) <= {"dataset"}, "covey inspect takes options of the data set alone: --set dataset.OPTION=VALUE.")
    named = {name: value for name, value in (("label", label), ("client", client)) if value is not None}
    seen = covey.inspect(file, **{**given.get("dataset", {}), **named})
    if json_:
        print_json(seen.as_mapping())
        return
    console = display.console
    summary = Table(box=box.SIMPLE, show_header=False)
    for name, figure in seen.summary():
        summary.add_row(name, Text(figure))
    console.print(summary, highlight=False)
    columns = Table(box=box.SIMPLE, title="Columns", title_justify="left", title_style="bold")
    for name in ("column", "features", "what it is and becomes"):
        columns.add_column(name, justify="right" if name == "features" else "left")
    for column in seen.columns[:_COLUMNS]:
        said = column.sentence.removeprefix(f"'{column.name}': ")
        columns.add_row(Text(column.name), f"{column.features:,}", Text(said))
    console.print(columns, highlight=False)
    if len(seen.columns) > _COLUMNS:
        console.print(f"… and {len(seen.columns) - _COLUMNS:,} more columns (--json lists all)", highlight=False)
    for note in seen.notes:
        console.print(Text(f"Note: {note}"))
    console.print(Text(f"Run: {seen.command}"), soft_wrap=True)
    console.print("The same --dataset, --environment and --set dataset.… go with covey analyze and covey compare.")
