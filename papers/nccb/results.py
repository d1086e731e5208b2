"""NCCB's results as cells: improvement over random selection, and rounds to its best accuracy."""

from collections.abc import Mapping, Sequence

import numpy as np

from covey.job.comparison.statistics import (
    Estimate,
    best_accuracy,
    common_seeds,
    last_round,
    paired_difference,
    paired_values,
    rounds_to_target,
    terminal_accuracy,
)
from papers.curves import Line, numbers
from papers.nccb.scales import TITLES, NCCBScale
from papers.results import Results
from papers.store import Result, Store
from papers.wording import spread


class NCCBResults(Results):
    """Stored results of NCCB."""

    def __init__(self, scale: NCCBScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES, digits=2)
        self.scale = scale
        self._uneven = {one.name: one.rounds for one in scale.uneven}

    def planned_rounds(self, environment: str, method: str) -> int:
        return self._uneven.get(environment, self.rounds)

    def accuracy(self, run: Result, until: int | None = None) -> float:
        """Return terminal accuracy, over the last 5 % of the rounds planned in the run's environment."""
        return terminal_accuracy(run, until, max(1, round(0.05 * self.planned_rounds(run.environment, run.method))))

    def loss_difference(self, line: Line, base: Line) -> str:
        """Cell: terminal test loss above another line's, seed by seed."""
        found = self.loss_gain(line, base)
        return "-" if found is None else spread(found, "{:+.3f}", 1.0)

    def loss_gain(self, line: Line, base: Line) -> Estimate | None:
        """Return the terminal test loss of `line` less that of `base`, seed by seed; None without common seeds."""
        return paired_difference(self._loss, line, base)

    def _loss(self, run: Result, until: int | None = None) -> float:
        """Return the mean test loss over the rounds of terminal accuracy; NaN where a loss was not finite."""
        last = last_round(run) if until is None else until
        window = max(1, round(0.05 * self.planned_rounds(run.environment, run.method)))
        inside = (run.evaluations <= last) & (run.evaluations > last - window)
        return float(numbers(run.evaluated["loss"])[inside].mean())

    def loss_ratio(self, line: Line) -> Estimate | None:
        """Return the loss of cohorts over that of all clients: a mean over the rounds of a run, then over seeds."""
        ratios = [_loss_ratio(result.regret) for result in line.values() if result.regret]
        return Estimate.of(ratios) if ratios else None

    def regret(self, line: Line, base: Line) -> Estimate | None:
        """Return the cumulative regret over that of `base` at the last round common to both, seed by seed."""
        shares = []
        for seed in common_seeds(line, base):
            mine, theirs = (one[seed].regret.get("regret", []) for one in (line, base))
            at = min(len(mine), len(theirs)) - 1
            if at >= 0 and theirs[at]:
                shares.append(float(mine[at] or 0.0) / float(theirs[at] or 1.0))
        return Estimate.of(shares) if shares else None

    def improvement(self, line: Line, base: Line) -> float | None:
        """Return terminal accuracy above `base` as a share of it, in percent: a ratio of means over common seeds."""
        own, other = paired_values(self.accuracy, line, base)
        if len(own) == 0 or other.mean() <= 0:
            return None
        return 100 * (float(own.mean()) / float(other.mean()) - 1)


def _loss_ratio(columns: Mapping[str, Sequence[float | None]]) -> float:
    pairs = zip(columns["cohort_loss"], columns["population_loss"], strict=True)
    return float(np.mean([own / everyone for own, everyone in pairs if own is not None and everyone]))


def rounds_to_best(line: Line, base: Line) -> list[tuple[int | None, int]]:
    """Return the rounds of a line and of `base` to the latter's best accuracy, seed by seed."""
    found = []
    for seed in common_seeds(line, base):
        best = best_accuracy(base[seed])
        before = rounds_to_target(base[seed], best)
        assert before is not None
        found.append((rounds_to_target(line[seed], best), before))
    return found


def rounds_saved(pairs: Sequence[tuple[int | None, int]]) -> float | None:
    """Return rounds saved in percent, a ratio of means; None unless all seeds reach the accuracy."""
    found = [(own, before) for own, before in pairs if own is not None]
    if not found or len(found) < len(pairs):
        return None
    own, before = (float(np.mean(column)) for column in zip(*found, strict=True))
    return 100 * (1 - own / before)
