"""Statistics of runs over seeds: terminal accuracy, rounds to a target, and paired differences with 95 % intervals.

A run is anything `Evaluated`: its accuracy at some rounds, or the main metric of another task. A line of a table is one
run per seed. Methods of one seed share the federation and the initialisation, so differences are taken seed by seed
before they are averaged. Runs of a seed that stopped at different rounds are compared at the last round that all of
them have evaluated.

`Comparison` applies these to the runs in a comparison's folder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from covey.arrays import FloatArray

if TYPE_CHECKING:
    pass

TERMINAL_SHARE = 0.05
"""Terminal accuracy is the mean over this last share of the rounds."""

REFERENCE = "iid"
"""The method that trains on the same federation without skew."""


def half_interval(values: FloatArray) -> FloatArray:
    """Return half the width of Student's 95 % interval of the mean over seeds; `values` is `[seeds, ...]`."""
    from scipy import stats

    seeds = len(values)
    half: FloatArray = stats.t.ppf(0.975, seeds - 1) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return half


@dataclass(frozen=True)
class Estimate:
    """Mean, median and 95 % interval (Student's t) of a figure over seeds."""

    mean: float
    median: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Estimate from one value per seed; a single seed gives no interval."""
        sample = np.asarray(values, dtype=np.float64)
        mean, median = float(sample.mean()), float(np.median(sample))
        if len(sample) < 2:
            return cls(mean, median, None, None)
        half = float(half_interval(sample))
        return cls(mean, median, mean - half, mean + half)

    @property
    def clear_of_zero(self) -> bool | None:
        """True if the interval excludes zero; None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


class Evaluated(Protocol):
    """A run's test accuracy at the rounds that were evaluated."""

    @property
    def evaluations(self) -> FloatArray:
        """Evaluated rounds, ascending `[evaluations]`."""

    @property
    def accuracy(self) -> FloatArray:
        """Test accuracy at these rounds, as a fraction `[evaluations]`."""


SomeRun = TypeVar("SomeRun", bound=Evaluated)

Line = Mapping[int, SomeRun]
"""Seed → run: one line of a table."""

Figure = Callable[[SomeRun, int | None], float]
"""A figure of a run up to a round (None: all of it), such as `best_accuracy`."""


def sign_of(run: Evaluated) -> float:
    """Return 1 if a higher figure of a run is better, as accuracy is, and -1 if a lower one is."""
    return float(getattr(run, "sign", 1.0))


def last_round(run: Evaluated) -> int:
    """Return the last evaluated round, 0 if there is none."""
    return int(run.evaluations[-1]) if len(run.evaluations) else 0


def terminal_window(rounds: float) -> float:
    """Return how many of the last rounds terminal accuracy is averaged over: 5 % of them, at least one."""
    return max(1.0, TERMINAL_SHARE * rounds)


def terminal_accuracy(run: Evaluated, until: int | None = None, window: float | None = None) -> float:
    """Return the mean accuracy over the last `window` rounds up to round `until`, at least the last evaluation.

    By default the run is taken to its end, and the window is 5 % of its rounds. A run that was first evaluated after
    `until` counts with its first evaluation.
    """
    rounds, accuracy = run.evaluations, run.accuracy
    inside = rounds <= (last_round(run) if until is None else until)
    if not inside.any():
        return float(accuracy[0])
    last = rounds[inside][-1]
    size = terminal_window(float(last)) if window is None else max(1, window)
    return float(accuracy[inside & (rounds > last - size)].mean())


def best_accuracy(run: Evaluated, until: int | None = None) -> float:
    """Return the best accuracy of any evaluation up to round `until` (default: of all)."""
    inside, sign = run.evaluations <= (last_round(run) if until is None else until), sign_of(run)
    return sign * float((sign * run.accuracy[inside]).max()) if inside.any() else float(run.accuracy[0])


def accuracy_at(run: Evaluated, t: int) -> float | None:
    """Return the accuracy of the last evaluation up to round `t`; None if the run has not reached round `t`."""
    if last_round(run) < t or not (run.evaluations <= t).any():
        return None
    return float(run.accuracy[run.evaluations <= t][-1])


def first_evaluation_at(run: Evaluated, target: float) -> int | None:
    """Return the position of the first evaluation with accuracy `target` or better."""
    sign = sign_of(run)
    places = np.flatnonzero(sign * run.accuracy >= sign * target)
    return int(places[0]) if len(places) else None


def rounds_to_target(run: Evaluated, target: float) -> int | None:
    """Return the first evaluated round with accuracy `target` or better; None if the run never reaches it."""
    place = first_evaluation_at(run, target)
    return None if place is None else int(run.evaluations[place])


def evaluated_runs(line: Line[SomeRun]) -> dict[int, SomeRun]:
    """Return the runs of a line that were evaluated at least once."""
    return {seed: run for seed, run in line.items() if last_round(run)}


def common_seeds(*lines: Line[SomeRun]) -> tuple[int, ...]:
    """Return the seeds of which every line has an evaluated run, ascending."""
    return tuple(sorted(set.intersection(*(set(evaluated_runs(line)) for line in lines)))) if lines else ()


def paired_values(figure: Figure[SomeRun], *lines: Line[SomeRun]) -> FloatArray:
    """Return a figure of several lines at their common seeds `[lines, seeds]`.

    The runs of a seed are all taken up to the last round that every one of them has evaluated.
    """
    columns = []
    for seed in common_seeds(*lines):
        until = min(last_round(line[seed]) for line in lines)
        columns.append([figure(line[seed], until) for line in lines])
    return np.array(columns, dtype=np.float64).reshape(-1, len(lines)).T


def paired_difference(figure: Figure[SomeRun], line: Line[SomeRun], base: Line[SomeRun]) -> Estimate | None:
    """Return a figure of `line` less that of `base`, seed by seed; None without common seeds."""
    own, other = paired_values(figure, line, base)
    return Estimate.of((own - other).tolist()) if len(own) else None


def share_of_gap(values: FloatArray, base: FloatArray, ceiling: FloatArray) -> float | None:
    """Return the share of the gap from `base` to `ceiling` that `values` close: a ratio of means, all `[seeds]`.

    None without seeds, and where the gap may be zero (its 95 % interval contains zero).
    """
    if len(values) == 0:
        return None
    gap = Estimate.of((ceiling - base).tolist())
    if gap.mean <= 0 or (gap.low is not None and gap.low <= 0):
        return None
    return float((values - base).mean()) / gap.mean


@dataclass(frozen=True)
class TargetRounds:
    """Rounds that the runs of a line take to reach a target."""

    seeds: int
    reached: int
    """Number of seeds that reach it."""
    rounds: Estimate | None
    """Over seeds; None unless all of them reach it."""


def line_rounds_to_target(line: Line[SomeRun], target: float) -> TargetRounds:
    """Return the rounds that a line takes to reach `target`."""
    taken = [rounds_to_target(run, target) for run in line.values()]
    found = [float(rounds) for rounds in taken if rounds is not None]
    complete = bool(found) and len(found) == len(taken)
    return TargetRounds(len(taken), len(found), Estimate.of(found) if complete else None)


@dataclass(frozen=True)
class SpeedUp:
    """Speed-up of one line over another on the way to a target accuracy, over common seeds."""

    factor: float
    """Mean rounds of the other line over mean rounds of this one."""
    difference: Estimate
    """Rounds of this line less those of the other, seed by seed."""


def speed_up(line: Line[SomeRun], base: Line[SomeRun], target: float) -> SpeedUp | None:
    """Return the speed-up of `line` over `base`; None unless both reach `target` with every common seed."""
    pairs = [
        (rounds_to_target(line[seed], target), rounds_to_target(base[seed], target))
        for seed in common_seeds(line, base)
    ]
    found = [(own, other) for own, other in pairs if own is not None and other is not None]
    if not found or len(found) < len(pairs):
        return None
    own, other = (np.array(column, dtype=np.float64) for column in zip(*found, strict=True))
    return SpeedUp(float(other.mean() / own.mean()), Estimate.of((own - other).tolist()))
