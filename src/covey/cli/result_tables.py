"""Results of jobs as tables in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from covey.cli.sweep_table import sweep_table
from covey.cli.terminal import console, say, table_of
from covey.core.client_names import read_names
from covey.job.analysis import Analysis
from covey.job.comparison.compared_runs import Comparison
from covey.job.result_text import (
    BEFORE_AVERAGING,
    CLIENT_FIGURES,
    EPSILON,
    OWN_MIX,
    RowText,
    analysis_rows,
    client_loss_columns,
    comparison_columns,
    or_dash,
    percent,
    privacy_text,
    run_summary,
    size,
    verdicts,
)
from covey.job.runs import Run
from covey.job.score_text import score_rows
from covey.task.learning_task import ACCURACY
from covey.task.run_metric import main_score, metric_of

_MOST_SKEWED, _LEAST_SKEWED = 15, 5
"""Clients of an analysis that are shown, from either end."""


def show_run(run: Run) -> None:
    """Print a run's figures, and the replies and measurements that were lost."""
    summary = run_summary(run)
    metric = metric_of([summary])
    rows = [
        ("method", summary["method"]),
        ("rounds", f"{summary['rounds']} of {run.config.rounds}"),
        (metric.test_label, metric.text(main_score(summary))),
        (f"best {metric.label}", metric.text(summary.get("best_accuracy", summary.get("best_score")))),
        *([(OWN_MIX, percent(summary["own_accuracy"]))] if "own_accuracy" in summary else []),
        *score_rows(summary),
        ("sent up / down", f"{size(summary['bytes_up'])} / {size(summary['bytes_down'])}"),
        ("time", f"{summary['seconds']:.1f} s"),
    ]
    for raw in ("raw_accuracy", "raw_score"):
        if raw in summary:
            rows.insert(3, (BEFORE_AVERAGING, metric.text(summary[raw])))
    if epsilon := privacy_text(summary):
        rows.insert(3, (EPSILON, epsilon))
    console.print(table_of(rows), highlight=False)
    say(f"Records: {summary['folder']}")
    names = read_names(run.folder)
    for faults, loss in (
        (summary["dropped"], ("reply was dropped", "replies were dropped")),
        (summary["unmeasured"], ("measurement could not be used", "measurements could not be used")),
        (summary.get("unscored", ()), ("evaluation was declined", "evaluations were declined")),
    ):
        if faults:
            clients = [names.get(client, str(client)) for client in sorted({fault["client"] for fault in faults})]
            first = faults[0]
            whose = names.get(first["client"], f"client {first['client']}")
            say(
                f"{len(faults):,} {loss[len(faults) > 1]} (clients {', '.join(clients)}). "
                f"The first: round {first['round']}, {whose}: {first['reason']}."
            )


def show_comparison(result: Comparison) -> None:
    """Print a comparison: one column per method, as many side by side as fit; of a sweep, one row per variant."""
    rows = result.rows
    columns = {
        **comparison_columns(rows, result.target, result.contenders[0].method, result.metric),
        **client_loss_columns(rows),
    }
    say(_heading(result, rows[0]["seeds"]))
    if any(one.varied for one in result.contenders):
        table, cut = sweep_table(result.contenders, rows, columns, console.width)
        console.print(table, highlight=False)
        if cut:
            say(f"{cut} more figures of each are in the report (covey report {result.folder}) and in --json.")
    else:
        _print_side_by_side(rows, columns)
    for sentence in (*verdicts(result), *result.notes):
        say(sentence)
    say(f"Records: {result.folder}")


def _print_side_by_side(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, RowText]) -> None:
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


def _heading(result: Comparison, count: int) -> str:
    swept = any(one.varied for one in result.contenders) and len(result.rows) > 1
    against = f", against {result.against}" if swept else ""
    if count == 1:
        return f"One seed: no interval{against and '; differences are'}{against.lstrip(',')}"
    return f"Means over {count} seeds; differences are paired by seed{against}"


def show_evaluation(result: dict[str, Any]) -> None:
    """Print the accuracy of each class and of each target."""
    table = Table(box=box.SIMPLE_HEAD, title=f"After round {result['round']}")
    table.add_column("class" if "accuracy" in result else "metric")
    table.add_column("accuracy" if "accuracy" in result else "test set", justify="right")
    if "class_accuracy" in result:
        for name, accuracy in zip(result["class_names"], result["class_accuracy"], strict=True):
            table.add_row(name, percent(accuracy))
        table.add_section()
    metric = metric_of([result])
    table.add_row("all" if metric == ACCURACY else metric.label, metric.text(main_score(result)))
    if "own_accuracy" in result:
        table.add_row("clients' own mix", percent(result["own_accuracy"]))
    for name, figure in score_rows(result):
        table.add_row(name, figure)
    for target in result["targets"]:
        table.add_row(target["name"], percent(target["accuracy"]))
    table.add_row("loss", "-" if result["loss"] is None else f"{result['loss']:.4f}")
    console.print(table, highlight=False)
    for target in result["targets"]:
        for note in target["notes"]:
            say(f"{target['name']}: {note}")


def show_analysis(result: Analysis) -> None:
    """Print an analysis, with the most and the least skewed clients."""
    console.print(table_of(analysis_rows(result)), highlight=False)
    rows = result.findings_first()
    hidden = max(0, len(rows) - _MOST_SKEWED - _LEAST_SKEWED)
    table = Table(box=box.SIMPLE_HEAD, title="Findings first, then the most skewed")
    truly = [] if result.truth is None else ["true_skew"]
    for figure in ("name", "samples", "skew", "score", "confidence", "strangeness", *truly, "finding"):
        # A long name takes two lines.
        heading = CLIENT_FIGURES[figure].replace(" ", "\n", 1)
        table.add_column(heading, justify="left" if figure in ("name", "finding") else "right", no_wrap=True)
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
