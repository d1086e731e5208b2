"""Figures of a comparison's row, whatever the main metric."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from covey.job.comparison.statistics import terminal_window
from covey.task.learning_task import Metric
from covey.task.run_metric import main_score


def within(value: float | None, metric: Metric, cut: Callable[[float, float], float]) -> float | None:
    """Return an end of an interval, cut at 0 or at 1 where the metric lies between them."""
    return value if value is None or not metric.share else cut(0.0 if cut is max else 1.0, value)


def terminal_of(row: Mapping[str, Any]) -> float:
    """Return the terminal main metric in a comparison's row."""
    return float(row["terminal_accuracy"] if "terminal_accuracy" in row else row["terminal_score"])


def best_of(row: Mapping[str, Any]) -> float:
    """Return the best main metric in a comparison's row."""
    return float(row["best_accuracy"] if "best_accuracy" in row else row["best_score"])


def terminal_metrics(seeds: Sequence[Sequence[Mapping[str, Any]]], metric: Metric) -> dict[str, Any]:
    """Return the terminal values of the metrics beside the main one, and of all over clients, if runs have any.

    `seeds` are the records of each run. As with the main metric, each value is the mean over the last 5 % of the rounds
    (at least the last evaluation), then over seeds; None unless it is defined in all of them.
    """
    ends = [_terminal_rounds(records) for records in seeds]
    others = _means([[row.get("metrics", {}) for row in rows] for rows in ends])
    others.pop(metric.name, None)
    each = [[_over_clients(row, metric) for row in rows] for rows in ends]
    names = dict.fromkeys(name for rows in each for row in rows for name in row)
    over = {name: _means([[row.get(name, {}) for row in rows] for rows in each]) for name in names}
    kept = {
        name: {figure: value for figure, value in one.items() if figure != "clients"}
        for name, one in over.items()
        if one["mean"] is not None
    }
    return {**({"terminal_metrics": others} if others else {}), **({"terminal_client_scores": kept} if kept else {})}


def _over_clients(row: Mapping[str, Any], metric: Metric) -> dict[str, Any]:
    """Return every metric over clients of a record, the main one first."""
    main = {metric.name: row["client_score"]} if "client_score" in row else {}
    return {**main, **row.get("client_metrics", {})}


def _terminal_rounds(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the evaluated rounds that terminal values are means over."""
    scored = [row for row in records if main_score(row) is not None]
    last = scored[-1]["round"] if scored else 0
    return [row for row in scored if row["round"] > last - terminal_window(float(last))]


def _means(seeds: Sequence[Sequence[Mapping[str, float | None]]]) -> dict[str, float | None]:
    """Return the mean of each figure over rounds, then over seeds; None where one is not defined or not there."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for rows in seeds for row in rows for name in row):
        ends = [[row.get(name) for row in rows] for rows in seeds]
        known = [[value for value in values if value is not None] for values in ends]
        complete = all(len(one) == len(values) > 0 for one, values in zip(known, ends, strict=True))
        found[name] = float(np.mean([np.mean(values) for values in known])) if complete else None
    return found
