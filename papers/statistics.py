"""What stored runs say: terminal accuracy, rounds to a target, paired differences. Runs may have come to any round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import (
    Estimate,
    SpeedUp,
    accuracy_at,
    best_accuracy,
    common_seeds,
    paired_difference,
    paired_values,
    speed_up,
    terminal_accuracy,
)
from covey.job.comparison.statistics import evaluated_runs as scored
from covey.job.comparison.statistics import last_round as reached
from covey.job.comparison.statistics import line_rounds_to_target as line_to_target
from covey.job.comparison.statistics import rounds_to_target as rounds_to
from covey.job.comparison.statistics import share_of_gap as gap_share
from papers.store import Result

__all__ = ["accuracy_at", "best_accuracy", "common_seeds", "line_to_target", "reached", "rounds_to", "scored"]

Line = Mapping[int, Result]
"""Seed → run, of one line of a table."""


def settled(line: Line, planned: int) -> dict[int, Result]:
    """The runs of a line to show: those that are at their end where two or more are, else all that were evaluated.

    A mean over runs that have come to very different rounds says nothing about any of these.
    """
    runs = scored(line)
    ended = {seed: result for seed, result in runs.items() if reached(result) >= planned}
    return ended if len(ended) >= 2 else runs


def terminal(result: Result, window: int, at: int | None = None) -> float:
    """Mean accuracy over the last `window` rounds up to round `at` (by default all), at least the last evaluation."""
    return terminal_accuracy(result, at, window)


@dataclass(frozen=True)
class Paired:
    """A figure of one line less that of another, seed by seed, each pair at the last round that both have come to."""

    seeds: tuple[int, ...]
    difference: Estimate


def paired_terminal(line: Line, base: Line, window: int) -> Paired | None:
    """Terminal accuracy of `line` less that of `base`, over the seeds that both have."""
    difference = paired_difference(lambda run, at: terminal(run, window, at), line, base)
    return None if difference is None else Paired(common_seeds(line, base), difference)


def share_of_gap(line: Line, base: Line, ceiling: Line, window: int) -> float | None:
    """Share of the distance from `base` to `ceiling` that `line` covers: a ratio of means over common seeds."""
    return gap_share(*paired_values(lambda run, at: terminal(run, window, at), line, base, ceiling))


def paired_speed(line: Line, base: Line, target: float) -> SpeedUp | None:
    """Speed-up (mean rounds of `base` over those of `line`) and rounds saved, over common seeds; all must reach it."""
    return speed_up(line, base, target)


Label = TypeVar("Label")


def on_common_seeds(lines: Mapping[Label, Line]) -> dict[Label, dict[int, Result]]:
    """The lines with the seeds that all of them have; a line without any run stays empty and costs the others none."""
    there = [set(scored(line)) for line in lines.values() if scored(line)]
    common = set.intersection(*there) if there else set()
    return {label: {seed: line[seed] for seed in sorted(common & set(line))} for label, line in lines.items()}


def mean_curve(line: Line, points: int = 100, smooth: int = 1) -> tuple[list[int], list[Estimate]]:
    """Accuracy over seeds at rounds that all of them have evaluated, thinned to about `points`.

    Each is the mean of the last `smooth` of these rounds, or of all so far where there are fewer.
    """
    runs = list(scored(line).values())
    if not runs:
        return [], []
    rounds = sorted(set.intersection(*(set(run.evaluations.astype(int).tolist()) for run in runs)))
    tables = [dict(zip(run.evaluations.astype(int).tolist(), run.accuracy.tolist(), strict=True)) for run in runs]
    values = np.array([[table[t] for t in rounds] for table in tables])
    ends = {t: end for end, t in enumerate(rounds, start=1)}
    shown = thinned(rounds, points)
    return shown, [Estimate.of(values[:, max(0, ends[t] - smooth) : ends[t]].mean(axis=1).tolist()) for t in shown]


def mean_by_window(columns: Sequence[Sequence[float | None]], points: int = 100) -> tuple[list[int], list[float]]:
    """Columns with one value per round, averaged over columns and over windows of rounds; windows end at the rounds."""
    length = min((len(column) for column in columns), default=0)
    if length == 0:
        return [], []
    values = np.stack([numbers(column[:length]) for column in columns])
    size = max(1, -(-length // points))
    ends = list(range(size, length + 1, size)) or [length]
    return ends, [float(np.nanmean(values[:, end - size : end])) for end in ends]


def numbers(values: Sequence[float | None]) -> FloatArray:
    """Values with NaN for those that are missing."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def apart(difference: Estimate) -> bool | None:
    """True if a difference is clear of zero; None where there is no interval."""
    return difference.clear_of_zero


def thinned(values: list[int], points: int) -> list[int]:
    """About `points` of the values at equal distances, the last one among them."""
    step = max(1, len(values) // points)
    return values[::-1][::step][::-1]
