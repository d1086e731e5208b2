"""Results of the comparison as cells: the average over rounds, and the raw model of the same run, which is the method
as printed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate, best_accuracy, last_round, paired_difference, rounds_to_target
from papers.curves import Line
from papers.grid import ANY
from papers.own.lines import TUNED, TUNED_FROM_OURS
from papers.own.scales import AVERAGED, OURS, PLUS, REFERENCE, SKEWED, TITLES, OwnScale
from papers.results import Results
from papers.store import Result, Store


@dataclass(frozen=True)
class Raw:
    """A run's model before averaging over rounds, as `Evaluated`."""

    evaluations: FloatArray
    accuracy: FloatArray


def raw_of(run: Result) -> Raw:
    """Return a run's model before averaging; its only model if none is averaged."""
    accuracy = np.array(run.raw_accuracy, dtype=np.float64) if run.raw_accuracy else run.accuracy
    return Raw(run.evaluations, accuracy)


class OwnResults(Results):
    """Stored results of the comparison."""

    def __init__(self, scale: OwnScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES)
        self.scale = scale

    def planned_rounds(self, environment: str, method: str) -> int:
        task = self.scale.task
        if environment == "ondemand":
            halves = method in (OURS, TUNED_FROM_OURS)
            whole = task.tuned if method in (TUNED, TUNED_FROM_OURS) else task.branch
            return max(1, whole // 2) if halves else whole
        if environment in {corpus.name for corpus in self.scale.texts}:
            return self.scale.text.rounds
        return self.rounds

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Return the shown runs of a line; IID has one line for FedACS's environments."""
        one_for_all = method == REFERENCE and environment in SKEWED
        return super().line(ANY if one_for_all else environment, method, variant)

    def raw(self, run: Result, until: int | None = None) -> float:
        """Return the terminal accuracy of the model before averaging."""
        rounds, accuracy = run.evaluations, raw_of(run).accuracy
        inside = rounds <= (last_round(run) if until is None else until)
        last = rounds[inside][-1] if inside.any() else rounds[0]
        return float(accuracy[(rounds <= last) & (rounds > last - self.window)].mean())

    def late(self, run: Result, until: int | None = None) -> float:
        """Return the mean accuracy over the second half of the rounds."""
        return _second_half(run.evaluations, run.accuracy, until)

    def raw_late(self, run: Result, until: int | None = None) -> float:
        """Return the same of the model before averaging."""
        return _second_half(run.evaluations, raw_of(run).accuracy, until)

    def against(
        self, environment: str, method: str, variant: str, ours: Line | None = None, *, late: bool = False
    ) -> Estimate | None:
        """Return the points of the method above another line, seed by seed; `late`: over the second half."""
        figure = self.late if late else self.accuracy
        own = self.line(environment, OURS) if ours is None else ours
        return paired_difference(figure, own, self.line(environment, method, variant))

    def against_printed(self, environment: str, method: str, *, late: bool = False) -> Estimate | None:
        """Return the points of the method above another one as printed, which is the raw model of its own run."""
        own, other = self.line(environment, OURS), self.line(environment, method, AVERAGED)
        seeds = sorted(set(own) & set(other))
        pairs = []
        for seed in seeds:
            until = min(last_round(own[seed]), last_round(other[seed]))
            mine = (self.late if late else self.accuracy)(own[seed], until)
            theirs = (self.raw_late if late else self.raw)(other[seed], until)
            pairs.append(mine - theirs)
        return Estimate.of(pairs) if pairs else None

    def best_against(self, environment: str, method: str, variant: str) -> Estimate | None:
        """Return the points of the method above another line by the best evaluation."""
        return paired_difference(best_accuracy, self.line(environment, OURS), self.line(environment, method, variant))

    def rounds_against_random(self, environment: str, method: str, variant: str) -> Estimate | None:
        """Return the rounds to the final accuracy of random selection as printed, over the rounds that it had."""
        base, line = self.line(environment, "fedavg", AVERAGED), self.line(environment, method, variant)
        shares = []
        for seed in sorted(set(base) & set(line)):
            target = self.raw(base[seed])
            own, whole = rounds_to_target(line[seed], target), last_round(base[seed])
            shares.append((whole if own is None else own) / whole)
        return Estimate.of(shares) if shares else None


def label(method: str, variant: str) -> str:
    """Return a line's name in tables."""
    name = TITLES.get(method, method)
    for beginning, words in ((PLUS, "momentum, averaged"), (AVERAGED, "averaged")):
        if variant.startswith(beginning):
            rest = variant.removeprefix(beginning).strip("-")
            name += f" + {words}"
            return name + (f" + {_words(rest)}" if rest else "")
    return name + (f", {_words(variant)}" if variant else "")


def _words(variant: str) -> str:
    return {"fedcm": "FedCM's correction", "updates": "shares from updates", "sampled": "sampled"}.get(variant, variant)


def _second_half(rounds: FloatArray, accuracy: FloatArray, until: int | None) -> float:
    last = rounds[-1] if until is None else min(rounds[-1], until)
    inside = (rounds > last / 2) & (rounds <= last)
    return float(accuracy[inside].mean()) if inside.any() else float(accuracy[0])
