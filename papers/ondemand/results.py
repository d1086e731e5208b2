"""On-Demand FL's results: accuracy on targets, gains over FedAvg, and errors of estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate, best_accuracy, last_round, terminal_accuracy
from papers.ondemand.printed import ALPHAS, Printed
from papers.ondemand.scales import (
    BASELINE,
    LATE,
    MANY,
    MEAN,
    MEAN_BASE,
    OURS,
    RECIPES,
    SAME,
    TARGETS,
    TRUE,
    OnDemandScale,
    Task,
    environment_name,
    variant_of,
)
from papers.store import OWN_MIX, Result, Store
from papers.wording import MISSING, not_yet, spread

UNDER_WAY = "under way"

TUNED = (OURS, LATE, MEAN, SAME, TRUE)
"""Methods with a run for each target, from the branch of a base run on."""

NAMES = {"td1": "TD 1", "td2": "TD 2", "td3": "TD 3", OWN_MIX: "Local"}
"""Target → its column in the tables."""


@dataclass(frozen=True, eq=False)
class TargetCurve:
    """Accuracy on one target over the rounds of one run."""

    evaluations: FloatArray
    accuracy: FloatArray

    @property
    def peak(self) -> float:
        """Best accuracy."""
        return best_accuracy(self)

    @property
    def end(self) -> float:
        """Mean over the last 5 % of the rounds, at least the last evaluation."""
        return terminal_accuracy(self)

    def at(self, kind: str) -> float:
        """Return the accuracy at the `peak` or at the `end`."""
        return self.peak if kind == "peak" else self.end

    def rounds_to(self, share: float) -> float:
        """Return the first evaluated round with this share of the peak."""
        return float(self.evaluations[np.argmax(self.accuracy >= share * self.accuracy.max() - 1e-9)])


def mean_over_targets(curves: Sequence[TargetCurve]) -> TargetCurve:
    """Return the mean over targets at the rounds that all have; its peak is at one round for all of them."""
    rounds = sorted(set.intersection(*(set(curve.evaluations.tolist()) for curve in curves)))
    values = [curve.accuracy[np.isin(curve.evaluations, rounds)] for curve in curves]
    return TargetCurve(np.array(rounds), np.mean(values, axis=0))


ByTarget = dict[int, dict[str, TargetCurve]]
"""Seed → target → curve: the runs behind one cell."""


@dataclass(frozen=True)
class Place:
    """One data set at one α."""

    task: Task
    alpha: float

    @property
    def name(self) -> str:
        return environment_name(self.task, self.alpha)

    @property
    def title(self) -> str:
        return f"{self.task.title}, α = {self.alpha:g}"

    @property
    def printed(self) -> tuple[Printed, int] | None:
        """The paper's numbers for the data set and the index of this α in them; None if the paper has neither."""
        if self.task.printed is None or self.alpha not in ALPHAS:
            return None
        return self.task.printed, ALPHAS.index(self.alpha)

    def printed_accuracy(self, method: str, column: str) -> float | None:
        """Return the figure of Table 2 in percent. The paper has one FMTL and one FedFomo; here they have forms."""
        name = "fmtl" if method.startswith("mocha") else RECIPES.get(method, method)
        if self.printed is None or name not in self.printed[0].accuracy:
            return None
        printed, at = self.printed
        return 100 * printed.accuracy[name][at][TARGETS.index(column)]


class OnDemandResults:
    """Stored results of On-Demand FL."""

    def __init__(self, scale: OnDemandScale, store: Store, command: str) -> None:
        self.scale = scale
        self.store = store
        self.command = command

    @cached_property
    def places(self) -> list[Place]:
        return [Place(task, alpha) for task, alpha in self.scale.places]

    @cached_property
    def drawn(self) -> list[Place]:
        """Places of the figures: the first α, where results keep the accuracy of every class."""
        return [place for place in self.places if place.alpha == self.scale.alphas[0] and place.task.listed]

    def curves(self, place: Place, method: str, column: str, *, locals_: Sequence[str] = ()) -> ByTarget:
        """Return the curves of a method's complete runs on the targets of a column.

        Local is several targets for methods that serve one at a time, and one for those with a model per client.
        """
        found: ByTarget = {}
        for target in self.targets(method, column, locals_):
            for seed, result in self.complete(place, method, target).items():
                accuracy = result.accuracy_on(target)
                if accuracy is not None:
                    found.setdefault(seed, {})[target] = TargetCurve(result.evaluations, accuracy)
        return found

    def all_clients(self, place: Place) -> ByTarget:
        """Return FedAvg's curves on the mixes of all clients, mean over clients."""
        runs = self.complete(place, BASELINE, OWN_MIX).items()
        found = {seed: (result, result.accuracy_on(OWN_MIX)) for seed, result in runs}
        return {
            seed: {OWN_MIX: TargetCurve(result.evaluations, accuracy)}
            for seed, (result, accuracy) in found.items()
            if accuracy is not None
        }

    def line(self, place: Place, method: str, target: str = OWN_MIX) -> dict[int, Result]:
        """Return seed → run that is scored on a target.

        FedAvg's model does not depend on the predictor beside it, so base runs of the other inference stand in for
        those that are missing or have fewer rounds.
        """
        line = self.store.line(place.name, method, _variant(method, target))
        before = self.store.line(place.name, MEAN_BASE) if method == BASELINE else {}
        longer = {
            seed: run for seed, run in before.items() if seed not in line or last_round(run) > last_round(line[seed])
        }
        return dict(sorted({**line, **longer}.items()))

    def complete(self, place: Place, method: str, target: str) -> dict[int, Result]:
        """Return seed → complete run that is scored on a target."""
        line = self.line(place, method, target)
        planned = place.task.tuned if method in TUNED else place.task.rounds
        return {seed: result for seed, result in line.items() if last_round(result) >= planned}

    def measured(self, place: Place, method: str = BASELINE) -> list[Result]:
        """Return the base runs, of one inference, whose estimates were compared with the truth."""
        return [result for result in self.store.line(place.name, method).values() if result.measurements]

    def compositions(self, place: Place, method: str, column: str) -> list[Mapping[str, Any]]:
        """Return what the runs of a column were composed of."""
        targets = self.targets(method, column)
        found = [result.branch for target in targets for result in self.line(place, method, target).values()]
        return [branch for branch in found if branch]

    def begun(self, place: Place, method: str, columns: Sequence[str] = TARGETS) -> bool:
        """True if any run of a method, complete or not, is scored on one of these columns."""
        targets = (target for column in columns for target in self.targets(method, column))
        return any(self.line(place, method, target) for target in targets)

    def targets(self, method: str, column: str, locals_: Sequence[str] = ()) -> Sequence[str]:
        """Return the targets of a column."""
        return (locals_ or self.scale.local_targets) if column == OWN_MIX and method not in MANY else (column,)

    def missing(self, what: str, group: str, place: Place | None = None) -> str:
        """Say that something was not run, and how to run it."""
        where = "" if place is None else f" --environments {place.name}"
        return not_yet(what, f"{self.command} --only {group}{where}")

    def gain(self, place: Place, method: str, column: str, kind: str, other: str = BASELINE) -> Estimate | None:
        """Return accuracy above another method's at the `peak` or `end`, over the seeds and targets that both have."""
        own, base = (self.curves(place, one, column) for one in (method, other))
        values = []
        for seed in sorted(set(own) & set(base)):
            common = sorted(set(own[seed]) & set(base[seed]))
            if common:
                ours, theirs = (mean_over_targets([curves[seed][one] for one in common]) for curves in (own, base))
                values.append(ours.at(kind) - theirs.at(kind))
        return Estimate.of(values) if values else None

    def accuracy(self, place: Place, method: str, column: str, kind: str, *, everyone: bool = True) -> str:
        """Cell: accuracy over seeds, mean over targets first; with their number if some are missing.

        FedAvg's model is the same for all clients, so its Local is over all of them if that is stored, and over the
        clients that models on demand are made for if not `everyone` is asked for.
        """
        found = self.all_clients(place) if (method, column) == (BASELINE, OWN_MIX) and everyone else {}
        everyone = bool(found)
        found = found or self.curves(place, method, column)
        if not found:
            return UNDER_WAY if self.begun(place, method, (column,)) else MISSING
        means = [mean_over_targets(list(curves.values())).at(kind) for curves in found.values()]
        fewest = min(map(len, found.values()))
        several = column == OWN_MIX and method not in MANY and not everyone
        expected = len(self.scale.local_targets) if several else 1
        return spread(Estimate.of(means)) + (f" ({fewest} of {expected} targets)" if fewest < expected else "")

    def after_branch(self, place: Place, method: str) -> dict[tuple[int, str], TargetCurve]:
        """Return seed and target → curve from the branch on, which is round 0.

        Curves of models on demand start with the base model's accuracy on the target.
        """
        task = place.task
        found = {}
        for column in TARGETS:
            base = self.curves(place, BASELINE, column)
            for seed, curves in self.curves(place, method, column).items():
                for target, curve in curves.items():
                    rounds, accuracy = curve.evaluations, curve.accuracy
                    before = base.get(seed, {}).get(target)
                    if method == BASELINE:
                        inside = (rounds >= task.branch) & (rounds <= task.branch + task.tuned)
                        found[seed, target] = TargetCurve(rounds[inside] - task.branch, accuracy[inside])
                    elif before is not None and (before.evaluations == task.branch).any():
                        level = before.accuracy[before.evaluations == task.branch]
                        found[seed, target] = TargetCurve(np.append(0.0, rounds), np.append(level, accuracy))
        return found


def _variant(method: str, target: str) -> str:
    """Return the variant of the run that is scored on a target: models on demand have one for each."""
    return variant_of(target) if method in TUNED else ""


def mean_error(runs: Sequence[Result], estimator: str, at: int) -> Estimate | None:
    """Return n·MAE over seeds, mean over clients first; None if it was not measured."""
    means = []
    for run in runs:
        for one in run.measurements:
            if one["round"] == at and estimator in one.get("errors", {}):
                errors = [error for error in one["errors"][estimator] if error is not None]
                if errors:
                    means.append(float(np.mean(errors)))
    return Estimate.of(means) if means else None


def error_cell(runs: Sequence[Result], estimator: str, at: int) -> str:
    """Cell: n·MAE over seeds."""
    found = mean_error(runs, estimator, at)
    return MISSING if found is None else spread(found, "{:.2f}", 1.0)
