"""Scores on the test set, and what records say about a round. Only here is the truth about clients used."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray
from covey.environment.federated_data import Truth

LISTED_CLASSES = 200
"""Records list the accuracy of every class up to so many; a vocabulary's thousands would bury everything else."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Results of m models on the test set."""

    loss: FloatArray
    """`[m]`: mean cross-entropy."""
    correct: NDArray[np.int64]
    """`[m, classes]`: right answers per class."""
    totals: NDArray[np.int64]
    """`[classes]`: test samples per class."""
    wall_seconds: float = 0.0
    """What it took to compute them; with many runs in lockstep, this run's share."""

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
    """What a record says of an evaluation."""

    accuracy: float | None
    loss: float | None
    class_accuracy: list[float]
    own_accuracy: float | None


def summary(scores: Scores, truth: Truth, model_of_client: IntArray) -> EvaluationScores:
    """What a record says of an evaluation: means over clients, each with its model and on its own mix."""
    by_class = scores.class_accuracy
    if len(by_class) == 1:
        # A vocabulary has thousands of classes: not client by client where one model serves them all.
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
    """Accuracy on a class mix `[classes]`, mean over clients, each with its model; and the share that has no tests.

    It is about the classes that the test set has; None where it has none of the mix.
    """
    tested, untested = tested_part(mix, scores.totals)
    if not tested.any():
        return None, untested
    return float(_users(scores, model_of_client) @ scores.class_accuracy @ tested), untested


def tested_part(mix: FloatArray, totals: NDArray[np.int64]) -> tuple[FloatArray, float]:
    """A class mix over the classes that have tests alone, and the share of the others."""
    tested = np.where(totals > 0, mix, 0.0)
    return tested / max(float(tested.sum()), 1e-12), float(mix[totals == 0].sum())


def untested_notes(share: float) -> list[str]:
    """What to say where classes of a target have no tests."""
    if share <= 0:
        return []
    return [f"The test set has no sample of classes that make {share:.0%} of the target; accuracy is about the others."]


def _users(scores: Scores, model_of_client: IntArray) -> FloatArray:
    """What share of the clients uses each model `[m]`; one model for all counts once, exactly."""
    users: FloatArray = np.bincount(model_of_client, minlength=len(scores.loss)) / len(model_of_client)
    return users


def finite(value: float) -> float | None:
    """`value`, or None where it is NaN or infinite and JSON has no word for it."""
    return value if np.isfinite(value) else None
