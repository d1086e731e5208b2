"""What the command line shows: progress on standard error, results on standard output."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

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
from covey.job.runs import Run

_MOST_SKEWED, _LEAST_SKEWED = 15, 5
"""Clients of an analysis that are shown, from either end."""

ONE_SEED, CLEAR = "one seed", "clear of zero"
"""What may be left unsaid of a difference."""

_NO_WIDTH = 1e-9
"""Width of an interval, as a fraction, below which seeds differ by rounding only."""

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


def run_summary(run: Run) -> dict[str, Any]:
    """The figures that a run comes to."""
    scored = [row for row in run.metrics if "accuracy" in row]
    dropped, unmeasured = (
        [{"round": row["round"], **fault} for row in run.metrics for fault in row.get(kind, ())]
        for kind in ("dropped", "unmeasured")
    )
    last = scored[-1] if scored else {}
    return {
        "folder": str(run.folder),
        "method": run.config.method,
        "rounds": len(run.metrics),
        "finished": run.finished,
        "accuracy": last.get("accuracy"),
        "own_accuracy": last.get("own_accuracy"),
        "loss": last.get("loss"),
        "best_accuracy": max((row["accuracy"] for row in scored), default=None),
        "bytes_up": sum(row["bytes_up"] for row in run.metrics),
        "bytes_down": sum(row["bytes_down"] for row in run.metrics),
        "seconds": sum(sum(row["seconds"].values()) for row in run.metrics),
        "dropped": dropped,
        "unmeasured": unmeasured,
    }


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
    yardstick = rows[0]["name"]
    to_target = f"rounds to {result.target:.1%}"
    figures: dict[str, Callable[[dict[str, Any]], str]] = {
        "terminal accuracy": lambda row: percent(row["terminal_accuracy"]),
        "  95 % interval": lambda row: interval(row["terminal_low"], row["terminal_high"]),
        "  median": lambda row: percent(row["terminal_median"]),
        "best accuracy": lambda row: percent(row["best_accuracy"]),
        f"points against {yardstick}": difference,
        to_target: lambda row: count(row["rounds_to_target"]),
        "  bytes": lambda row: size(row["bytes_to_target"]),
        "  simulated time": lambda row: _or_dash(row["seconds_to_target"], "{:,.3g} s"),
        "  speed-up": lambda row: _or_dash(row["speed_up"], "{:.2f}x"),
        "gap to IID closed": lambda row: _or_dash(row["gap_recovered"], "{:.0%}"),
    }
    # Some methods cannot do without clients' losses; there is nothing to hold them against unless the first has them.
    if rows[0]["client_loss_mean"] is not None:
        figures |= {
            "clients' mean loss": lambda row: _or_dash(row["client_loss_mean"], "{:.3f}"),
            "  variance": lambda row: _or_dash(row["client_loss_variance"], "{:.3g}"),
            "  gap": lambda row: _or_dash(row["client_loss_gap"], "{:.3f}"),
        }
    # A target that nobody reached is worth a row of dashes; what does not arise is not.
    shown = {
        name: figure for name, figure in figures.items() if name == to_target or any(figure(row) != "-" for row in rows)
    }
    say(_seeds(rows[0]["seeds"]))
    width = max(14, *(len(row["name"]) for row in rows)) + 3
    fit = max(1, (console.width - 26) // width)
    for at in range(0, len(rows), fit):
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        for row in rows[at : at + fit]:
            table.add_column(row["name"], justify="right")
        for name, figure in shown.items():
            table.add_row(name, *(figure(row) for row in rows[at : at + fit]))
        console.print(table, highlight=False)
    for sentence in verdicts(result):
        say(sentence)
    say(f"Records: {result.folder}")


def _seeds(count: int) -> str:
    return "One seed: no interval" if count == 1 else f"Means over {count} seeds; differences are paired by seed"


def verdicts(result: Comparison) -> list[str]:
    """What the table says, in words."""
    first = result.rows[0]
    sentences = []
    for row in result.rows[1:]:
        points = 100 * row["difference"]
        direction = "above" if points >= 0 else "below"
        sure = certainty(row)
        sentence = f"{row['name']} ends {abs(points):.1f} points {direction} {first['name']}"
        sentence += "" if sure == ONE_SEED else f" ({sure})"
        if abs(points) < 0.05:
            sentence = f"{row['name']} ends level with {first['name']}"
        own, others = row["rounds_to_target"], first["rounds_to_target"]
        if own and others:
            noun = "round" if own == 1 else "rounds"
            sentence += f", and reaches {result.target:.1%} after {count(own)} {noun} against {count(others)}"
        sentences.append(sentence + ".")
    return sentences


def certainty(row: Mapping[str, Any]) -> str:
    """What seeds say of a difference. An interval without width shows how coarse accuracy is, not how sure it is."""
    low, high = row["difference_low"], row["difference_high"]
    if low is None or high is None:
        return ONE_SEED
    if high - low < _NO_WIDTH:
        return "the same in every seed, which gives no interval"
    return CLEAR if low > 0 or high < 0 else "within the noise of these seeds"


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
                _or_dash(row["confidence"], "{:.1%}"),
                _or_dash(row["strangeness"], "{:.1f}"),
                *(f"{row['true_skew']:.2f}" for _ in truly),
                ", ".join(flag for flag in ("odd", "outlier") if row[flag]),
            )
    console.print(table, highlight=False)
    if hidden:
        say(f"{hidden:,} clients between them are not shown.")
    say(result.verdict)
    for note in result.notes:
        say(note)


def analysis_rows(result: Analysis) -> list[tuple[str, str]]:
    """An analysis in figures: name and figure."""
    config = result.config
    silent = f"; {len(result.missing):,} more gave no usable answer" if result.missing else ""
    rows = [
        ("data set", f"{config.dataset.name}, environment {config.environment.name}, seed {config.seed}"),
        ("clients", f"{len(result.clients):,}{silent}"),
        ("samples", f"{int(result.samples.sum()):,}"),
        ("insight", f"{result.insight}, {result.rounds} round{'s' if result.rounds > 1 else ''}"),
        ("model", f"{config.model.name}, {f'of {result.model_of}' if result.model_of else 'freshly initialised'}"),
        ("odd class mix", "-" if result.confidence is None else f"{int(result.odd.sum()):,} at level {result.level:g}"),
        ("outliers", "-" if result.strangeness is None else f"{int(result.outlier.sum()):,}"),
        ("rounds agree", _or_dash(result.agreement, "{:.2f} (Spearman)")),
    ]
    if result.truth is not None:
        rows.append(("true skew agrees", _or_dash(result.spearman, "{:.2f} (Spearman)")))
        rows.append(("  with score Q", _or_dash(result.spearman_score, "{:.2f} (Spearman)")))
    return [
        *rows,
        ("sent up / down", f"{size(result.bytes_up)} / {size(result.bytes_down)}"),
        ("time", f"{result.seconds:.1f} s"),
    ]


def entries(kind: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(kind, no_wrap=True)
    table.add_column("")
    table.add_column("options")
    for row in rows:
        options = ", ".join(f"{name}={value}" for name, value in row["options"].items())
        table.add_row(row["name"], row["summary"], options)
    console.print(table, highlight=False)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.1%} to {high:.1%}"


def difference(row: dict[str, Any]) -> str:
    """A paired difference in points, with the half-width of its interval where it has one."""
    if row["difference"] is None:
        return "-"
    text = f"{100 * row['difference']:+.1f}"
    width = 0.0 if row["difference_low"] is None else row["difference_high"] - row["difference_low"]
    return text if width < _NO_WIDTH else f"{text} ± {50 * width:.1f}"


def count(mean: float | None) -> str:
    """A mean of counts: whole, or with one decimal."""
    return "-" if mean is None else f"{mean:.0f}" if mean == int(mean) else f"{mean:.1f}"


def size(count: float | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
