"""What clients report of models that they evaluate."""

import math
from collections.abc import Iterable

from flwr.app import Message

from covey.flower.wire import REPLY
from covey.task.learning_task import Metric
from covey.task.run_metric import known_metric

SCORE = "score."
"""What the name of a metric in a report begins with, where it is not accuracy; it ends with `.higher` or `.lower`."""


def reported(reply: Message) -> tuple[int, float, float] | None:
    """Return the samples, loss and accuracy (or other main metric) that a client reports; None where senseless."""
    if not reply.has_content() or REPLY not in reply.content.metric_records:
        return None
    record = reply.content.metric_records[REPLY]
    other = _other_metric(record)
    values = [record.get(name) for name in ("samples", "loss", other or "accuracy")]
    numbers = [float(value) for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    if len(numbers) < 3 or not 1 <= numbers[0] < 1 << 53:
        return None
    if not other and not 0 <= numbers[2] <= 1:
        return None
    return int(numbers[0]), numbers[1], numbers[2]


def reported_metric(reply: Message) -> Metric | None:
    """Return the main metric of a client's report, where it is not accuracy."""
    if not reply.has_content() or REPLY not in reply.content.metric_records:
        return None
    name, _, better = _other_metric(reply.content.metric_records[REPLY]).removeprefix(SCORE).rpartition(".")
    return known_metric(name, better != "lower") if name else None


def _other_metric(record: Iterable[str]) -> str:
    """Return the key of a metric other than accuracy; empty if there is none."""
    return next((name for name in record if name.startswith(SCORE)), "")
