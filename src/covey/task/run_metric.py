"""The main metric of a run, as its records tell it."""

from collections.abc import Iterable, Mapping
from typing import Any

from covey.task.classification import MACRO_F1, PERPLEXITY
from covey.task.learning_task import ACCURACY, Metric
from covey.task.multilabel import LABEL_F1, MEAN_PRECISION
from covey.task.regression import MAE, R2, RMSE

KNOWN = {one.name: one for one in (ACCURACY, MACRO_F1, PERPLEXITY, RMSE, MAE, R2, MEAN_PRECISION, LABEL_F1)}


def main_score(row: Mapping[str, Any]) -> float | None:
    """Return the main metric in a round's record; None if the round was not evaluated."""
    found = row["accuracy"] if "accuracy" in row else row.get("score")
    return None if found is None else float(found)


def metric_of(rows: Iterable[Mapping[str, Any]]) -> Metric:
    """Return the main metric of a run's records; accuracy where no record says otherwise."""
    named = next((row for row in rows if "metric" in row), None)
    if named is None:
        return ACCURACY
    return known_metric(str(named["metric"]), named.get("better") != "lower")


def known_metric(name: str, higher: bool = True) -> Metric:
    """Return the metric of this name; of one's own, a number."""
    return KNOWN.get(name) or Metric(name, name, higher=higher, share=False)
