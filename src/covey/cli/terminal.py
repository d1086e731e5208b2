"""The terminal: results on standard output, progress bars on standard error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from covey.core.progress import listening

if TYPE_CHECKING:
    from covey.cli.catalogue import ListedPart
    from covey.core.loop import OnRound
    from covey.job.pending_runs import OnRun

# Printed text holds names that users chose, brackets included, so markup is off.
console = Console(markup=False)
_progress = Console(stderr=True, markup=False)


def say(text: str) -> None:
    """Print a sentence as it is."""
    console.print(text, highlight=False, soft_wrap=True)


def table_of(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and figures, without a header."""
    table = Table(box=box.SIMPLE, show_header=False)
    for name, figure in rows:
        table.add_row(name, figure)
    return table


def _text(of: str) -> TextColumn:
    return TextColumn(of, markup=False)


def _bars() -> Progress:
    return Progress(
        _text("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _text("{task.fields[score]}"),
        _text("{task.fields[wait]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=_progress,
        disable=not _progress.is_terminal,
    )


@contextmanager
def run_progress(name: str, rounds: int, done: int) -> "Iterator[OnRound]":
    """Show a bar over the rounds of one run."""
    with _bars() as bars:
        task = bars.add_task(name, total=rounds, completed=done, score="", wait="")

        def on_round(record: dict[str, Any]) -> None:
            _advance(bars, task, record)

        with listening(lambda wait: bars.update(task, wait=wait)):
            yield on_round


@contextmanager
def comparison_progress() -> "Iterator[tuple[OnRun, OnRound]]":
    """Show a bar for each run of a comparison, when it begins."""
    with _bars() as bars:
        current: list[TaskID] = []

        def on_run(label: str, seed: int | None, rounds: int) -> None:
            name = label if seed is None else f"{label}, seed {seed}"
            current[:] = [bars.add_task(name, total=rounds, score="", wait="")]

        def on_round(record: dict[str, Any]) -> None:
            _advance(bars, current[0], record)

        with listening(lambda wait: bars.update(current[0], wait=wait) if current else None):
            yield on_run, on_round


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar for each file of a download."""
    columns = (_text("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_progress, disable=not _progress.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(file: str, fetched: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=fetched, total=total)

        yield progress


def _advance(bars: Progress, task: TaskID, record: dict[str, Any]) -> None:
    """Move a bar on; it keeps its accuracy until the next evaluation."""
    bars.update(task, completed=record["round"])
    accuracy = record.get("accuracy")
    if isinstance(accuracy, float):
        bars.update(task, score=f"accuracy {accuracy:.1%}")


def show_parts(kind: str, parts: "Sequence[ListedPart]") -> None:
    """Print a table of parts with their options."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(kind, no_wrap=True)
    table.add_column("")
    table.add_column("options")
    for part in parts:
        options = ", ".join(f"{name}={_typed(value)}" for name, value in part["options"].items())
        table.add_row(part["name"], part["summary"], options)
    console.print(table, highlight=False)


def _typed(value: object) -> str:
    """Return a value as one would type it after --set."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def show_kinds(kinds: Mapping[str, str]) -> None:
    """Print the kinds of parts, with a sentence about each."""
    console.print(table_of(list(kinds.items())), highlight=False)
    say("See one with: covey list KIND")
