"""Assembly of pages: which stored results count, the sections in order, and the table of runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from papers.grid import Paper, Request, Scale, run_differences
from papers.page import Page, Part, Table
from papers.prose import SHARED
from papers.results import Results, rounds_text
from papers.store import Result, Store
from papers.wording import bullets, different

ORIGIN = ("device", "arithmetic", "PyTorch", "commit", "begun")
"""Columns that say where and when runs were made."""

SomeScale = TypeVar("SomeScale", bound=Scale)
SomeResults = TypeVar("SomeResults", bound=Results)
Context = TypeVar("Context")

Sections = Mapping[str, Callable[[Context], list[Part]]]
"""Heading → function that returns the section's parts."""


def page_of_results(
    paper: Paper,
    scale: SomeScale,
    store: Store,
    methods: Sequence[str],
    results: Callable[[SomeScale, Store, str, Sequence[str]], SomeResults],
    *,
    title: str,
    opening: Sequence[Callable[[SomeResults], list[Part]]],
    sections: Sections[SomeResults],
) -> Page:
    """Return the page of a paper at one scale.

    `results` is built from the scale, the usable store, the command and the methods: the paper's and any others that
    were run. `opening` and `sections` are called with it.
    """
    present = tuple(dict.fromkeys((*methods, *(result.method for result in store))))
    usable, notes = usable_results(paper, scale, store, present)
    found = results(scale, usable, page_command(paper, scale), present)
    before = [part for make in opening for part in make(found)]
    return assembled(paper, scale, title, found, before, sections, usable, _runs(found), notes)


def assembled(
    paper: Paper,
    scale: Scale,
    title: str,
    context: Context,
    opening: Sequence[Part],
    sections: Sections[Context],
    store: Store,
    runs: Part,
    notes: Sequence[str],
) -> Page:
    """Return a page from its opening, its sections, the tables of runs and notes on results that were left out."""
    parts: list[Part] = [*opening]
    for heading, make in sections.items():
        parts += [f"## {heading}", *make(context)]
    parts += ["## What has been run", *_progress(paper, scale, store), "## Runs", runs]
    if notes:
        parts += ["Left out:", *bullets(notes)]
    return Page(scale.store, title, parts)


def page_command(paper: Paper, scale: Scale) -> str:
    """Return the command that makes the runs of a page."""
    return f"covey reproduce {paper.name}" + (f" --scale {scale.name}" if scale.local_only else "")


def usable_results(
    paper: Paper, scale: Scale, store: Store, methods: Sequence[str] | None = None
) -> tuple[Store, list[str]]:
    """Return the results with the planned settings, and a sentence on each of the others."""
    plan = paper.groups(scale, Request(seeds=(0,), methods=None if methods is None else tuple(methods)))
    runs = {(run.environment, run.method, run.variant): run for group in plan for run in group.runs}
    kept, notes = [], []
    for result in store:
        place = (result.environment, result.method, result.variant)
        if place not in runs:
            notes.append(f"{result.name} is not part of this page's plan.")
            continue
        other = run_differences(runs[place], result.config, result.branch)
        if other:
            notes.append(f"{result.name} was made with other settings: {'; '.join(other)}.")
        else:
            kept.append(result)
    return Store(store.folder, kept), notes


def _progress(paper: Paper, scale: Scale, store: Store) -> list[Part]:
    """Return the table of what has been run of the plan at this scale."""
    rows = []
    for group in paper.plan(scale, Request()):
        complete = sum(store.holds(run) for run in group.runs)
        begun = sum(run.name in (one.name for one in store) for run in group.runs) - complete
        state = "all" if complete == len(group.runs) else "none" if not complete + begun else "part"
        under_way = f", {begun} begun" if begun else ""
        seeds = len({run.seed for run in group.runs})
        rows.append(
            [group.title, ", ".join(group.feeds), f"{complete} of {len(group.runs)}{under_way}", str(seeds), state]
        )
    return [SHARED("progress"), Table(("runs", "needed for", "complete", "seeds", "run"), rows)]


def origin(runs: Sequence[Result]) -> list[str]:
    """Return the cells of runs below `ORIGIN`."""
    return [
        different([result.device for result in runs]),
        different([str(result.config["precision"]) for result in runs]),
        different([result.torch for result in runs]),
        different([(result.commit or "-")[:10] for result in runs]),
        different([result.date[:10] for result in runs]),
    ]


def _runs(results: Results) -> Part:
    """Return the table of all runs that the page uses."""
    places = sorted({(result.environment, result.method, result.variant) for result in results.store})
    if not places:
        return "None yet."
    rows = []
    for environment, method, variant in places:
        line = results.store.line(environment, method, variant)
        seeds, run = ", ".join(map(str, line)), rounds_text(line, results.planned_rounds(environment, method))
        rows.append([environment, method, variant or "-", seeds, run, *origin(list(line.values()))])
    return Table(("environment", "method", "variant", "seeds", "rounds", *ORIGIN), rows)
