"""What can be said of a comparison: methods x settings x seeds over the same federations.

Methods of one seed share the federation and the initialisation, so differences are taken seed by
seed before they are averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from covey.arrays import FloatArray
from covey.environment.federated_data import Federation
from covey.errors import require
from covey.job.comparison.plan import Contender, lines_of, places_of, read_plan, recorded
from covey.job.runs import Run, data_frame

if TYPE_CHECKING:
    import pandas

TERMINAL_SHARE = 0.05
"""Terminal accuracy is the mean over this last share of the rounds."""

REFERENCE = "iid"
"""The method whose accuracy is what a federation without skew would reach."""


@dataclass(frozen=True)
class Estimate:
    """Mean, median and 95 % interval (Student's t) of one figure over seeds."""

    mean: float
    median: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        sample = np.asarray(values, dtype=np.float64)
        mean, median = float(sample.mean()), float(np.median(sample))
        if len(sample) < 2:
            return cls(mean, median, None, None)
        half = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
        return cls(mean, median, mean - half, mean + half)


@dataclass(frozen=True, eq=False)
class Curve:
    """What one run's evaluations say: rounds, accuracy, and bytes and simulated seconds so far."""

    rounds: FloatArray
    accuracy: FloatArray
    bytes: FloatArray
    clock: FloatArray

    @classmethod
    def of(cls, metrics: Sequence[Mapping[str, Any]]) -> "Curve":
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
        return float(self.accuracy[self.rounds > _before_the_end(self.rounds[-1])].mean())

    @property
    def best(self) -> float:
        return float(self.accuracy.max())

    def first_at(self, target: float) -> int | None:
        """Position of the first evaluation that reaches `target`."""
        reached = np.flatnonzero(self.accuracy >= target)
        return int(reached[0]) if len(reached) else None


def _before_the_end(last: float) -> float:
    """The round after which the last 5 % of `last` rounds begin, at least one."""
    return last - max(1.0, TERMINAL_SHARE * last)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of a comparison, read."""

    folder: Path
    contenders: tuple[Contender, ...]
    runs: dict[str, tuple[Run, ...]]
    """Label → one run per seed."""
    wanted_target: float | None = None

    @classmethod
    def open(cls, folder: Path | str, federation: Federation | None = None) -> "Comparison":
        """A comparison that is complete, from its folder."""
        folder = Path(folder)
        plan = read_plan(folder)
        complete = all(recorded(place) for _, _, place in places_of(folder, plan))
        require(complete, f"{folder} is not complete yet; go on with: covey resume {folder}")
        runs: dict[str, tuple[Run, ...]] = {}
        for label, _, place in places_of(folder, plan):
            runs[label] = (*runs.get(label, ()), Run.open(place, federation))
        contenders = tuple(
            Contender(label, method, tuple(one.config for one in runs[label])) for label, method, _ in lines_of(plan)
        )
        return cls(folder, contenders, runs, plan.get("target"))

    @cached_property
    def curves(self) -> dict[str, list[Curve]]:
        return {label: [Curve.of(one.metrics) for one in runs] for label, runs in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """The accuracy that rounds and bytes are counted to: as asked, or the highest that every run reached."""
        if self.wanted_target is not None:
            return self.wanted_target
        return min(curve.best for curves in self.curves.values() for curve in curves)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One mapping per contender; `pandas.DataFrame(comparison.rows)` is a table."""
        return [self._row(contender) for contender in self.contenders]

    def frame(self) -> "pandas.DataFrame":
        """The table as a pandas data frame."""
        return data_frame(self.rows)

    def _row(self, contender: Contender) -> dict[str, Any]:
        curves = self.curves[contender.label]
        first = self.curves[self.contenders[0].label]
        terminal = np.array([curve.terminal for curve in curves])
        difference = terminal - np.array([curve.terminal for curve in first])
        own_terminal, own_rounds = Estimate.of(terminal.tolist()), self._to_target(curves, "rounds")
        first_rounds = self._to_target(first, "rounds")
        paired = Estimate.of(difference.tolist())
        is_first = contender is self.contenders[0]
        return {
            "name": contender.label,
            "method": contender.method,
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
            "reached": sum(curve.first_at(self.target) is not None for curve in curves),
            "rounds_to_target": own_rounds,
            "bytes_to_target": self._to_target(curves, "bytes"),
            "seconds_to_target": self._to_target(curves, "clock"),
            "speed_up": first_rounds / own_rounds if own_rounds and first_rounds else None,
            "gap_recovered": self._recovered(contender, terminal),
            **{f"client_loss_{figure}": self._served(contender, figure) for figure in ("mean", "variance", "gap")},
        }

    def _served(self, contender: Contender, figure: str) -> float | None:
        """Mean, variance or gap of clients' losses, mean over the last 5 % of the rounds and seeds, where all say."""
        ends = []
        for one in self.runs[contender.label]:
            begin = _before_the_end(one.metrics[-1]["round"])
            last = [row for row in one.metrics if row["round"] > begin and "client_loss" in row]
            if not last:
                return None
            ends.append(np.mean([row["client_loss"][figure] for row in last]))
        return float(np.mean(ends))

    def _to_target(self, curves: Sequence[Curve], figure: str) -> float | None:
        """Mean rounds, bytes or simulated seconds to the target over seeds, where all seeds reached it."""
        places = [curve.first_at(self.target) for curve in curves]
        if any(place is None for place in places):
            return None
        return float(np.mean([getattr(curve, figure)[place] for curve, place in zip(curves, places, strict=True)]))

    def _recovered(self, contender: Contender, terminal: FloatArray) -> float | None:
        """Share of the gap between the first method and the IID reference that this one closes, means over seeds."""
        reference = next((other for other in self.contenders if other.method == REFERENCE), None)
        first = self.contenders[0]
        if reference is None or contender is first or contender is reference:
            return None
        base = np.array([curve.terminal for curve in self.curves[first.label]])
        ceiling = np.array([curve.terminal for curve in self.curves[reference.label]])
        gap = Estimate.of((ceiling - base).tolist())
        # A gap that may be none at all has no shares.
        if gap.mean <= 0 or (gap.low is not None and gap.low <= 0):
            return None
        return float((terminal - base).mean()) / gap.mean
