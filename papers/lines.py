"""The lines of a page's tables: which runs are behind each, and what they come to, as cells of a table."""

from collections.abc import Mapping, Sequence

from covey.job.comparison.statistics import Estimate
from papers.pages import (
    MISSING,
    Chart,
    Part,
    Series,
    accuracy_series,
    joined,
    not_yet,
    spread,
)
from papers.standing import rounds_text, seeds_text, so_far
from papers.statistics import (
    Line,
    accuracy_at,
    line_to_target,
    mean_curve,
    on_common_seeds,
    paired_terminal,
    reached,
    scored,
    settled,
    terminal,
)
from papers.store import Result, Store

ROUND = "round"
ACCURACY = "test accuracy (%)"


class Lines:
    """Lines of a paper's methods, by what tables call these; `methods` are those and whatever else was run."""

    def __init__(
        self,
        store: Store,
        rounds: int,
        command: str,
        methods: Sequence[str],
        titles: Mapping[str, str],
        digits: int = 1,
    ) -> None:
        self.store = store
        self.rounds = rounds
        self.command = command
        """What makes the page, for whoever misses something in it."""
        self.methods = methods
        self.titles = titles
        self.places = {title: place for place, title in enumerate(titles.values())}
        """Title → colour, the same in every chart."""
        self.digits = digits
        """Of percentages."""
        self.window = max(1, round(0.05 * rounds))
        """Terminal accuracy is the mean over so many of the last rounds."""

    def planned(self, method: str) -> int:
        """Rounds that a run of a method has."""
        return self.rounds

    def title(self, method: str) -> str:
        """What tables call a method."""
        return self.titles.get(method, method)

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Seed → run; those at their end alone where these are two or more."""
        return settled(self.store.line(environment, method, variant), self.planned(method))

    def shown(self, environment: str, always: Sequence[str]) -> list[str]:
        """Methods of an environment's tables: those that are always there, and whatever else was run."""
        return [method for method in self.methods if method in always or self.line(environment, method)]

    def seeds(self, line: Line) -> str:
        """How many there are, and how many others are under way."""
        first = next(iter(line.values()), None)
        if first is None:
            return "0"
        whole = scored(self.store.line(first.environment, first.method, first.variant))
        return seeds_text(line, whole, self.planned(first.method))

    def rounds_run(self, line: Line) -> str:
        return rounds_text(line, self._planned_of(line))

    def _planned_of(self, line: Line) -> int:
        first = next(iter(line.values()), None)
        return self.rounds if first is None else self.planned(first.method)

    def estimate(self, line: Line) -> Estimate:
        """Terminal accuracy over seeds."""
        return Estimate.of([terminal(result, self.window) for result in line.values()])

    def terminal(self, line: Line) -> str:
        return self.spread(self.estimate(line)) + self.so_far(line) if line else MISSING

    def spread(self, estimate: Estimate) -> str:
        """An accuracy over seeds."""
        return spread(estimate, f"{{:.{self.digits}f}}")

    def points(self, difference: Estimate) -> str:
        """A difference of accuracies over seeds."""
        return spread(difference, f"{{:+.{self.digits}f}}")

    def so_far(self, line: Line) -> str:
        """What to add to a figure of runs that are not at their end."""
        return so_far(line, self._planned_of(line))

    def difference(self, line: Line, base: Line) -> str:
        """Points of terminal accuracy above another line, seed by seed."""
        pair = paired_terminal(line, base, self.window)
        return "-" if pair is None or line is base else self.points(pair.difference)

    def compared(self, line: Line, base: Line) -> list[str]:
        """Cells: terminal accuracy, points above another line, seeds and rounds."""
        return [self.terminal(line), self.difference(line, base), self.seeds(line), self.rounds_run(line)]

    def at_rounds(self, line: Line, rounds: Sequence[int]) -> list[str]:
        """Accuracy at some rounds, each over the runs that have come so far."""
        cells = []
        for at in rounds:
            there = [value for result in line.values() if (value := accuracy_at(result, at)) is not None]
            cells.append(self.spread(Estimate.of(there)) if there else (MISSING if not line else "-"))
        return cells

    def to_target(self, line: Line, target: float) -> str:
        """Rounds to an accuracy, or how many seeds have come to it."""
        if not line:
            return MISSING
        own = line_to_target(line, target)
        if own.rounds is not None:
            return spread(own.rounds, "{:.0f}", 1.0)
        ended = min(reached(result) for result in line.values()) >= self._planned_of(line)
        if own.reached == 0:
            return "not reached" if ended else "not reached so far"
        return f"{own.reached} of {own.seeds} seeds" + ("" if ended else " so far")

    def missing(self, what: str, group: str) -> str:
        return not_yet(what, f"{self.command} --only {group}")

    def curves(self, name: str, title: str, lines: Mapping[str, Line], missing: str, smooth: int = 1) -> list[Part]:
        """A chart of accuracy over rounds, and what is missing in it; `missing` where there is nothing at all."""
        there = {label: line for label, line in lines.items() if line}
        if not there:
            return [missing]
        series = [
            accuracy_series(label, *mean_curve(line, smooth=smooth), self.places.get(label))
            for label, line in there.items()
        ]
        parts: list[Part] = [Chart(name, title, ROUND, ACCURACY, series)]
        absent = [label for label in lines if label not in there]
        if absent:
            parts.append(f"Of {joined(absent)} there is no run yet.")
        return parts

    def over_values(
        self, environment: str, method: str, variants: Mapping[float, str], baseline: str
    ) -> tuple[dict[float, Line], Line]:
        """A method's lines by the value of a setting, and that of a baseline, over the seeds that all of them have."""
        found: dict[float | None, Line] = {
            value: self.line(environment, method, own) for value, own in variants.items()
        }
        common = on_common_seeds({**found, None: self.line(environment, baseline)})
        return {value: common[value] for value in variants}, common[None]

    def by_value(self, lines: Mapping[float, Line], method: str, base: Line, baseline: str) -> list[Series]:
        """Terminal accuracy of a method over values of a setting, and the level of `base`; [] of fewer than two."""
        there = {value: self.estimate(line) for value, line in lines.items() if line}
        if len(there) < 2:
            return []
        own, other = self.title(method), self.title(baseline)
        series = [accuracy_series(own, list(there), list(there.values()), self.places[own])]
        if base:
            level = 100 * self.estimate(base).mean
            series.append(Series(other, [min(there), max(there)], [level, level], place=self.places[other]))
        return series
