"""Stored results as cells of tables: the runs behind a line, and its figures over seeds."""

from collections.abc import Mapping, Sequence

from covey.job.comparison.statistics import (
    Estimate,
    accuracy_at,
    evaluated_runs,
    last_round,
    line_rounds_to_target,
    paired_difference,
    terminal_accuracy,
)
from papers.curves import Line, mean_curve, on_common_seeds, shown_runs
from papers.page import ACCURACY, ROUND, Chart, Part, Series, accuracy_series
from papers.store import Result, Store
from papers.wording import MISSING, joined, not_yet, spread


class Results:
    """Stored results of a paper at one scale, by the names that tables use."""

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
        """Command that makes the runs."""
        self.methods = methods
        """The paper's methods and any others that were run."""
        self.titles = titles
        """Method → its name in tables."""
        self.places = {title: place for place, title in enumerate(titles.values())}
        """Title → index of its colour, the same in every chart."""
        self.digits = digits
        """Decimals of percentages."""
        self.window = max(1, round(0.05 * rounds))
        """Terminal accuracy is the mean over this many of the last rounds."""

    def planned(self, method: str) -> int:
        """Return the planned rounds of a method's runs."""
        return self.rounds

    def planned_rounds(self, environment: str, method: str) -> int:
        """Return the planned rounds of a method's runs in an environment."""
        return self.planned(method)

    def title(self, method: str) -> str:
        """Return a method's name in tables."""
        return self.titles.get(method, method)

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Return the shown runs of a line: the complete ones if there are two or more, else all."""
        return shown_runs(self.store.line(environment, method, variant), self.planned_rounds(environment, method))

    def shown(self, environment: str, always: Sequence[str]) -> list[str]:
        """Return the methods of an environment's tables: those always shown, and any others that were run."""
        return [method for method in self.methods if method in always or self.line(environment, method)]

    def accuracy(self, run: Result, until: int | None = None) -> float:
        """Return the terminal accuracy of a run, up to round `until` if given."""
        return terminal_accuracy(run, until, self.window)

    def estimate(self, line: Line) -> Estimate:
        """Return terminal accuracy over seeds."""
        return Estimate.of([self.accuracy(run) for run in line.values()])

    def gain(self, line: Line, base: Line) -> Estimate | None:
        """Return terminal accuracy of `line` less that of `base`, seed by seed; None without common seeds."""
        return paired_difference(self.accuracy, line, base)

    def seeds(self, line: Line) -> str:
        """Cell: number of seeds, and how many others are unfinished."""
        first = next(iter(line.values()), None)
        if first is None:
            return "0"
        everything = evaluated_runs(self.store.line(first.environment, first.method, first.variant))
        return seeds_text(line, everything, self.planned_rounds(first.environment, first.method))

    def rounds_run(self, line: Line) -> str:
        """Cell: rounds of a line's runs."""
        return rounds_text(line, self._planned_of(line))

    def so_far(self, line: Line) -> str:
        """Return the mark of a figure from unfinished runs."""
        return so_far(line, self._planned_of(line))

    def _planned_of(self, line: Line) -> int:
        first = next(iter(line.values()), None)
        return self.rounds if first is None else self.planned_rounds(first.environment, first.method)

    def terminal(self, line: Line) -> str:
        """Cell: terminal accuracy."""
        return self.spread(self.estimate(line)) + self.so_far(line) if line else MISSING

    def spread(self, estimate: Estimate) -> str:
        """Format an accuracy over seeds."""
        return spread(estimate, f"{{:.{self.digits}f}}")

    def points(self, difference: Estimate) -> str:
        """Format a difference of accuracies over seeds."""
        return spread(difference, f"{{:+.{self.digits}f}}")

    def difference(self, line: Line, base: Line) -> str:
        """Cell: points of terminal accuracy above another line, seed by seed."""
        gain = self.gain(line, base)
        return "-" if gain is None or line is base else self.points(gain)

    def compared(self, line: Line, base: Line) -> list[str]:
        """Cells: terminal accuracy, points above another line, seeds and rounds."""
        return [self.terminal(line), self.difference(line, base), self.seeds(line), self.rounds_run(line)]

    def at_rounds(self, line: Line, rounds: Sequence[int]) -> list[str]:
        """Cells: accuracy at some rounds, each over the runs that have reached it."""
        cells = []
        for at in rounds:
            found = [value for run in line.values() if (value := accuracy_at(run, at)) is not None]
            cells.append(self.spread(Estimate.of(found)) if found else (MISSING if not line else "-"))
        return cells

    def to_target(self, line: Line, target: float) -> str:
        """Cell: rounds to an accuracy, or how many seeds have reached it."""
        if not line:
            return MISSING
        own = line_rounds_to_target(line, target)
        if own.rounds is not None:
            return spread(own.rounds, "{:.0f}", 1.0)
        complete = min(last_round(run) for run in line.values()) >= self._planned_of(line)
        if own.reached == 0:
            return "not reached" if complete else "not reached so far"
        return f"{own.reached} of {own.seeds} seeds" + ("" if complete else " so far")

    def missing(self, what: str, group: str) -> str:
        """Say that something was not run, and how to run it."""
        return not_yet(what, f"{self.command} --only {group}")

    def curves(self, name: str, title: str, lines: Mapping[str, Line], missing: str, smooth: int = 1) -> list[Part]:
        """Return a chart of accuracy over rounds and a note on lines without runs; `missing` if no line has any."""
        found = {label: line for label, line in lines.items() if line}
        if not found:
            return [missing]
        series = [
            accuracy_series(label, *mean_curve(line, smooth=smooth), self.places.get(label))
            for label, line in found.items()
        ]
        parts: list[Part] = [Chart(name, title, ROUND, ACCURACY, series)]
        absent = [label for label in lines if label not in found]
        if absent:
            parts.append(f"No run yet of {joined(absent)}.")
        return parts

    def over_values(
        self, environment: str, method: str, variants: Mapping[float, str], baseline: str
    ) -> tuple[dict[float, Line], Line]:
        """Return a method's lines by the value of a setting, and a baseline's, all over their common seeds."""
        found: dict[float | None, Line] = {
            value: self.line(environment, method, own) for value, own in variants.items()
        }
        common = on_common_seeds({**found, None: self.line(environment, baseline)})
        return {value: common[value] for value in variants}, common[None]

    def by_value(self, lines: Mapping[float, Line], method: str, base: Line, baseline: str) -> list[Series]:
        """Return terminal accuracy over values of a setting, and the level of `base`; [] for fewer than two values."""
        found = {value: self.estimate(line) for value, line in lines.items() if line}
        if len(found) < 2:
            return []
        own, other = self.title(method), self.title(baseline)
        series = [accuracy_series(own, list(found), list(found.values()), self.places[own])]
        if base:
            level = 100 * self.estimate(base).mean
            series.append(Series(other, [min(found), max(found)], [level, level], place=self.places[other]))
        return series


def seeds_text(line: Line, everything: Line, planned: int) -> str:
    """Return the number of seeds: `5`, or `2 (3 under way)` if other runs of the line are unfinished."""
    others = [run for seed, run in everything.items() if seed not in line and last_round(run) < planned]
    return str(len(evaluated_runs(line))) + (f" ({len(others)} under way)" if others else "")


def rounds_text(line: Line, planned: int) -> str:
    """Return the rounds of a line's runs: `1,000`, `300 of 1,000` or `300 to 450 of 1,000`."""
    runs = evaluated_runs(line).values()
    if not runs:
        return "0"
    low, high = min(map(last_round, runs)), max(map(last_round, runs))
    if low >= planned:
        return f"{low:,}"
    return f"{low:,} of {planned:,}" if low == high else f"{low:,} to {high:,} of {planned:,}"


def so_far(line: Line, planned: int) -> str:
    """Return " so far" unless all runs of a line are complete."""
    runs = evaluated_runs(line).values()
    return "" if runs and min(map(last_round, runs)) >= planned else " so far"
