"""What the command line shows: progress on standard error, results on standard output."""

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

from covey.core.client_names import read_names
from covey.core.loop import OnRound
from covey.core.progress import listening
from covey.job.analysis import Analysis
from covey.job.comparison.execution import OnRun
from covey.job.comparison.statistics import Comparison
from covey.job.result_text import (
    analysis_rows,
    client_loss_columns,
    comparison_columns,
    or_dash,
    percent,
    run_summary,
    size,
    verdicts,
)
from covey.job.runs import Run

if TYPE_CHECKING:
    from covey.cli.catalogue import Part

_MOST_SKEWED, _LEAST_SKEWED = 15, 5
"""Clients of an analysis that are shown, from either end."""

# What is printed holds names that users have chosen, which are no markup.
console = Console(markup=False)
_progress = Console(stderr=True, markup=False)


def say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


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
def run_progress(name: str, rounds: int, done: int) -> Iterator[OnRound]:
    """A bar over the rounds of one run."""
    with _bars() as bars:
        task = bars.add_task(name, total=rounds, completed=done, score="", wait="")

        def on_round(record: dict[str, object]) -> None:
            _advance(bars, task, record)

        with listening(lambda what: bars.update(task, wait=what)):
            yield on_round


@contextmanager
def comparison_progress() -> Iterator[tuple[OnRun, OnRound]]:
    """A bar for each run of a comparison, as it comes."""
    with _bars() as bars:
        current: list[Any] = []

        def on_run(label: str, seed: int | None, rounds: int) -> None:
            name = label if seed is None else f"{label}, seed {seed}"
            current[:] = [bars.add_task(name, total=rounds, score="", wait="")]

        def on_round(record: dict[str, object]) -> None:
            _advance(bars, current[0], record)

        with listening(lambda what: bars.update(current[0], wait=what) if current else None):
            yield on_run, on_round


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each file that is fetched."""
    columns = (_text("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_progress, disable=not _progress.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(file: str, fetched: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=fetched, total=total)

        yield progress


def _advance(bars: Progress, task: TaskID, record: dict[str, object]) -> None:
    """Move a bar; what it says of accuracy stands until the next evaluation."""
    bars.update(task, completed=int(str(record["round"])))
    accuracy = record.get("accuracy")
    if isinstance(accuracy, float):
        bars.update(task, score=f"accuracy {accuracy:.1%}")


def run_result(run: Run) -> None:
    summary = run_summary(run)
    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in (
        ("method", summary["method"]),
        ("rounds", f"{summary['rounds']} of {run.config.rounds}"),
        ("test accuracy", percent(summary["accuracy"])),
        ("best so far", percent(summary["best_accuracy"])),
        ("on clients' own mix", percent(summary["own_accuracy"])),
        ("sent up / down", f"{size(summary['bytes_up'])} / {size(summary['bytes_down'])}"),
        ("time", f"{summary['seconds']:.1f} s"),
    ):
        table.add_row(name, str(value))
    console.print(table, highlight=False)
    say(f"Records: {summary['folder']}")
    names = read_names(run.folder)
    for faults, what in (
        (summary["dropped"], ("reply was dropped", "replies were dropped")),
        (summary["unmeasured"], ("measurement could not be used", "measurements could not be used")),
    ):
        if faults:
            clients = [names.get(client, str(client)) for client in sorted({fault["client"] for fault in faults})]
            first = faults[0]
            whose = names.get(first["client"], f"client {first['client']}")
            say(
                f"{len(faults):,} {what[len(faults) > 1]} (clients {', '.join(clients)}). "
                f"The first: round {first['round']}, {whose}: {first['reason']}."
            )


def comparison(result: Comparison) -> None:
    """The table: one column a method, as many beside each other as fit."""
    rows = result.rows
    columns = {**comparison_columns(rows, result.target, rows[0]["name"]), **client_loss_columns(rows)}
    say(_seeds(rows[0]["seeds"]))
    width = max(14, *(len(row["name"]) for row in rows)) + 3
    fit = max(1, (console.width - max(map(len, columns)) - 4) // width)
    for at in range(0, len(rows), fit):
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        for row in rows[at : at + fit]:
            table.add_column(row["name"], justify="right")
        for name, figure in columns.items():
            table.add_row(name, *(figure(row) for row in rows[at : at + fit]))
        console.print(table, highlight=False)
    for sentence in verdicts(result):
        say(sentence)
    say(f"Records: {result.folder}")


def _seeds(count: int) -> str:
    return "One seed: no interval" if count == 1 else f"Means over {count} seeds; differences are paired by seed"


def evaluation(result: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"After round {result['round']}")
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    if "class_accuracy" in result:
        for name, accuracy in zip(result["class_names"], result["class_accuracy"], strict=True):
            table.add_row(name, percent(accuracy))
        table.add_section()
    table.add_row("all", percent(result["accuracy"]))
    table.add_row("clients' own mix", percent(result["own_accuracy"]))
    for target in result["targets"]:
        table.add_row(target["name"], percent(target["accuracy"]))
    table.add_row("loss", "-" if result["loss"] is None else f"{result['loss']:.4f}")
    console.print(table, highlight=False)
    for target in result["targets"]:
        for note in target["notes"]:
            say(f"{target['name']}: {note}")


def analysis(result: Analysis) -> None:
    """What an analysis found, and the most and the least skewed clients."""
    summary = Table(box=box.SIMPLE, show_header=False)
    for name, figure in analysis_rows(result):
        summary.add_row(name, figure)
    console.print(summary, highlight=False)
    rows = result.each()
    hidden = max(0, len(rows) - _MOST_SKEWED - _LEAST_SKEWED)
    table = Table(box=box.SIMPLE_HEAD, title="Most skewed first")
    truly = [] if result.truth is None else ["truly"]
    for name in ("client", "samples", "skew", "score Q", "sure", "strange", *truly, "finding"):
        table.add_column(name, justify="left" if name in ("client", "finding") else "right", no_wrap=True)
    for place, row in enumerate(rows):
        if hidden and place == _MOST_SKEWED:
            table.add_section()
        if place < _MOST_SKEWED or place >= _MOST_SKEWED + hidden:
            table.add_row(
                row["name"],
                f"{row['samples']:,}",
                f"{row['skew']:.2f}",
                f"{row['score']:.3g}",
                or_dash(row["confidence"], "{:.1%}"),
                or_dash(row["strangeness"], "{:.1f}"),
                *(f"{row['true_skew']:.2f}" for _ in truly),
                ", ".join(flag for flag in ("odd", "outlier") if row[flag]),
            )
    console.print(table, highlight=False)
    if hidden:
        say(f"{hidden:,} clients between them are not shown.")
    say(result.verdict)
    for note in result.notes:
        say(note)


def show_parts(kind: str, parts: "Sequence[Part]") -> None:
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
    table = Table(box=box.SIMPLE, show_header=False)
    for kind, summary in kinds.items():
        table.add_row(kind, summary)
    console.print(table, highlight=False)
    say("See one with: covey list KIND")
