"""Runs of a comparison are compared over rounds that all of them have, even if some were extended alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.job.comparison.plan import lines_of, place_of
from covey.job.runs import Run
from covey.task.run_metric import main_score


def over_equal_rounds(
    folder: Path, plan: Mapping[str, Any], runs: Mapping[Path, Run]
) -> tuple[dict[Path, Run], tuple[str, ...]]:
    """Return a comparison's runs by their folders, each with the rounds that all have, and a note if any has more.

    Variants may have other rounds if the comparison varies them.
    """
    found, notes = dict(runs), []
    alike: dict[str, list[Path]] = {}
    for label, _, varied in lines_of(plan):
        places = [place_of(folder, label, seed) for seed in plan["seeds"]]
        alike.setdefault(str(varied.get("rounds")), []).extend(place for place in places if place in runs)
    for places in alike.values():
        counts = [runs[place].config.rounds for place in places]
        if len(set(counts)) < 2:
            continue
        least, most = min(counts), max(counts)
        shared = _last_shared([runs[place].metrics for place in places], least)
        found |= {place: _cut(runs[place], shared) for place in places}
        notes.append(
            f"Runs in {folder} have {least} to {most} rounds: figures are of the first {shared}, which all have. "
            f"Extend all with: covey resume {folder} --rounds {most}"
        )
    return found, tuple(notes)


def _last_shared(records: Sequence[Sequence[Mapping[str, Any]]], least: int) -> int:
    """Return the last round up to `least` that all runs with so many rounds were evaluated in, or `least`."""
    evaluated = [
        {row["round"] for row in rows if row["round"] <= least and main_score(row) is not None}
        for rows in records
        if rows and rows[-1]["round"] >= least
    ]
    return max(set.intersection(*evaluated), default=least) if evaluated else least


def _cut(run: Run, rounds: int) -> Run:
    """Return a run as if it had ended after so many rounds."""
    cut = replace(run, config=replace(run.config, rounds=rounds))
    vars(cut)["metrics"] = [row for row in run.metrics if row["round"] <= rounds]
    return cut
