"""Lines of tables and charts: which of a line's runs are shown, and their mean curves over seeds."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate, common_seeds, evaluated_runs, last_round
from papers.store import Result

Line = Mapping[int, Result]
"""Seed → run: one line of a table."""

Label = TypeVar("Label")


def shown_runs(line: Line, planned: int) -> dict[int, Result]:
    """Return the complete runs of a line if there are two or more, else all that were evaluated.

    A mean over runs at very different rounds describes none of them.
    """
    runs = evaluated_runs(line)
    complete = {seed: run for seed, run in runs.items() if last_round(run) >= planned}
    return complete if len(complete) >= 2 else runs


def on_common_seeds(lines: Mapping[Label, Line]) -> dict[Label, dict[int, Result]]:
    """Restrict lines to the seeds that all of them have; lines without any run are ignored and stay empty."""
    common = common_seeds(*(line for line in lines.values() if evaluated_runs(line)))
    return {label: {seed: line[seed] for seed in common if seed in line} for label, line in lines.items()}


def mean_curve(line: Line, points: int = 100, smooth: int = 1) -> tuple[list[int], list[Estimate]]:
    """Return accuracy over seeds at the rounds that all of them have evaluated, thinned to about `points`.

    Each value is the mean over the last `smooth` of these rounds, or over all so far if there are fewer.
    """
    runs = list(evaluated_runs(line).values())
    if not runs:
        return [], []
    rounds = sorted(set.intersection(*(set(run.evaluations.astype(int).tolist()) for run in runs)))
    tables = [dict(zip(run.evaluations.astype(int).tolist(), run.accuracy.tolist(), strict=True)) for run in runs]
    values = np.array([[table[t] for t in rounds] for table in tables])
    ends = {t: end for end, t in enumerate(rounds, start=1)}
    shown = thinned(rounds, points)
    return shown, [Estimate.of(values[:, max(0, ends[t] - smooth) : ends[t]].mean(axis=1).tolist()) for t in shown]


def mean_by_window(columns: Sequence[Sequence[float | None]], points: int = 100) -> tuple[list[int], list[float]]:
    """Average columns of one value per round over columns and windows of rounds; return each window's last round."""
    length = min((len(column) for column in columns), default=0)
    if length == 0:
        return [], []
    values = np.stack([numbers(column[:length]) for column in columns])
    size = max(1, -(-length // points))
    ends = list(range(size, length + 1, size)) or [length]
    return ends, [float(np.nanmean(values[:, end - size : end])) for end in ends]


def numbers(values: Sequence[float | None]) -> FloatArray:
    """Return values as an array, missing ones as NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def thinned(values: list[int], points: int) -> list[int]:
    """Return about `points` of the values at equal distances, the last one included."""
    step = max(1, len(values) // points)
    return values[::-1][::step][::-1]
