"""Shared by the tests of reproductions: the command, made-up runs, and sections and rows of pages."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer
from click.testing import Result as Said
from typer.testing import CliRunner

from covey.cli.reproduce_command import reproduce as command
from covey.job.lockstep_runs import run_together
from papers import (
    Outcome,
    Paper,
    PlannedRun,
    Request,
    Result,
    Scale,
    Store,
    campaign,
    machine_settings,
    reproduce,
)
from papers.store import CENTRAL

_app = typer.Typer(pretty_exceptions_enable=False)
_app.command()(command)


def called(*arguments: object) -> Said:
    """`covey reproduce` as a shell would call it."""
    return CliRunner().invoke(_app, [str(argument) for argument in arguments], catch_exceptions=False)


def reproduced(paper: Paper, scale: Scale, folder: Path, wanted: Request, **more: Any) -> Outcome:
    """Reproduce into `folder`, on the CPU by default."""
    machine = more.pop("machine", None) or machine_settings(paper.scale("smoke"), None, None)
    return reproduce(paper, scale, wanted, results=folder / "results", work=folder / "work", machine=machine, **more)


def results_of(folder: Path, *names: str) -> Iterator[tuple[Result, ...]]:
    """The results of several reproductions, run by run."""
    return zip(*(Store.read(folder / name / "results") for name in names), strict=True)


def planned_run(paper: Paper, scale: Scale, environment: str, method: str, variant: str, wanted: Request) -> PlannedRun:
    """A run of a paper's plan."""
    runs = (run for group in paper.plan(scale, wanted) for run in group.runs)
    return next(run for run in runs if (run.environment, run.method, run.variant) == (environment, method, variant))


def rising(level: float, rise: float) -> Callable[[int], float]:
    """Return a curve that rises in a straight line to `level` within `rise` rounds and stays there."""
    return lambda t: level * min(1.0, t / rise)


def made_up(
    paper: Paper, run: PlannedRun, curve: Callable[[int], float], rounds: int | None = None, **more: Any
) -> Result:
    """Return a made-up result of a planned run with accuracy `curve(round)`; `more` are fields to set."""
    rounds = run.rounds if rounds is None else rounds
    every = run.settings["evaluate_every"]
    at = list(range(every, rounds + 1, every))
    clients = 1 if run.method == CENTRAL else run.settings["clients"]
    columns = dict.fromkeys(("round", "loss", "bytes_up", "bytes_down", "probe_bytes"), at)
    fields: dict[str, Any] = {
        "paper": paper.name,
        "environment": run.environment,
        "method": run.method,
        "seed": run.seed,
        "variant": run.variant,
        "commit": "0123456789abcdef",
        "date": "2026-01-01T00:00:00+00:00",
        "device": "a GPU",
        "torch": "2.11",
        "config": json.loads(json.dumps(run.config({}).as_mapping())),
        "rounds": rounds,
        "finished": rounds >= run.rounds,
        "evaluated": {**columns, "accuracy": [round(curve(t), 4) for t in at]},
        "cohort_skew": [0.5] * rounds,
        "skew": [0.5] * clients,
        "hits": [1] * clients,
        "dropped": 0,
        "withheld": 0,
        "seconds": {"clients": 1.0, "probes": 0.0, "aggregation": 2.0, "total": 1.0},
    }
    return Result(**{**fields, **more})


def result_of(store: Store, name: str) -> Result:
    """Return a result that the store holds."""
    result = store.get(name)
    assert result is not None
    return result


def stored(*results: Result) -> Store:
    return Store(Path("nowhere"), results)


def section(text: str, title: str) -> str:
    """Return the text of a page below a heading."""
    return text.split(f"## {title}")[1].split("\n## ")[0]


def rows_of(text: str, *beginning: str) -> list[list[str]]:
    """Cells of the table rows that begin with the given cells."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if row[: len(beginning)] == list(beginning)]


def ten_seconds_a_round(monkeypatch) -> Callable[[dict[str, Any]], None]:
    """Return an `on_round` that makes every round of a reproduction take ten seconds by its clock."""
    now = 0.0
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now))

    def on_round(record: dict[str, Any]) -> None:
        nonlocal now
        now += 10.0

    return on_round


def runs_together(monkeypatch) -> list[int]:
    """Record how many runs advance in lockstep, one number per call."""
    together: list[int] = []

    def counting(runs, *rest):
        together.append(len(runs))
        return run_together(runs, *rest)

    monkeypatch.setattr(campaign, "run_together", counting)
    return together
