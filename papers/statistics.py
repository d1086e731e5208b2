"""What stored runs say: terminal accuracy, rounds to a target, paired differences. Runs may have come to any round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate
from papers.store import Result

Line = Mapping[int, Result]
"""Seed → run, of one line of a table."""


def reached(result: Result) -> int:
    """The last round that was evaluated; 0 where none was."""
    return int(result.evaluations[-1]) if len(result.evaluations) else 0


def scored(line: Line) -> dict[int, Result]:
    """The runs of a line that were evaluated at all."""
    return {seed: result for seed, result in line.items() if reached(result)}


def settled(line: Line, planned: int) -> dict[int, Result]:
    """The runs of a line to show: those that are at their end where two or more are, else all that were evaluated.

    A mean over runs that have come to very different rounds says nothing about any of these.
    """
    runs = scored(line)
    ended = {seed: result for seed, result in runs.items() if reached(result) >= planned}
    return ended if len(ended) >= 2 else runs


def terminal(result: Result, window: int, at: int | None = None) -> float:
    """Mean accuracy over the last `window` rounds up to round `at` (by default all), at least the last evaluation."""
    rounds, accuracy = result.evaluations, result.accuracy
    inside = rounds <= (reached(result) if at is None else at)
    if not inside.any():
        return float(accuracy[0])
    last = rounds[inside][-1]
    return float(accuracy[inside & (rounds > last - max(1, window))].mean())


def accuracy_at(result: Result, t: int) -> float | None:
    """Accuracy at the last evaluation up to `round`; None where the run has not come so far."""
    if reached(result) < t or not (result.evaluations <= t).any():
        return None
    return float(result.accuracy[result.evaluations <= t][-1])


def rounds_to(result: Result, target: float) -> int | None:
    """The first evaluated round whose accuracy is at least `target`."""
    places = np.flatnonzero(result.accuracy >= target)
    return int(result.evaluations[places[0]]) if len(places) else None


@dataclass(frozen=True)
class Paired:
    """A figure of one line less that of another, seed by seed, each pair at the last round that both have come to."""

    seeds: tuple[int, ...]
    difference: Estimate


def paired_terminal(line: Line, base: Line, window: int) -> Paired | None:
    """Terminal accuracy of `line` less that of `base`, over the seeds that both have."""
    seeds = common_seeds(line, base)
    if not seeds:
        return None
    values = []
    for seed in seeds:
        at = min(reached(line[seed]), reached(base[seed]))
        values.append(terminal(line[seed], window, at) - terminal(base[seed], window, at))
    return Paired(seeds, Estimate.of(values))


def share_of_gap(line: Line, base: Line, ceiling: Line, window: int) -> float | None:
    """Share of the distance from `base` to `ceiling` that `line` covers: a ratio of means over common seeds.

    None where there are no common seeds, or where the distance may be none at all (its 95 % interval holds zero).
    """
    seeds = [seed for seed in common_seeds(line, base) if seed in common_seeds(base, ceiling)]
    if not seeds:
        return None
    own, whole = [], []
    for seed in seeds:
        at = min(reached(part[seed]) for part in (line, base, ceiling))
        below = terminal(base[seed], window, at)
        own.append(terminal(line[seed], window, at) - below)
        whole.append(terminal(ceiling[seed], window, at) - below)
    gap = Estimate.of(whole)
    if gap.mean <= 0 or (gap.low is not None and gap.low <= 0):
        return None
    return float(np.mean(own)) / gap.mean


@dataclass(frozen=True)
class ToTarget:
    """Rounds that a line takes to a target."""

    seeds: int
    reached: int
    """Seeds that came to it."""
    rounds: Estimate | None
    """Over seeds, where all came to it."""


def line_to_target(line: Line, target: float) -> ToTarget:
    taken = [rounds_to(result, target) for result in line.values()]
    there = [float(value) for value in taken if value is not None]
    return ToTarget(len(taken), len(there), Estimate.of(there) if there and len(there) == len(taken) else None)


def paired_speed(line: Line, base: Line, target: float) -> tuple[float, Paired] | None:
    """Speed-up (mean rounds of `base` over those of `line`) and rounds saved, over common seeds; all must reach it."""
    seeds = common_seeds(line, base)
    pairs = [(rounds_to(base[seed], target), rounds_to(line[seed], target)) for seed in seeds]
    there = [(before, own) for before, own in pairs if before is not None and own is not None]
    if not there or len(there) < len(pairs):
        return None
    before, own = (np.array(column, dtype=np.float64) for column in zip(*there, strict=True))
    return float(before.mean() / own.mean()), Paired(seeds, Estimate.of((own - before).tolist()))


def common_seeds(line: Line, other: Line) -> tuple[int, ...]:
    """Seeds of which both lines have an evaluated run."""
    return tuple(sorted(set(scored(line)) & set(scored(other))))


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
    """Whether a difference is clear of zero; None where there is no interval."""
    if difference.low is None or difference.high is None:
        return None
    return difference.low > 0 or difference.high < 0


def thinned(values: list[int], points: int) -> list[int]:
    """About `points` of the values at equal distances, the last one among them."""
    step = max(1, len(values) // points)
    return values[::-1][::step][::-1]
