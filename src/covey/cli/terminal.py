"""The terminal: results on standard output, progress bars on standard error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TimeRemainingColumn,
)
from rich.table import Table

from covey.job.progress_display import PlainConsole, shown_on, text_column

if TYPE_CHECKING:
    from covey.cli.catalogue import ListedPart


console = PlainConsole(markup=False)


def say(text: str) -> None:
    """Print a sentence as it is."""
    console.print(text, highlight=False, soft_wrap=True)


def table_of(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and figures, without a header."""
    table = Table(box=box.SIMPLE, show_header=False)
    for name, figure in rows:
        table.add_row(name, figure)
    return table


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar for each file of a download."""
    columns = (text_column("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown_on, disable=not shown_on.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(file: str, fetched: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=fetched, total=total)

        yield progress


def show_parts(kind: str, parts: "Sequence[ListedPart]") -> None:
    """Print a table of parts with their options."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(kind, no_wrap=True)
    table.add_column("")
    optional = any(part["options"] for part in parts)
    if optional:
        table.add_column("options")
    for part in parts:
        options = ", ".join(f"{name}={_typed(value)}" for name, value in part["options"].items())
        table.add_row(part["name"], part["summary"], *([options] if optional else []))
    console.print(table, highlight=False)


def show_settings(settings: Sequence[Mapping[str, str]]) -> None:
    """Print a table of all settings."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("setting", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("meaning; values")
    for one in settings:
        table.add_row(one["name"], one["default"] or "-", f"{one['summary']} [{one['type']}]")
    console.print(table, highlight=False)
    say("Options of a part are beside its name: covey list KIND")


def _typed(value: object) -> str:
    """Return a value as one would type it after --set."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def show_kinds(kinds: Mapping[str, str]) -> None:
    """Print the kinds of parts, with a sentence about each."""
    console.print(table_of(list(kinds.items())), highlight=False)
    say("See one with: covey list KIND")
