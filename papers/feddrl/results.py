"""FedDRL's results as cells: best accuracy of runs, as in the paper, accuracy at any time, and differences."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from covey.arrays import FloatArray
from covey.job.comparison.statistics import (
    Estimate,
    Figure,
    best_accuracy,
    common_seeds,
    last_round,
    paired_difference,
    rounds_to_target,
)
from papers.curves import Line, numbers
from papers.feddrl.scales import (
    DELTA,
    FEDERATED,
    REFERENCE,
    SHARDS,
    SPLITS,
    TITLES,
    Data,
    FedDRLScale,
    environment_name,
)
from papers.results import Results
from papers.store import Result, Store
from papers.wording import MISSING

CLUSTERED = ("ce", "cn")


def usual_accuracy(result: Result, until: int | None = None) -> float:
    """Return the mean accuracy over the second half of the rounds up to `until`: of a model taken at any time."""
    inside = _second_half(result, until)
    return float(result.accuracy[inside].mean()) if inside.any() else float(result.accuracy[0])


def loss_variance(result: Result, until: int | None = None) -> float:
    """Return the mean variance of clients' losses over the second half of the rounds up to `until`; NaN if unknown."""
    return _client_losses(result, "variance", until)


def loss_mean(result: Result, until: int | None = None) -> float:
    """Return the mean of clients' losses over the second half of the rounds up to `until`; NaN if unknown."""
    return _client_losses(result, "mean", until)


def with_losses(line: Line) -> Line:
    """Return the runs of a line whose clients reported their losses."""
    return {seed: run for seed, run in line.items() if np.isfinite(loss_variance(run))}


def _client_losses(result: Result, figure: str, until: int | None) -> float:
    if not result.client_loss:
        return float("nan")
    values = numbers(result.client_loss[figure])[_second_half(result, until)]
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _second_half(result: Result, until: int | None) -> npt.NDArray[np.bool_]:
    """Return which evaluations are in the second half of the rounds up to `until` (default: of all)."""
    end = last_round(result) if until is None else until
    inside: npt.NDArray[np.bool_] = (result.evaluations <= end) & (result.evaluations > end / 2)
    return inside


class FedDRLResults(Results):
    """Stored results of FedDRL."""

    def __init__(self, scale: FedDRLScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES, digits=2)
        self.scale = scale

    def planned(self, method: str) -> int:
        return min(self.rounds, self.scale.single_rounds) if method == REFERENCE else self.rounds

    def lines(self, environment: str, variant: str = "", methods: Sequence[str] = FEDERATED) -> dict[str, Line]:
        """Return method → line, of the methods with any run."""
        found = {method: self.line(environment, method, variant) for method in methods}
        return {method: line for method, line in found.items() if line}

    def best(self, line: Line) -> str:
        """Cell: best accuracy."""
        if not line:
            return MISSING
        return self.spread(Estimate.of([best_accuracy(result) for result in line.values()])) + self.so_far(line)

    def usual(self, line: Line) -> str:
        """Cell: accuracy at any time."""
        return self.spread(Estimate.of([usual_accuracy(result) for result in line.values()])) + self.so_far(line)

    def above(self, line: Line, base: Line, figure: Figure[Result] = best_accuracy) -> str:
        """Cell: points above another line."""
        gain = paired_difference(figure, line, base) if line and base else None
        return "-" if gain is None else self.points(gain) + (self.so_far(line) or self.so_far(base))


def environment_title(data: Data, clients: int, split: str) -> str:
    """Return an environment's name in sentences: Fashion-MNIST, 100 clients, CE."""
    return f"{data.title}, {clients} clients, {SPLITS[split]}"


def environments(scale: FedDRLScale, splits: Sequence[str]) -> list[tuple[Data, str, int, str]]:
    """Return data, split, number of clients and name of all environments with these splits; shards: one data set."""
    return [
        (data, split, clients, environment_name(data, split, clients))
        for data in (scale.data if not set(splits) & set(SHARDS) else (scale.hard,))
        for clients in (scale.many, scale.few)
        for split in splits
    ]


def rounds_to_lowest(lines: Mapping[str, Line]) -> tuple[Estimate, dict[str, Estimate]] | None:
    """Return the lowest of the methods' best accuracies, seed by seed, and each method's rounds to it (Fig. 10)."""
    seeds = common_seeds(*lines.values())
    if not seeds or len(lines) < 2:
        return None
    targets, taken = [], {method: list[float]() for method in lines}
    for seed in seeds:
        target = min(best_accuracy(line[seed]) for line in lines.values())
        targets.append(target)
        for method, line in lines.items():
            rounds = rounds_to_target(line[seed], target)
            assert rounds is not None
            taken[method].append(float(rounds))
    return Estimate.of(targets), {method: Estimate.of(values) for method, values in taken.items()}


def client_loss(line: Line, figure: str) -> tuple[list[int], FloatArray] | None:
    """Return a figure of clients' losses at the evaluations that all seeds have, mean over seeds."""
    runs = [result for result in line.values() if result.client_loss]
    if not runs:
        return None
    count = min(len(result.evaluations) for result in runs)
    values = np.stack([numbers(run.client_loss[figure][:count]) for run in runs])
    return runs[0].evaluations[:count].astype(int).tolist(), values.mean(axis=0)


def group_weights(line: Line, clients: int, cohort: int) -> tuple[Estimate, Estimate] | None:
    """Return the mean impact factor of clients in the main group and of the others, as multiples of an equal share."""
    main = max(1, int(DELTA * clients + 0.5))
    inside, outside = [], []
    for result in line.values():
        if not result.impact:
            continue
        factors = numbers(result.impact) * cohort
        # The environment's first clients are the main group.
        first = result.client_order < main
        if np.isfinite(factors[first]).any() and np.isfinite(factors[~first]).any():
            inside.append(float(np.nanmean(factors[first])))
            outside.append(float(np.nanmean(factors[~first])))
    return (Estimate.of(inside), Estimate.of(outside)) if inside else None
