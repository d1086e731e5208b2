"""A comparison's rows as text: differences, intervals, and how certain they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from covey.job.comparison.row_figures import terminal_of
from covey.task.learning_task import ACCURACY, Metric

ONE_SEED, CLEAR = "one seed", "clear of zero"
"""Certainties of a difference that a sentence may leave out."""

_NO_WIDTH = 1e-9
"""Intervals narrower than this fraction have no width: seeds differ by rounding only."""


def interval(low: float | None, high: float | None, metric: Metric = ACCURACY) -> str:
    """Format the ends of an interval of a metric; of fractions as percentages."""
    return "-" if low is None or high is None else f"{metric.text(low)} to {metric.text(high)}"


def difference(row: Mapping[str, Any], metric: Metric = ACCURACY) -> str:
    """Format a paired difference, in points where it is one of shares, with half its interval if it has one."""
    if row["difference"] is None:
        return "-"
    form = ".1f" if metric.share else ".3g"
    text = f"{metric.shown(row['difference']):+{form}}"
    width = 0.0 if row["difference_low"] is None else row["difference_high"] - row["difference_low"]
    return text if width < _NO_WIDTH else f"{text} ± {metric.shown(width) / 2:{form}}"


def certainty(row: Mapping[str, Any]) -> str:
    """Say how certain a paired difference is.

    An interval without width shows how coarse accuracy is, not how certain the difference is.
    """
    low, high = row["difference_low"], row["difference_high"]
    if low is None or high is None:
        return ONE_SEED
    if high - low < _NO_WIDTH:
        return "the same in every seed, which gives no interval"
    return CLEAR if low > 0 or high < 0 else "within the noise of these seeds"


def row_lines(rows: Sequence[Mapping[str, Any]], metric: Metric) -> list[str]:
    """Return a line for each method: its terminal score and its paired difference, with 95 % intervals."""
    unit = "points" if metric.share else metric.label
    lines = []
    for row in rows:
        width = (
            "" if row["terminal_low"] is None else f" ({interval(row['terminal_low'], row['terminal_high'], metric)})"
        )
        line = f"{row['name']}: terminal {metric.label} {metric.text(terminal_of(row))}{width}"
        if row["difference"] is not None:
            certain = certainty(row)
            said = "" if certain in (ONE_SEED, CLEAR) else f", {certain}"
            line += f", {difference(row, metric)} {unit} against {row['against']}{said}"
        lines.append(line)
    return lines
