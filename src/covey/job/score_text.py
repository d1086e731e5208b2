"""The metrics beside the main one as text, for the terminal, pages and cards."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from covey.task.learning_task import Metric
from covey.task.run_metric import known_metric, metric_of

OWN_TESTS = "on clients' own tests"


def score_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and figure of the metrics beside the main one, and of all over clients."""
    metric = metric_of([found])
    rows = [
        (one.label, one.text(value))
        for name, value in found.get("metrics", {}).items()
        if name != metric.name
        for one in [known_metric(name)]
    ]
    if over := found.get("client_score"):
        rows.append((OWN_TESTS, f"{_over_clients(metric, over)}, spread {metric.text(over['spread'])}"))
    for name, over in found.get("client_metrics", {}).items():
        one = known_metric(name)
        rows.append((f"{one.label} {OWN_TESTS}", f"{_over_clients(one, over)}, spread {one.text(over['spread'])}"))
    return rows


def metric_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Callable[[Mapping[str, Any]], str]]:
    """Return name and format of a comparison's metrics beside the main one, and of all over clients."""
    others = dict.fromkeys(name for row in rows for name in row.get("terminal_metrics", {}))
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        f"terminal {known_metric(name).label}": partial(_terminal, name) for name in others
    }
    for name in dict.fromkeys(name for row in rows for name in row.get("terminal_client_scores", {})):
        columns[f"{known_metric(name).label} {OWN_TESTS}"] = partial(_terminal_over_clients, name, "mean")
        columns[f"{known_metric(name).label}, worst decile of clients"] = partial(
            _terminal_over_clients, name, "worst_decile"
        )
    return columns


def _terminal(name: str, row: Mapping[str, Any]) -> str:
    return known_metric(name).text(row.get("terminal_metrics", {}).get(name))


def _terminal_over_clients(name: str, figure: str, row: Mapping[str, Any]) -> str:
    return known_metric(name).text(row.get("terminal_client_scores", {}).get(name, {}).get(figure))


def _over_clients(metric: Metric, over: Mapping[str, Any]) -> str:
    worst = "" if over["worst_decile"] is None else f", worst decile {metric.text(over['worst_decile'])}"
    return f"{metric.text(over['mean'])}{worst}"
