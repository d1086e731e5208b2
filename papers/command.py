"""`covey reproduce`: a thin layer over `papers`."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from covey.cli import terminal as display
from covey.core.loop import OnRound
from covey.core.progress import listening
from covey.errors import Refusal
from covey.job.comparison.execution import OnRun
from papers import Paper, Scale, Store, Wanted, machine_settings, paper_called, papers
from papers import reproduce as run_paper
from papers.pages import Written, write_page
from papers.plan import PAGES_ONLY

_RESULTS, _PAGES, _WORK = Path("results"), Path("docs/results"), Path("runs/reproduce")


def reproduce(
    paper: Annotated[str | None, typer.Argument(help="Paper to reproduce; without one, what there is.")] = None,
    scale: Annotated[str, typer.Option("--scale", help="smoke (seconds on a CPU), short, or paper.")] = "paper",
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N", help="How many seeds (0, 1, …), or a list such as 3,7.")
    ] = None,
    environments: Annotated[
        str | None, typer.Option("--environments", help="Only these environments, separated by commas.")
    ] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Only these methods, separated by commas.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", help="Rounds of every run.")] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="stacked (where there is a GPU) or local.")] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="'tables' for the page alone, or what to run: table-2, figure-7, …"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Stop after so many minutes; the next call goes on.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="Folder of the stored results; by default results/.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Folder of the runs in progress; by default runs/reproduce/.")
    ] = None,
    pages: Annotated[Path | None, typer.Option("--pages", help="Folder of the page; by default docs/results/.")] = None,
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Folder with data sets (or COVEY_DATA).")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Reproduce a paper's tables and figures, over as many occasions as it takes."""
    if paper is None:
        _tell_papers(results, json_)
        return
    chosen = paper_called(paper)
    size = chosen.scale(scale)
    wanted = Wanted(
        seeds=_seeds(seeds), environments=_names(environments), methods=_names(methods), rounds=rounds, only=_only(only)
    )
    folder = _results_of(size, results)
    outcome: dict[str, Any] = {}
    if only != PAGES_ONLY:
        begin = time.monotonic()
        with _progress(begin) as (on_run, on_round):
            played = run_paper(
                chosen,
                size,
                wanted,
                results=folder,
                work=work or _WORK / size.store,
                machine=machine_settings(size, runtime, data_dir),
                minutes=minutes,
                on_run=on_run,
                on_round=on_round,
            )
        outcome = played.as_mapping()
    written = write_page(chosen.page(size, Store.read(folder)), pages or (_WORK if size.local_only else _PAGES))
    if json_:
        print(json.dumps({**outcome, "page": str(written.path), "undrawn": written.undrawn}, indent=2))
    else:
        _tell(outcome, written)
    if outcome.get("stopped") == "interrupt":
        raise typer.Exit(130)


def _results_of(scale: Scale, results: Path | None) -> Path:
    """Where a scale's results are; those of trials stay out of the way."""
    return (results or (_WORK / "results" if scale.local_only else _RESULTS)) / scale.store


@contextmanager
def _progress(begin: float) -> Iterator[tuple[OnRun, OnRound]]:
    """Bars where somebody watches; else a line for each group and each long wait: a log says where the time went."""
    with display.comparison_progress() as (bar, on_round):

        def note(text: str) -> None:
            if text and not sys.stderr.isatty():
                print(f"{time.monotonic() - begin:6.0f} s  {text}", file=sys.stderr)

        def on_run(label: str, seed: int | None, rounds: int) -> None:
            bar(label, seed, rounds)
            note(f"{label}: {rounds:,} rounds to go")

        with listening(note):
            yield on_run, on_round


def _tell(outcome: dict[str, Any], written: Written) -> None:
    if outcome:
        display.say(
            f"{outcome['finished']} of {outcome['runs']} runs are complete; "
            f"{outcome['rounds']:,} rounds in {outcome['seconds']:.0f} s."
        )
        reasons = {"time": "The time is over", "interrupt": "Stopped"}
        if outcome["stopped"]:
            display.say(f"{reasons[outcome['stopped']]}; the same command goes on where this one ended.")
    display.say(f"Page: {written.path}")
    if written.undrawn:
        display.say(
            f"{len(written.undrawn)} of {written.charts} pictures were not drawn; their data are there. "
            "Pictures need matplotlib: pip install matplotlib"
        )


def _tell_papers(results: Path | None, json_: bool) -> None:
    """What there is to reproduce, what it costs, and how much of it is done."""
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
    store = Store.read(_results_of(scale, results))
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
        for group in paper.plan(scale, Wanted())
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
