"""Lines of FedDRL's tables: the best accuracy of runs, as the paper reports it, the usual one, and differences."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate
from papers.feddrl import (
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
from papers.lines import Lines
from papers.pages import MISSING
from papers.statistics import Line, common_seeds, numbers, reached, rounds_to, scored
from papers.store import Result, Store

CLUSTERED = ("ce", "cn")


def best(result: Result, at: int | None = None) -> float:
    """The highest accuracy at any evaluation up to round `at`, by default of all."""
    inside = result.evaluations <= (reached(result) if at is None else at)
    return float(result.accuracy[inside].max()) if inside.any() else float(result.accuracy[0])


def usual(result: Result, at: int | None = None) -> float:
    """Mean accuracy over the second half of the rounds up to `at`: that of a model which is taken at any time."""
    inside = _second_half(result, at)
    return float(result.accuracy[inside].mean()) if inside.any() else float(result.accuracy[0])


def uneven(result: Result, at: int | None = None) -> float:
    """Mean variance of clients' losses over the second half of the rounds up to `at`; NaN where there is none."""
    if not result.client_loss:
        return float("nan")
    variance = numbers(result.client_loss["variance"])[_second_half(result, at)]
    return float(np.nanmean(variance)) if np.isfinite(variance).any() else float("nan")


def _second_half(result: Result, at: int | None) -> npt.NDArray[np.bool_]:
    """Which evaluations are in the second half of the rounds up to `at`, by default of all."""
    end = reached(result) if at is None else at
    inside: npt.NDArray[np.bool_] = (result.evaluations <= end) & (result.evaluations > end / 2)
    return inside


Figure = Callable[[Result, int | None], float]
"""Of a run up to a round."""


def paired(line: Line, base: Line, figure: Figure = best) -> Estimate | None:
    """A figure less that of `base`, seed by seed."""
    values = [one - other for one, other in pairs(line, base, figure)]
    return Estimate.of(values) if values else None


def pairs(line: Line, base: Line, figure: Figure) -> list[tuple[float, float]]:
    """A figure and that of `base`, seed by seed, each pair up to the last round that both have come to."""
    found = []
    for seed in common_seeds(line, base):
        at = min(reached(line[seed]), reached(base[seed]))
        found.append((figure(line[seed], at), figure(base[seed], at)))
    return found


class DRLLines(Lines):
    """What every section needs to know."""

    def __init__(self, scale: FedDRLScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES, digits=2)
        self.scale = scale

    def planned(self, method: str) -> int:
        return min(self.rounds, self.scale.single_rounds) if method == REFERENCE else self.rounds

    def lines(self, environment: str, variant: str = "", methods: Sequence[str] = FEDERATED) -> dict[str, Line]:
        """Method → line, of those that have any run."""
        found = {method: self.line(environment, method, variant) for method in methods}
        return {method: line for method, line in found.items() if line}

    def best_of(self, line: Line) -> str:
        if not line:
            return MISSING
        return self.spread(Estimate.of([best(result) for result in line.values()])) + self.so_far(line)

    def usual_of(self, line: Line) -> str:
        return self.spread(Estimate.of([usual(result) for result in line.values()])) + self.so_far(line)

    def above(self, line: Line, base: Line, figure: Figure = best) -> str:
        """Points above another line."""
        pair = paired(line, base, figure) if line and base else None
        return "-" if pair is None else self.points(pair) + (self.so_far(line) or self.so_far(base))


def called(data: Data, clients: int, split: str) -> str:
    """An environment as sentences call it: Fashion-MNIST, 100 clients, CE."""
    return f"{data.title}, {clients} clients, {SPLITS[split]}"


def environments(scale: FedDRLScale, splits: Sequence[str]) -> list[tuple[Data, str, int, str]]:
    """Data, split, number of clients and name of all environments with these splits; shards are of one data set."""
    return [
        (data, split, clients, environment_name(data, split, clients))
        for data in (scale.data if not set(splits) & set(SHARDS) else (scale.hard,))
        for clients in (scale.many, scale.few)
        for split in splits
    ]


def rounds_to_lowest(lines: Mapping[str, Line]) -> tuple[Estimate, dict[str, Estimate]] | None:
    """The lowest of the methods' best accuracies, seed by seed, and each method's rounds to it (Fig. 10)."""
    seeds = sorted(set.intersection(*(set(scored(line)) for line in lines.values()))) if lines else []
    if not seeds or len(lines) < 2:
        return None
    targets, taken = [], {method: list[float]() for method in lines}
    for seed in seeds:
        target = min(best(line[seed]) for line in lines.values())
        targets.append(target)
        for method, line in lines.items():
            rounds = rounds_to(line[seed], target)
            assert rounds is not None
            taken[method].append(float(rounds))
    return Estimate.of(targets), {method: Estimate.of(values) for method, values in taken.items()}


def client_loss(line: Line, figure: str) -> tuple[list[int], FloatArray] | None:
    """A figure of clients' losses at the evaluations that all seeds have, mean over seeds."""
    runs = [result for result in line.values() if result.client_loss]
    if not runs:
        return None
    count = min(len(result.evaluations) for result in runs)
    values = np.stack([numbers(run.client_loss[figure][:count]) for run in runs])
    return runs[0].evaluations[:count].astype(int).tolist(), values.mean(axis=0)


def weights(line: Line, clients: int, cohort: int) -> tuple[Estimate, Estimate] | None:
    """Mean impact factor of a client of the main group and of another one, as shares of an equal one."""
    main = max(1, int(DELTA * clients + 0.5))
    inside, outside = [], []
    for result in line.values():
        if not result.impact:
            continue
        factors = numbers(result.impact) * cohort
        if np.isfinite(factors[:main]).any() and np.isfinite(factors[main:]).any():
            inside.append(float(np.nanmean(factors[:main])))
            outside.append(float(np.nanmean(factors[main:])))
    return (Estimate.of(inside), Estimate.of(outside)) if inside else None
