"""The lines of a page's tables: which runs are behind each, and what they come to, as cells of a table."""

from collections.abc import Mapping

from covey.comparison import Estimate
from covey.experiments.pages import (
    MISSING,
    Chart,
    Table,
    accuracy_series,
    joined,
    not_yet,
    rounds_text,
    seeds_text,
    so_far,
    spread,
)
from covey.experiments.statistics import (
    Line,
    line_to_target,
    mean_curve,
    paired_terminal,
    reached,
    scored,
    settled,
    terminal,
)
from covey.experiments.store import Result, Store

Part = str | Table | Chart

ROUND = "round"
ACCURACY = "test accuracy (%)"


class Lines:
    """Lines of runs that all have the same number of rounds to go."""

    def __init__(self, store: Store, rounds: int, command: str, places: Mapping[str, int], digits: int = 1) -> None:
        self.store = store
        self.rounds = rounds
        self.command = command
        """What makes the page, for whoever misses something in it."""
        self.places = places
        """Label → colour, the same in every chart."""
        self.digits = digits
        """Of percentages."""
        self.window = max(1, round(0.05 * rounds))
        """Terminal accuracy is the mean over so many of the last rounds."""

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Seed → run; those at their end alone where these are two or more."""
        return settled(self.store.line(environment, method, variant), self.rounds)

    def seeds(self, line: Line) -> str:
        """How many there are, and how many others are under way."""
        first = next(iter(line.values()), None)
        whole = {} if first is None else scored(self.store.line(first.environment, first.method, first.variant))
        return seeds_text(line, whole, self.rounds)

    def rounds_run(self, line: Line) -> str:
        return rounds_text(line, self.rounds)

    def estimate(self, line: Line) -> Estimate:
        """Terminal accuracy over seeds."""
        return Estimate.of([terminal(result, self.window) for result in line.values()])

    def terminal(self, line: Line) -> str:
        own = f"{{:.{self.digits}f}}"
        return spread(self.estimate(line), own) + so_far(line, self.rounds) if line else MISSING

    def difference(self, line: Line, base: Line) -> str:
        """Points of terminal accuracy above another line, seed by seed."""
        pair = paired_terminal(line, base, self.window)
        return "-" if pair is None or line is base else spread(pair.difference, f"{{:+.{self.digits}f}}")

    def to_target(self, line: Line, target: float) -> str:
        """Rounds to an accuracy, or how many seeds have come to it."""
        if not line:
            return MISSING
        own = line_to_target(line, target)
        if own.rounds is not None:
            return spread(own.rounds, "{:.0f}", 1.0)
        ended = min(reached(result) for result in line.values()) >= self.rounds
        if own.reached == 0:
            return "not reached" if ended else "not reached so far"
        return f"{own.reached} of {own.seeds} seeds" + ("" if ended else " so far")

    def missing(self, what: str, group: str) -> str:
        return not_yet(what, f"{self.command} --only {group}")

    def curves(self, name: str, title: str, lines: Mapping[str, Line], missing: str) -> list[Part]:
        """A chart of accuracy over rounds, and what is missing in it; `missing` where there is nothing at all."""
        there = {label: line for label, line in lines.items() if line}
        if not there:
            return [missing]
        series = [accuracy_series(label, *mean_curve(line), self.places.get(label)) for label, line in there.items()]
        parts: list[Part] = [Chart(name, title, ROUND, ACCURACY, series)]
        absent = [label for label in lines if label not in there]
        if absent:
            parts.append(f"Of {joined(absent)} there is no run yet.")
        return parts
