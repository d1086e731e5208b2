"""What On-Demand FL's stored runs come to: accuracies on targets, gains over FedAvg, errors of estimates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate
from papers.ondemand import (
    BASELINE,
    LATE,
    MANY,
    OURS,
    TARGETS,
    TRUE,
    OnDemandScale,
    Task,
    environment_name,
    variant_of,
)
from papers.ondemand_printed import ALPHAS, Printed
from papers.pages import MISSING, not_yet, spread
from papers.statistics import reached
from papers.store import OWN_MIX, Result, Store

UNDER_WAY = "under way"

_TUNED = (OURS, LATE, TRUE)

NAMES = {"td1": "TD 1", "td2": "TD 2", "td3": "TD 3", OWN_MIX: "Local"}
"""Columns of the tables."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy on one target over the rounds of one run."""

    rounds: FloatArray
    accuracy: FloatArray

    @property
    def peak(self) -> float:
        return float(self.accuracy.max())

    @property
    def end(self) -> float:
        """Mean over the last 5 % of the rounds, at least the last evaluation."""
        last = float(self.rounds[-1])
        return float(self.accuracy[self.rounds > last - max(1.0, 0.05 * last)].mean())

    def rounds_to(self, share: float) -> float:
        """The first evaluated round with so large a share of the peak."""
        return float(self.rounds[np.argmax(self.accuracy >= share * self.accuracy.max() - 1e-9)])


def together(curves: Sequence[Curve]) -> Curve:
    """The mean over several targets at the rounds that all have, so that its peak is at one round for all of them."""
    rounds = sorted(set.intersection(*(set(curve.rounds.tolist()) for curve in curves)))
    values = [curve.accuracy[np.isin(curve.rounds, rounds)] for curve in curves]
    return Curve(np.array(rounds), np.mean(values, axis=0))


ByTarget = dict[int, dict[str, Curve]]
"""Seed → target → curve: what one cell of a table is made of."""


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
        """What the paper says of the data set, and where it says it of this α; None where it has neither."""
        if self.task.printed is None or self.alpha not in ALPHAS:
            return None
        return self.task.printed, ALPHAS.index(self.alpha)

    def printed_accuracy(self, method: str, column: str) -> float | None:
        """Table 2 in percent. The paper has one FMTL; here there are two readings of it."""
        name = "fmtl" if method.startswith("mocha") else method
        if self.printed is None or name not in self.printed[0].accuracy:
            return None
        printed, at = self.printed
        return 100 * printed.accuracy[name][at][TARGETS.index(column)]


class About:
    """What every section needs to know."""

    def __init__(self, scale: OnDemandScale, store: Store, command: str) -> None:
        self.scale = scale
        self.store = store
        self.command = command

    @cached_property
    def places(self) -> list[Place]:
        return [Place(task, alpha) for task, alpha in self.scale.places]

    @cached_property
    def drawn(self) -> list[Place]:
        """Those of the figures: the first α, where results keep the accuracy of every class."""
        return [place for place in self.places if place.alpha == self.scale.alphas[0] and place.task.listed]

    def curves(self, place: Place, method: str, column: str, *, locals_: Sequence[str] = ()) -> ByTarget:
        """What the finished runs of a method come to on the targets of a table's column.

        Local is several targets of methods that serve one at a time, and one for those with a model for each client.
        """
        found: ByTarget = {}
        for target in self.targets(method, column, locals_):
            for seed, result in self.finished(place, method, target).items():
                accuracy = result.accuracy_on(target)
                if accuracy is not None:
                    found.setdefault(seed, {})[target] = Curve(result.evaluations, accuracy)
        return found

    def everyone(self, place: Place) -> ByTarget:
        """What FedAvg's model comes to on the mixes of all clients, on average."""
        finished = self.finished(place, BASELINE, OWN_MIX).items()
        told = {seed: (result, result.accuracy_on(OWN_MIX)) for seed, result in finished}
        return {
            seed: {OWN_MIX: Curve(result.evaluations, found)}
            for seed, (result, found) in told.items()
            if found is not None
        }

    def finished(self, place: Place, method: str, target: str) -> dict[int, Result]:
        """Seed → run at its end, of the runs that tell about a target."""
        line = self.store.line(place.name, method, _variant(method, target))
        planned = place.task.tuned if method in _TUNED else place.task.rounds
        return {seed: result for seed, result in line.items() if reached(result) >= planned}

    def measured(self, place: Place) -> list[Result]:
        """Base runs whose estimates were compared with the truth."""
        return [result for result in self.store.line(place.name, BASELINE).values() if result.measurements]

    def begun(self, place: Place, method: str, columns: Sequence[str] = TARGETS) -> bool:
        """Whether there are runs of a method, at their end or not, that tell about one of these columns."""
        targets = (target for column in columns for target in self.targets(method, column))
        return any(self.store.line(place.name, method, _variant(method, target)) for target in targets)

    def targets(self, method: str, column: str, locals_: Sequence[str] = ()) -> Sequence[str]:
        """The targets of a table's column."""
        return (locals_ or self.scale.local_targets) if column == OWN_MIX and method not in MANY else (column,)

    def missing(self, what: str, group: str, place: Place | None = None) -> str:
        where = "" if place is None else f" --environments {place.name}"
        return not_yet(what, f"{self.command} --only {group}{where}")


def _variant(method: str, target: str) -> str:
    """What sets a run that tells about a target apart: of models on demand there is one for each."""
    return variant_of(target) if method in _TUNED else ""


def points_above_fedavg(about: About, place: Place, method: str, column: str, kind: str) -> Estimate | None:
    """Points above FedAvg, over the seeds and targets that both have."""
    own = about.curves(place, method, column)
    base = about.curves(place, BASELINE, column)
    values = []
    for seed in sorted(set(own) & set(base)):
        common = sorted(set(own[seed]) & set(base[seed]))
        if common:
            ours, theirs = (together([curves[seed][one] for one in common]) for curves in (own, base))
            values.append(getattr(ours, kind) - getattr(theirs, kind))
    return Estimate.of(values) if values else None


def accuracy_cell(about: About, place: Place, method: str, column: str, kind: str) -> str:
    """Accuracy over seeds, the mean over targets first; how many of them, where these are not all.

    FedAvg's model is the same for all clients, so of it Local is over all of them, where that is stored.
    """
    found = about.everyone(place) if (method, column) == (BASELINE, OWN_MIX) else {}
    everyone = bool(found)
    found = found or about.curves(place, method, column)
    if not found:
        return UNDER_WAY if about.begun(place, method, (column,)) else MISSING
    means = [float(getattr(together(list(curves.values())), kind)) for curves in found.values()]
    fewest = min(map(len, found.values()))
    several = column == OWN_MIX and method not in MANY and not everyone
    wanted = len(about.scale.local_targets) if several else 1
    return spread(Estimate.of(means)) + (f" ({fewest} of {wanted} targets)" if fewest < wanted else "")


def after_branch(about: About, place: Place, method: str) -> dict[tuple[int, str], Curve]:
    """Seed and target → curve from the branch on, which is round 0.

    Curves of on-demand models begin with what the base model has on the target.
    """
    task = place.task
    found = {}
    for column in TARGETS:
        base = about.curves(place, BASELINE, column)
        for seed, curves in about.curves(place, method, column).items():
            for target, curve in curves.items():
                before = base.get(seed, {}).get(target)
                if method == BASELINE:
                    inside = (curve.rounds >= task.branch) & (curve.rounds <= task.branch + task.tuned)
                    found[seed, target] = Curve(curve.rounds[inside] - task.branch, curve.accuracy[inside])
                elif before is not None and (before.rounds == task.branch).any():
                    level = before.accuracy[before.rounds == task.branch]
                    found[seed, target] = Curve(np.append(0.0, curve.rounds), np.append(level, curve.accuracy))
    return found


def error_cell(runs: Sequence[Result], estimator: str, at: int) -> str:
    """n·MAE over seeds, the mean over clients first."""
    means = []
    for run in runs:
        for one in run.measurements:
            if one["round"] == at and estimator in one.get("errors", {}):
                errors = [error for error in one["errors"][estimator] if error is not None]
                if errors:
                    means.append(float(np.mean(errors)))
    return spread(Estimate.of(means), "{:.2f}", 1.0) if means else MISSING
