"""Scores on the test set. The truth about clients is used only here."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray
from covey.environment.federated_data import Truth

LISTED_CLASSES = 200
"""Most classes whose accuracy a record lists; a vocabulary has thousands."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Results of m models on the test set."""

    loss: FloatArray
    """`[m]`: mean cross-entropy."""
    correct: NDArray[np.int64]
    """`[m, classes]`: correct answers per class."""
    totals: NDArray[np.int64]
    """`[classes]`: test samples per class."""
    wall_seconds: float = 0.0
    """Time to compute them; with many runs in lockstep, this run's share."""

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


class EvaluationScores(TypedDict, total=False):
    """The fields of a record that an evaluation adds."""

    accuracy: float | None
    loss: float | None
    class_accuracy: list[float]
    own_accuracy: float | None


def summary(scores: Scores, truth: Truth, model_of_client: IntArray) -> EvaluationScores:
    """Return a record's scores: means over clients, each with its model, and on its own class mix."""
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
    return found


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
    return value if np.isfinite(value) else None
