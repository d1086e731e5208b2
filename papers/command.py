"""Implementation of `covey reproduce`, a thin layer over the campaign and the pages."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from covey.cli import terminal as display
from covey.core.loop import OnRound
from covey.core.progress import listening
from covey.errors import Refusal
from covey.job.pending_runs import OnRun
from covey.job.progress_display import comparison_progress
from papers import Paper, Request, Scale, Store, find_paper, machine_settings, papers, reproduce
from papers.grid import PAGES_ONLY
from papers.page import Written, write_page

_RESULTS, _PAGES, _WORK = Path("results"), Path("docs/results"), Path("runs/reproduce")


def reproduce_command(
    paper: str | None = None,
    *,
    scale: str = "paper",
    seeds: str | None = None,
    environments: str | None = None,
    methods: str | None = None,
    rounds: int | None = None,
    runtime: str | None = None,
    only: str | None = None,
    minutes: float | None = None,
    results: Path | None = None,
    work: Path | None = None,
    pages: Path | None = None,
    data_dir: str | None = None,
    json_: bool = False,
) -> None:
    """Make the runs of a paper that are missing and write its page; without a paper, list what there is.

    Arguments are those of the command line: lists are strings separated by commas.
    """
    if paper is None:
        _list_papers(results, json_)
        return
    chosen = find_paper(paper)
    size = chosen.scale(scale)
    request = Request(
        seeds=_seeds(seeds), environments=_names(environments), methods=_names(methods), rounds=rounds, only=_only(only)
    )
    folder = _results_folder(size, results)
    outcome: dict[str, Any] = {}
    if only != PAGES_ONLY:
        with _progress(time.monotonic()) as (on_run, on_round):
            outcome = reproduce(
                chosen,
                size,
                request,
                results=folder,
                work=work or _WORK / size.store,
                machine=machine_settings(size, runtime, data_dir),
                minutes=minutes,
                on_run=on_run,
                on_round=on_round,
            ).as_mapping()
    written = write_page(chosen.page(size, Store.read(folder)), pages or (_WORK if size.local_only else _PAGES))
    if json_:
        print(json.dumps({**outcome, "page": str(written.path), "undrawn": written.undrawn}, indent=2))
    else:
        _show(outcome, written)
    if outcome.get("stopped") == "interrupt":
        raise typer.Exit(130)


def _results_folder(scale: Scale, results: Path | None) -> Path:
    """Return the folder of a scale's results; those of trials are kept apart."""
    return (results or (_WORK / "results" if scale.local_only else _RESULTS)) / scale.store


@contextmanager
def _progress(start: float) -> Iterator[tuple[OnRun, OnRound]]:
    """Show bars on a terminal; else log a line per group and per long wait, with the time."""
    with comparison_progress() as (bar, on_round):

        def note(text: str) -> None:
            if text and not sys.stderr.isatty():
                print(f"{time.monotonic() - start:6.0f} s  {text}", file=sys.stderr)

        def on_run(label: str, seed: int | None, rounds: int) -> None:
            bar(label, seed, rounds)
            note(f"{label}: {rounds:,} rounds to go")

        with listening(note):
            yield on_run, on_round


def _show(outcome: dict[str, Any], written: Written) -> None:
    """Print what was done and where the page is."""
    if outcome:
        display.say(
            f"{outcome['finished']} of {outcome['runs']} runs are complete; "
            f"{outcome['rounds']:,} rounds in {outcome['seconds']:.0f} s."
        )
        reasons = {"time": "The time is over", "interrupt": "Stopped"}
        if outcome["stopped"]:
            display.say(f"{reasons[outcome['stopped']]}; the same command resumes where this one ended.")
    display.say(f"Page: {written.path}")
    if written.undrawn:
        display.say(
            f"{len(written.undrawn)} of {written.charts} pictures were not drawn; their data are there. "
            "Pictures need matplotlib: pip install matplotlib"
        )


def _list_papers(results: Path | None, json_: bool) -> None:
    """List the papers with what they cost and how much of each is done."""
    rows = [row for paper in papers.values() for scale in paper.scales.values() for row in _rows(paper, scale, results)]
    if json_:
        print(json.dumps(rows, indent=2))
        return
    for paper in papers.values():
        display.say(f"{paper.name}: {paper.title}")
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("")
        table.add_column("for (--only)")
        for scale in paper.scales.values():
            display.say(f"  --scale {scale.name}: {scale.summary}")
            table.add_column(scale.name, justify="right", no_wrap=True)
        own = [row for row in rows if row["paper"] == paper.name]
        for title in dict.fromkeys(row["group"] for row in own):
            line = [row for row in own if row["group"] == title]
            table.add_row(title, ", ".join(line[0]["feeds"]), *(_cost(line, scale) for scale in paper.scales))
        table.add_section()
        table.add_row("all", "", *(_cost(own, scale) for scale in paper.scales))
        display.console.print(table, highlight=False)
    display.say("Runs complete / runs, and client-samples to train on. Run with: covey reproduce PAPER --scale SCALE")


def _cost(rows: list[dict[str, Any]], scale: str) -> str:
    own = [row for row in rows if row["scale"] == scale]
    runs, complete, samples = (sum(row[key] for row in own) for key in ("runs", "complete", "client_samples"))
    return f"{complete}/{runs}  {samples:.1e}" if own else "-"


def _rows(paper: Paper, scale: Scale, results: Path | None) -> list[dict[str, Any]]:
    store = Store.read(_results_folder(scale, results))
    return [
        {
            "paper": paper.name,
            "scale": scale.name,
            "group": group.title,
            "feeds": list(group.feeds),
            "runs": len(group.runs),
            "client_samples": group.cost,
            "complete": sum(store.holds(run) for run in group.runs),
        }
        for group in paper.plan(scale, Request())
    ]


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _only(text: str | None) -> tuple[str, ...] | None:
    names = None if text is None or text == PAGES_ONLY else _names(text)
    if names and PAGES_ONLY in names:
        raise Refusal(f"--only {PAGES_ONLY} makes the page without a run, and goes with nothing else.")
    return names


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise Refusal(f"--seeds takes a number such as 3, or a list such as 0,4,7, not '{text}'.") from None
    return tuple(numbers) if "," in text else tuple(range(numbers[0] if numbers else 0))
