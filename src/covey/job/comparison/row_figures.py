"""Figures of a comparison's row, whatever the main metric."""

from collections.abc import Callable, Mapping
from typing import Any

from covey.task.learning_task import Metric


def within(value: float | None, metric: Metric, cut: Callable[[float, float], float]) -> float | None:
    """Return an end of an interval, cut at 0 or at 1 where the metric lies between them."""
    return value if value is None or not metric.share else cut(0.0 if cut is max else 1.0, value)


def terminal_of(row: Mapping[str, Any]) -> float:
    """Return the terminal main metric in a comparison's row."""
    return float(row["terminal_accuracy"] if "terminal_accuracy" in row else row["terminal_score"])


def best_of(row: Mapping[str, Any]) -> float:
    """Return the best main metric in a comparison's row."""
    return float(row["best_accuracy"] if "best_accuracy" in row else row["best_score"])
