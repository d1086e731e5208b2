"""The metrics beside the main one as text, for the terminal, pages and cards."""

from collections.abc import Mapping
from typing import Any

from covey.task.run_metric import known_metric, metric_of


def score_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and figure of the metrics beside the main one, and of the main one over clients."""
    metric = metric_of([found])
    rows = [
        (one.label, one.text(value))
        for name, value in found.get("metrics", {}).items()
        if name != metric.name
        for one in [known_metric(name)]
    ]
    if over := found.get("client_score"):
        worst, spread = metric.text(over["worst_decile"]), metric.text(over["spread"])
        rows.append(("on clients' own tests", f"{metric.text(over['mean'])}, worst decile {worst}, spread {spread}"))
    return rows
