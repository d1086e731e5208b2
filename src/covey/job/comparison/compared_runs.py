"""A comparison: its runs, their curves, and one row of figures for each variant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.arrays import FloatArray
from covey.core.round_record import privacy_of
from covey.environment.federated_data import Federation
from covey.errors import require
from covey.job.comparison.equal_rounds import over_equal_rounds
from covey.job.comparison.plan import Variant, lines_of, places_of, read_plan
from covey.job.comparison.row_figures import terminal_metrics, terminal_of, within
from covey.job.comparison.row_text import difference, row_lines
from covey.job.notebook_table import notebook_table
from covey.job.pandas_frame import data_frame
from covey.job.runs import Run
from covey.task.learning_task import ACCURACY, Metric
from covey.task.run_metric import main_score, metric_of
from covey.trust import Trust

if TYPE_CHECKING:
    import pandas
from covey.job.comparison.statistics import (
    REFERENCE,
    Estimate,
    best_accuracy,
    first_evaluation_at,
    share_of_gap,
    terminal_accuracy,
    terminal_window,
)


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy of one run, and bytes and simulated seconds so far, at its evaluations."""

    evaluations: FloatArray
    accuracy: FloatArray
    """Or the main metric of another task."""
    bytes: FloatArray
    clock: FloatArray
    sign: float = 1.0
    """-1 if a lower value is better."""

    @classmethod
    def of(cls, metrics: Sequence[Mapping[str, Any]]) -> "Curve":
        """Return the curve of a run's round records."""
        sent = np.cumsum([row["bytes_up"] + row["bytes_down"] for row in metrics], dtype=np.float64)
        scored = [place for place, row in enumerate(metrics) if main_score(row) is not None]
        return cls(
            np.array([metrics[place]["round"] for place in scored], dtype=np.float64),
            np.array([main_score(metrics[place]) for place in scored], dtype=np.float64),
            sent[scored],
            np.array([metrics[place].get("clock", 0.0) for place in scored], dtype=np.float64),
            metric_of(metrics).sign,
        )

    @property
    def terminal(self) -> float:
        """Mean accuracy over the last 5 % of the rounds (at least the last evaluation)."""
        return terminal_accuracy(self)

    @property
    def best(self) -> float:
        """Best accuracy."""
        return best_accuracy(self)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The runs of a comparison and their statistics."""

    folder: Path
    contenders: tuple[Variant, ...]
    runs: dict[str, tuple[Run, ...]]
    """Label → one run per seed."""
    wanted_target: float | None = None
    notes: tuple[str, ...] = ()
    """Sentences on what was left out of the figures."""

    @classmethod
    def open(cls, folder: Path | str, federation: Federation | None = None, *, trust: Trust = False) -> "Comparison":
        """Open the folder of a complete comparison; `trust` lets its runs name code of somebody's own to import."""
        folder = Path(folder)
        plan = read_plan(folder)
        places = [place for _, _, place in places_of(folder, plan)]
        complete = all((place / "config.json").is_file() for place in places)
        opened = {place: Run.open(place, federation, trust=trust) for place in places} if complete else {}
        found, notes = over_equal_rounds(folder, plan, opened)
        complete = complete and all(one.recorded for one in found.values())
        require(complete, f"{folder} is not complete yet; resume with: covey resume {folder}")
        runs: dict[str, tuple[Run, ...]] = {}
        for label, _, place in places_of(folder, plan):
            runs[label] = (*runs.get(label, ()), found[place])
        contenders = tuple(
            Variant(label, method, tuple(one.config for one in runs[label]), varied)
            for label, method, varied in lines_of(plan)
        )
        return cls(folder, contenders, runs, plan.get("target"), notes)

    def __repr__(self) -> str:
        seeds = max(len(runs) for runs in self.runs.values())
        return f"Comparison({', '.join(self.runs)}; {seeds} seed{'s' * (seeds > 1)}; {self.folder})"

    def __str__(self) -> str:
        """A line for each method, with 95 % intervals over seeds."""
        return "\n".join([*row_lines(self.rows, self.metric), *self.notes])

    def _repr_html_(self) -> str:
        metric = self.metric
        rows = []
        for row in self.rows:
            low, high = row["terminal_low"], row["terminal_high"]
            between = "" if low is None else f"{metric.text(low)} to {metric.text(high)}"
            further = "" if row["difference"] is None else difference(row, metric)
            rows.append((row["name"], metric.text(terminal_of(row)), between, further))
        against = f"{'points' if metric.share else metric.label} against {self.against}"
        header = ("method", f"terminal {metric.label}", "95 % interval", against)
        return notebook_table(" ".join([repr(self), *self.notes]), header, rows)

    @cached_property
    def curves(self) -> dict[str, list[Curve]]:
        """Label → one curve per seed."""
        return {label: [Curve.of(one.metrics) for one in runs] for label, runs in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """Accuracy to which rounds and bytes are counted: as asked, or the best that every run reached."""
        if self.wanted_target is not None:
            return self.wanted_target
        sign = self.metric.sign
        return sign * min(sign * curve.best for curves in self.curves.values() for curve in curves)

    @cached_property
    def metric(self) -> Metric:
        """The main metric of the runs' task."""
        return metric_of(row for runs in self.runs.values() for one in runs for row in one.metrics)

    @cached_property
    def crossed(self) -> bool:
        """True if what varies for the first method varies for all: each is compared with it at its settings."""
        first = self.contenders[0]
        others = [one for one in self.contenders if one.method != first.method]
        several = len(self.contenders) - len(others) > 1 and bool(others)
        return several and all(set(first.varied) <= set(one.varied) for one in others)

    @property
    def against(self) -> str:
        """What differences are against."""
        first = self.contenders[0]
        return f"{first.method} at the same settings" if self.crossed else first.label

    def _base(self, variant: Variant, method: str | None = None) -> Variant | None:
        """Return the variant of the first method, or of another, that this one is compared with."""
        asked = method or self.contenders[0].method
        found = (one for one in self.contenders if one.method == asked)
        if self.crossed:
            return next((one for one in found if _agree(one.varied, variant.varied)), None)
        return next(found, None) if method else self.contenders[0]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One mapping per variant; `pandas.DataFrame(comparison.rows)` is a table."""
        return [self._row(variant) for variant in self.contenders]

    def frame(self) -> "pandas.DataFrame":
        """Return the table as a pandas data frame."""
        return data_frame(self.rows)

    def _row(self, variant: Variant) -> dict[str, Any]:
        curves = self.curves[variant.label]
        base = self._base(variant) or self.contenders[0]
        first = self.curves[base.label]
        terminal = _terminals(curves)
        own_terminal, own_rounds = Estimate.of(terminal.tolist()), self._to_target(curves, lambda one: one.evaluations)
        first_rounds = self._to_target(first, lambda one: one.evaluations)
        paired = Estimate.of((terminal - _terminals(first)).tolist())
        is_first, metric = variant is base, self.metric
        figure = "accuracy" if metric == ACCURACY else "score"
        best = float(np.mean([curve.best for curve in curves]))
        told = [final_privacy(run) for run in self.runs[variant.label]]
        privacy = max(told, key=lambda one: one.get("epsilon", 0.0))
        return {
            "name": variant.label,
            "method": variant.method,
            "seeds": len(curves),
            f"terminal_{figure}": own_terminal.mean,
            "terminal_median": own_terminal.median,
            "terminal_low": within(own_terminal.low, metric, max),
            "terminal_high": within(own_terminal.high, metric, min),
            f"best_{figure}": best,
            **terminal_metrics([run.metrics for run in self.runs[variant.label]], metric),
            **({} if metric == ACCURACY else {"metric": metric.name, "better": metric.better}),
            "against": None if is_first else base.label,
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
            **privacy,
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
        reference, first = self._base(variant, REFERENCE), self._base(variant)
        if reference is None or first is None or variant is first or variant is reference:
            return None
        base, ceiling = (self.metric.sign * _terminals(self.curves[one.label]) for one in (first, reference))
        return share_of_gap(self.metric.sign * terminal, base, ceiling)


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if settings that both have are the same."""
    return all(one[key] == other[key] for key in one if key in other)


def final_privacy(run: Run) -> dict[str, Any]:
    """Return ε and δ of a run's models after its last round, and whom they protect; empty if it has none."""
    return privacy_of(run.metrics[-1] if run.metrics else {})


def _terminals(curves: Sequence[Curve]) -> FloatArray:
    """Return the terminal accuracy of every curve."""
    return np.array([curve.terminal for curve in curves])
