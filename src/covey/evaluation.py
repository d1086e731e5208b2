"""Scores on the test set, and what records say about a round. Only here is the truth about clients used."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.environments import FloatArray, IntArray
from covey.federations import Truth

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


def summary(scores: Scores, truth: Truth, model_of_client: IntArray) -> dict[str, object]:
    """What a record says of an evaluation: means over clients, each with its model and on its own mix."""
    by_class = scores.class_accuracy
    if len(by_class) == 1:
        # A vocabulary has thousands of classes: not client by client where one model serves them all.
        own = float(by_class[0] @ truth.mean_shares)
    else:
        own = float((by_class[model_of_client] * truth.shares).sum(axis=1).mean())
    # How many of the clients use each model; one model for all counts once, exactly.
    users = np.bincount(model_of_client, minlength=len(scores.loss)) / len(model_of_client)
    listed = {"class_accuracy": (users @ by_class).tolist()} if len(scores.totals) <= LISTED_CLASSES else {}
    return {
        "accuracy": float(users @ scores.accuracy),
        "loss": finite(float(users @ scores.loss)),
        **listed,
        "own_accuracy": own,
    }


def on_mix(scores: Scores, model_of_client: IntArray, mix: FloatArray) -> tuple[float | None, float]:
    """Accuracy on a class mix `[classes]`, mean over clients, each with its model; and the share that has no tests.

    It is about the classes that the test set has; None where it has none of the mix.
    """
    tested = np.where(scores.totals > 0, mix, 0.0)
    share = float(tested.sum())
    if share <= 0:
        return None, 1.0
    users = np.bincount(model_of_client, minlength=len(scores.loss)) / len(model_of_client)
    return float(users @ scores.class_accuracy @ (tested / share)), max(0.0, 1.0 - share)


def finite(value: float) -> float | None:
    """`value`, or None where it is NaN or infinite and JSON has no word for it."""
    return value if np.isfinite(value) else None
