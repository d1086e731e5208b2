"""Scores on the test set. The truth about clients is used only here."""

import math
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.environment.truth import Truth
from covey.task.classification import Classification
from covey.task.learning_task import Task
from covey.task.run_metric import KNOWN

LISTED_CLASSES = 200
"""Most classes whose accuracy a record lists; a vocabulary has thousands."""


Metrics = dict[str, float | None]
"""Metric → value; None where it is not defined."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Results of m models on the test set."""

    loss: FloatArray
    """`[m]`: mean loss."""
    correct: NDArray[np.int64]
    """`[m, classes]`: correct answers per class; no columns where there are no classes."""
    totals: NDArray[np.int64]
    """`[classes]`: test samples per class."""
    wall_seconds: float = 0.0
    """Time to compute them; with many runs in lockstep, this run's share."""
    predicted: NDArray[np.int64] | None = None
    """`[m, classes]`: answers per class; None if they are not known."""
    answers: Tensor | None = None
    """`[m, n, ...]`: every answer, for tasks without classes and where clients have tests of their own."""
    y: Tensor | None = None
    """`[n, ...]`: the labels of the test set."""
    task: Task = field(default_factory=Classification)
    reported: tuple[Metrics, ...] = ()
    """Metrics of each model, where clients have reported them in place of answers."""

    def first(self, count: int) -> "Scores":
        """Return the results of the first models alone."""
        return replace(
            self,
            loss=self.loss[:count],
            correct=self.correct[:count],
            predicted=None if self.predicted is None else self.predicted[:count],
            answers=None if self.answers is None else self.answers[:count],
            reported=self.reported[:count],
        )

    def metrics(self, model: int) -> Metrics:
        """Return every metric of one model, the main one first; tasks with classes leave out accuracy."""
        if isinstance(self.task, Classification):
            if self.predicted is None:
                return {}
            counts = (self.correct[model], self.predicted[model], self.totals)
            correct, predicted, totals = (one.astype(np.float64) for one in counts)
            return self.task.of_counts(correct, predicted, totals, float(self.loss[model]))
        if self.reported:
            return self.reported[model]
        assert self.answers is not None
        assert self.y is not None
        return self.task.score(self.answers[model], self.y)

    @property
    def accuracy(self) -> FloatArray:
        """`[m]`"""
        accuracy: FloatArray = self.correct.sum(axis=1) / self.totals.sum()
        return accuracy

    @property
    def class_accuracy(self) -> FloatArray:
        """`[m, classes]`; zero for a class without test samples."""
        accuracy: FloatArray = self.correct / np.maximum(self.totals, 1)
        return accuracy


class ClientScore(TypedDict):
    """A metric over clients, each on its own test samples."""

    mean: float
    worst_decile: float | None
    """Mean over the tenth of the clients that are served worst; None for a metric of one's own beside the main one,
    of which nobody says whether higher is better."""
    spread: float
    """Standard deviation."""
    clients: int
    """Clients that have test samples, and whose metric is defined."""


class EvaluationScores(TypedDict, total=False):
    """The fields of a record that an evaluation adds."""

    accuracy: float | None
    score: float | None
    """The main metric, where it is not accuracy."""
    metric: str
    """Its name."""
    better: str
    """`higher` or `lower`."""
    metrics: Metrics
    """All metrics, or those beside accuracy."""
    client_score: ClientScore
    """The main metric over clients."""
    client_metrics: dict[str, ClientScore]
    """Those in `metrics` over clients; without the main one, and perplexity, which needs the loss of each sample."""
    loss: float | None
    class_accuracy: list[float]
    own_accuracy: float | None
    raw_accuracy: float | None
    raw_score: float | None
    raw_loss: float | None


def summary(scores: Scores, truth: Truth, model_of_client: IntArray) -> EvaluationScores:
    """Return a record's scores: means over clients, each with its model, and on its own class mix.

    Where clients have test samples of their own, also the metrics over clients, each on its own.
    """
    if not scores.task.has_classes:
        return _scores_without_classes(scores, truth, model_of_client)
    by_class = scores.class_accuracy
    if len(by_class) == 1:
        # One model serves all clients: their mean mix suffices, and a vocabulary has thousands of classes.
        own = float(by_class[0] @ truth.mean_shares)
    else:
        own = float((by_class[model_of_client] * truth.shares).sum(axis=1).mean())
    users = _users(scores, model_of_client)
    found: EvaluationScores = {"accuracy": float(users @ scores.accuracy), "loss": finite(float(users @ scores.loss))}
    if len(scores.totals) <= LISTED_CLASSES:
        found["class_accuracy"] = (users @ by_class).tolist()
    found["own_accuracy"] = own
    if metrics := _mean_metrics(scores, users):
        found["metrics"] = metrics
    _add_over_clients(found, over_clients(scores, truth.tests, model_of_client))
    return found


def _scores_without_classes(scores: Scores, truth: Truth, model_of_client: IntArray) -> EvaluationScores:
    users = _users(scores, model_of_client)
    metrics = _mean_metrics(scores, users)
    main = next(iter(metrics))
    found: EvaluationScores = {
        "score": metrics[main],
        "metric": main,
        "better": scores.task.main.better,
        "metrics": metrics,
        "loss": finite(float(users @ scores.loss)),
    }
    _add_over_clients(found, over_clients(scores, truth.tests, model_of_client))
    return found


def _mean_metrics(scores: Scores, users: FloatArray) -> Metrics:
    """Return every metric, mean over clients with their models; None where a model's is not defined."""
    used = np.flatnonzero(users)
    each = [scores.metrics(int(model)) for model in used]
    found: Metrics = {}
    for name in each[0]:
        values = [one[name] for one in each]
        known = [value for value in values if value is not None]
        found[name] = float(users[used] @ np.array(known)) if len(known) == len(values) else None
    return found


def _add_over_clients(found: EvaluationScores, over: dict[str, ClientScore]) -> None:
    """Add the metrics over clients to a record's scores: the main one, which is the first, and those in `metrics`."""
    if not over:
        return
    main, *others = over
    found["client_score"] = over[main]
    if kept := {name: over[name] for name in others if name in found.get("metrics", {})}:
        found["client_metrics"] = kept


def over_clients(scores: Scores, tests: list[Tensor] | None, model_of_client: IntArray) -> dict[str, ClientScore]:
    """Return every metric over clients, the main one first, each client with its model on its own rows of the test set.

    Empty without tests of clients, or if none has a main metric that is defined.
    """
    if tests is None or scores.answers is None or scores.y is None:
        return {}
    values: dict[str, list[float]] = {}
    # A reference has one model and clients of its own.
    used = model_of_client if len(scores.loss) > 1 else np.zeros(len(tests), dtype=np.int64)
    for rows, model in zip(tests, used.tolist(), strict=True):
        if len(rows):
            for name, own in scores.task.score(scores.answers[model, rows], scores.y[rows]).items():
                values.setdefault(name, []).extend([] if own is None else [own])
    if not values or not next(iter(values.values())):
        return {}
    known = {name: metric.higher for name, metric in KNOWN.items()}
    main = next(iter(values))
    higher = {**known, **{one.name: one.higher for one in scores.task.metrics}, main: scores.task.main.higher}
    return {name: _client_score(each, higher.get(name)) for name, each in values.items() if each}


def _client_score(values: list[float], higher: bool | None) -> ClientScore:
    worst = None
    if higher is not None:
        worst_first = np.sort(values) if higher else -np.sort(-np.array(values))
        worst = float(worst_first[: -(-len(values) // 10)].mean())
    return {
        "mean": float(np.mean(values)),
        "worst_decile": worst,
        "spread": float(np.std(values)),
        "clients": len(values),
    }


def raw_scores(scores: Scores) -> EvaluationScores:
    """Return a record's scores of the model before averaging, the last one in `scores`."""
    if not scores.task.has_classes:
        last = next(iter(scores.metrics(len(scores.loss) - 1).values()))
        return {"raw_score": last, "raw_loss": finite(float(scores.loss[-1]))}
    return {"raw_accuracy": float(scores.accuracy[-1]), "raw_loss": finite(float(scores.loss[-1]))}


def on_mix(scores: Scores, model_of_client: IntArray, mix: FloatArray) -> tuple[float | None, float]:
    """Return the accuracy on a class mix `[classes]`, mean over clients with their models, and the untested share.

    Accuracy covers the classes that the test set has; None if it has none of the mix.
    """
    tested, untested = tested_part(mix, scores.totals)
    if not tested.any():
        return None, untested
    return float(_users(scores, model_of_client) @ scores.class_accuracy @ tested), untested


def tested_part(mix: FloatArray, totals: NDArray[np.int64]) -> tuple[FloatArray, float]:
    """Return a class mix over the tested classes alone, and the share of the others."""
    tested = np.where(totals > 0, mix, 0.0)
    return tested / max(float(tested.sum()), 1e-12), float(mix[totals == 0].sum())


def untested_notes(share: float) -> list[str]:
    """Return a note if classes of a target have no tests."""
    if share <= 0:
        return []
    return [f"The test set has no sample of classes that make {share:.0%} of the target; accuracy is about the others."]


def _users(scores: Scores, model_of_client: IntArray) -> FloatArray:
    """Return the share of the clients that use each model `[m]`."""
    users: FloatArray = np.bincount(model_of_client, minlength=len(scores.loss)) / len(model_of_client)
    return users


def finite(value: float) -> float | None:
    """Return `value`, or None if it is NaN or infinite, which JSON cannot hold."""
    return value if math.isfinite(value) else None
