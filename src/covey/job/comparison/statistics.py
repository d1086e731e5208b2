"""Statistics of runs over seeds: terminal accuracy, rounds to a target, and paired differences with 95 % intervals.

A run is anything `Evaluated`: its accuracy at some rounds. A line of a table is one run per seed. Methods of one seed
share the federation and the initialisation, so differences are taken seed by seed before they are averaged. Runs of a
seed that stopped at different rounds are compared at the last round that all of them have evaluated.

`Comparison` applies these to the runs in a comparison's folder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from scipy import stats

from covey.arrays import FloatArray
from covey.environment.federated_data import Federation
from covey.errors import require
from covey.job.comparison.plan import Variant, lines_of, places_of, read_plan, recorded
from covey.job.runs import Run, data_frame
from covey.trust import Trust

if TYPE_CHECKING:
    import pandas

TERMINAL_SHARE = 0.05
"""Terminal accuracy is the mean over this last share of the rounds."""

REFERENCE = "iid"
"""The method that trains on the same federation without skew."""


def half_interval(values: FloatArray) -> FloatArray:
    """Return half the width of Student's 95 % interval of the mean over seeds; `values` is `[seeds, ...]`."""
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
    """Return the highest accuracy of any evaluation up to round `until` (default: of all)."""
    inside = run.evaluations <= (last_round(run) if until is None else until)
    return float(run.accuracy[inside].max()) if inside.any() else float(run.accuracy[0])


def accuracy_at(run: Evaluated, t: int) -> float | None:
    """Return the accuracy of the last evaluation up to round `t`; None if the run has not reached round `t`."""
    if last_round(run) < t or not (run.evaluations <= t).any():
        return None
    return float(run.accuracy[run.evaluations <= t][-1])


def first_evaluation_at(run: Evaluated, target: float) -> int | None:
    """Return the position of the first evaluation with accuracy `target` or above."""
    places = np.flatnonzero(run.accuracy >= target)
    return int(places[0]) if len(places) else None


def rounds_to_target(run: Evaluated, target: float) -> int | None:
    """Return the first evaluated round with accuracy `target` or above; None if the run never reaches it."""
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


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy of one run, and bytes and simulated seconds so far, at its evaluations."""

    evaluations: FloatArray
    accuracy: FloatArray
    bytes: FloatArray
    clock: FloatArray

    @classmethod
    def of(cls, metrics: Sequence[Mapping[str, Any]]) -> "Curve":
        """Return the curve of a run's round records."""
        sent = np.cumsum([row["bytes_up"] + row["bytes_down"] for row in metrics], dtype=np.float64)
        scored = [place for place, row in enumerate(metrics) if "accuracy" in row]
        return cls(
            np.array([metrics[place]["round"] for place in scored], dtype=np.float64),
            np.array([metrics[place]["accuracy"] for place in scored], dtype=np.float64),
            sent[scored],
            np.array([metrics[place].get("clock", 0.0) for place in scored], dtype=np.float64),
        )

    @property
    def terminal(self) -> float:
        """Mean accuracy over the last 5 % of the rounds (at least the last evaluation)."""
        return terminal_accuracy(self)

    @property
    def best(self) -> float:
        """Highest accuracy."""
        return best_accuracy(self)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of a comparison and their statistics."""

    folder: Path
    contenders: tuple[Variant, ...]
    runs: dict[str, tuple[Run, ...]]
    """Label → one run per seed."""
    wanted_target: float | None = None

    @classmethod
    def open(cls, folder: Path | str, federation: Federation | None = None, *, trust: Trust = False) -> "Comparison":
        """Open the folder of a complete comparison; `trust` lets its runs name code of somebody's own to import."""
        folder = Path(folder)
        plan = read_plan(folder)
        complete = all(recorded(place) for _, _, place in places_of(folder, plan))
        require(complete, f"{folder} is not complete yet; resume with: covey resume {folder}")
        runs: dict[str, tuple[Run, ...]] = {}
        for label, _, place in places_of(folder, plan):
            runs[label] = (*runs.get(label, ()), Run.open(place, federation, trust=trust))
        contenders = tuple(
            Variant(label, method, tuple(one.config for one in runs[label])) for label, method, _ in lines_of(plan)
        )
        return cls(folder, contenders, runs, plan.get("target"))

    @cached_property
    def curves(self) -> dict[str, list[Curve]]:
        """Label → one curve per seed."""
        return {label: [Curve.of(one.metrics) for one in runs] for label, runs in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """Accuracy to which rounds and bytes are counted: as asked, or the highest that every run reached."""
        if self.wanted_target is not None:
            return self.wanted_target
        return min(curve.best for curves in self.curves.values() for curve in curves)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One mapping per variant; `pandas.DataFrame(comparison.rows)` is a table."""
        return [self._row(variant) for variant in self.contenders]

    def frame(self) -> "pandas.DataFrame":
        """Return the table as a pandas data frame."""
        return data_frame(self.rows)

    def _row(self, variant: Variant) -> dict[str, Any]:
        curves = self.curves[variant.label]
        first = self.curves[self.contenders[0].label]
        terminal = _terminals(curves)
        own_terminal, own_rounds = Estimate.of(terminal.tolist()), self._to_target(curves, lambda one: one.evaluations)
        first_rounds = self._to_target(first, lambda one: one.evaluations)
        paired = Estimate.of((terminal - _terminals(first)).tolist())
        is_first = variant is self.contenders[0]
        return {
            "name": variant.label,
            "method": variant.method,
            "seeds": len(curves),
            "terminal_accuracy": own_terminal.mean,
            "terminal_median": own_terminal.median,
            "terminal_low": None if own_terminal.low is None else max(0.0, own_terminal.low),
            "terminal_high": None if own_terminal.high is None else min(1.0, own_terminal.high),
            "best_accuracy": float(np.mean([curve.best for curve in curves])),
            "difference": None if is_first else paired.mean,
            "difference_low": None if is_first else paired.low,
            "difference_high": None if is_first else paired.high,
            "target": self.target,
            "reached": sum(first_evaluation_at(curve, self.target) is not None for curve in curves),
            "rounds_to_target": own_rounds,
            "bytes_to_target": self._to_target(curves, lambda one: one.bytes),
            "seconds_to_target": self._to_target(curves, lambda one: one.clock),
            "speed_up": first_rounds / own_rounds if own_rounds and first_rounds else None,
            "gap_recovered": self._recovered(variant, terminal),
            **{f"client_loss_{figure}": self._client_loss(variant, figure) for figure in ("mean", "variance", "gap")},
        }

    def _client_loss(self, variant: Variant, figure: str) -> float | None:
        """Return the mean, variance or gap of clients' losses over the last 5 % of the rounds, mean over seeds.

        None unless every seed has recorded it.
        """
        ends = []
        for one in self.runs[variant.label]:
            rounds = one.metrics[-1]["round"]
            begin = rounds - terminal_window(rounds)
            last = [row for row in one.metrics if row["round"] > begin and "client_loss" in row]
            if not last:
                return None
            ends.append(np.mean([row["client_loss"][figure] for row in last]))
        return float(np.mean(ends))

    def _to_target(self, curves: Sequence[Curve], cost: Callable[[Curve], FloatArray]) -> float | None:
        """Return the mean rounds, bytes or simulated seconds to the target over seeds; None unless all reach it."""
        places = [first_evaluation_at(curve, self.target) for curve in curves]
        found = [cost(curve)[place] for curve, place in zip(curves, places, strict=True) if place is not None]
        return float(np.mean(found)) if len(found) == len(curves) else None

    def _recovered(self, variant: Variant, terminal: FloatArray) -> float | None:
        """Return the share of the gap between the first method and the IID reference that this one closes."""
        reference = next((other for other in self.contenders if other.method == REFERENCE), None)
        first = self.contenders[0]
        if reference is None or variant is first or variant is reference:
            return None
        base, ceiling = (_terminals(self.curves[one.label]) for one in (first, reference))
        return share_of_gap(terminal, base, ceiling)


def _terminals(curves: Sequence[Curve]) -> FloatArray:
    """Return the terminal accuracy of every curve."""
    return np.array([curve.terminal for curve in curves])
