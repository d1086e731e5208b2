"""Messages to and from Flower apps that know nothing of Covey, as Flower's own strategies write and read them.

A client is sent a model (`arrays`) and settings (`config`). It replies the trained arrays and metrics with its number
of samples, or to a request to evaluate, metrics alone. Nothing that it says is trusted.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from covey.arrays import FloatArray
from covey.config.sections import Local
from covey.core.printable_text import printable
from covey.errors import Refusal, require

SERVER_ROUND = "server-round"
"""Name of the round's number in settings, as Flower's strategies send it."""

_NAMES = {"epochs": "epochs", "batch": "batch", "momentum": "momentum", "weight_decay": "weight_decay", "clip": "clip"}
"""Settings of local training by the names that clients read."""

_LOSSES = {
    True: ("loss", "train_loss"),
    False: ("loss", "eval_loss", "test_loss", "val_loss"),
}
"""Names of a loss that come before others, after training (True) and after evaluation."""
_ACCURACIES = ("accuracy", "eval_acc", "eval_accuracy", "test_acc", "test_accuracy", "val_acc", "val_accuracy", "acc")

_MOST = 64
"""Metrics of a client that are averaged for users to see."""
_LONGEST = 80
"""Characters of a metric's name."""


@dataclass(frozen=True, kw_only=True)
class PlainClients:
    """The names in messages of clients that know nothing of Covey; the defaults are those of Flower's quickstarts.

    loss, accuracy: names of metrics, such as ("train_nll", "test_nll"). By default the metric whose name ends with
        "loss", and the one that ends with "accuracy" or "acc".
    """

    arrays: str = "arrays"
    config: str = "config"
    samples: str = "num-examples"
    loss: tuple[str, ...] = ()
    accuracy: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("loss", "accuracy"):
            value = getattr(self, name)
            require(
                not isinstance(value, str),
                f"PlainClients.{name} lists names of metrics: {name}=({value!r},), not {value!r}.",
            )

    def content(self, arrays: ArrayRecord, settings: Mapping[str, Any]) -> RecordDict:
        """Return the content of a message that asks to train or to evaluate."""
        return RecordDict({self.arrays: arrays, self.config: ConfigRecord(dict(settings))})

    def trained(self, content: RecordDict) -> tuple[ArrayRecord, int, float | None]:
        """Return the arrays, samples and training loss in a reply; the loss is None if it is not told."""
        records = list(content.array_records.values())
        require(len(records) == 1, f"it has {len(records)} array records, and a trained model is one")
        metrics = _metrics(content)
        return records[0], self._samples(metrics), self._loss(metrics, trained=True)

    def scored(self, content: RecordDict) -> "PlainScores":
        """Return what a client reports of a model that it evaluated."""
        metrics = _metrics(content)
        accuracy = _found(metrics, self.accuracy or _ACCURACIES, () if self.accuracy else ("accuracy", "acc"))
        accuracy = accuracy if accuracy is not None and 0 <= accuracy <= 1 else None
        told = {name: value for name, value in metrics.items() if name != self.samples}
        return PlainScores(self._samples(metrics), self._loss(metrics, trained=False), accuracy, told)

    def metrics(self, content: RecordDict) -> dict[str, Any]:
        """Return the metrics of a reply, without the number of samples."""
        return {name: value for name, value in _metrics(content).items() if name != self.samples}

    def _samples(self, metrics: MetricRecord) -> int:
        count = metrics.get(self.samples)
        if count is None:
            raise Refusal(f"its metrics lack {self.samples} (they are {shown(metrics)})")
        if not (isinstance(count, int) or (isinstance(count, float) and count.is_integer())) or count >= 1 << 53:
            raise Refusal(f"its {self.samples} is {count!r:.60}, and counts are whole numbers")
        return int(count)

    def _loss(self, metrics: MetricRecord, *, trained: bool) -> float | None:
        loss = _found(metrics, self.loss or _LOSSES[trained], () if self.loss else ("loss",))
        return math.nan if loss is not None and not math.isfinite(loss) else loss


@dataclass(frozen=True)
class PlainScores:
    """A client's report of a model."""

    samples: int
    loss: float | None
    accuracy: float | None
    metrics: Mapping[str, Any]
    """All metrics by the client's names."""


def _metrics(content: RecordDict) -> MetricRecord:
    records = list(content.metric_records.values())
    require(len(records) == 1, f"it has {len(records)} metric records, and Flower's strategies read one")
    return records[0]


def _found(metrics: MetricRecord, names: Iterable[str], endings: tuple[str, ...]) -> float | None:
    """Return the first metric of these names, or the only one whose name ends so; None if there is none."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    known = [name for name in names if name in numbers]
    if not known:
        known = [name for name in numbers if name.lower().endswith(endings)] if endings else []
        known = known if len(known) == 1 else []
    return float(numbers[known[0]]) if known else None


def shown(metrics: Mapping[str, Any]) -> str:
    """Return names of metrics for a message."""
    return ", ".join(printable(name)[:_LONGEST] for name in list(metrics)[:8]) or "none"


def told_settings(work: Local, given: Iterable[str], t: int) -> dict[str, Any]:
    """Return the settings of local training that the user gave, by the names that clients read, and the round."""
    told = {_NAMES[name]: getattr(work, name) for name in given if name in _NAMES}
    rate = {"lr": work.rate_at(t, 0)} if "rate" in given else {}
    return {SERVER_ROUND: t, **rate, **told}


def averaged(metrics: Iterable[Mapping[str, Any]], weights: FloatArray) -> dict[str, float]:
    """Return the means of the numbers that all clients report, by the clients' names for them, made printable."""
    rows = list(metrics)
    if not rows:
        return {}
    common = [name for name in rows[0] if all(isinstance(row.get(name), (int, float)) for row in rows)]
    found = {}
    for name in common[:_MOST]:
        mean = float(weights @ np.array([float(row[name]) for row in rows]))
        if math.isfinite(mean):
            found[printable(name)[:_LONGEST]] = mean
    return found
