"""Any number of labels a sample."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.errors import require
from covey.registries import tasks
from covey.task.learning_task import Metric, Task, like_labels, reduced

MEAN_PRECISION = Metric("map", "mean average precision")
LABEL_F1 = Metric("f1", "F1")


@tasks.add("multilabel")
class MultiLabel(Task):
    """Any of several labels a sample: binary cross-entropy, mean over labels; mean average precision and F1.

    labels: number of labels; by default that of the data.
    """

    name = "multilabel"
    metrics = (MEAN_PRECISION, LABEL_F1)

    def __init__(self, *, labels: int = 0) -> None:
        require(labels >= 0, f"task.labels must be at least 1, or 0 for the labels of the data, not {labels}.")
        self.labels = labels

    @property
    def outputs(self) -> int:
        return self.labels

    def as_mapping(self) -> dict[str, Any]:
        return {"name": self.name, "labels": self.labels}

    def completed(self, targets: Tensor) -> "MultiLabel":
        """Return the task for labels `[n, labels]`."""
        columns = targets.shape[1]
        require(
            self.labels in (0, columns), f"task.labels is {self.labels}, and samples here have {columns} labels each."
        )
        return MultiLabel(labels=columns)

    def loss(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        output = like_labels(output, y)
        each = F.binary_cross_entropy_with_logits(output, y.to(output.dtype), reduction="none")
        return reduced(each.mean(dim=-1), reduction)

    def answers(self, output: Tensor) -> Tensor:
        return output.reshape(len(output), -1)

    def score(self, answers: Tensor, y: Tensor) -> dict[str, float | None]:
        """Means over labels that the samples have; F1 of the labels whose probability is at least one half."""
        right = y.numpy() > 0.5
        given = answers.double().numpy()
        told = given >= 0
        precisions = [average_precision(given[:, one], right[:, one]) for one in np.flatnonzero(right.any(axis=0))]
        seen = right.any(axis=0) | told.any(axis=0)
        both = (told & right).sum(axis=0)[seen]
        f1 = 2 * both / (told.sum(axis=0) + right.sum(axis=0))[seen]
        sound = bool(np.isfinite(given).all())
        return {
            MEAN_PRECISION.name: float(np.mean(precisions)) if precisions and sound else None,
            LABEL_F1.name: float(f1.mean()) if len(f1) and sound else None,
        }

    def bins(self, y: Tensor) -> IntArray:
        """Return each sample's rarest label; samples without labels are a group of their own."""
        return np.unique(self._rarest(y), return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _rarest(self, y: Tensor) -> IntArray:
        """Return each sample's rarest label `[n]`; the number of labels where it has none."""
        present = y > 0.5
        count = present.sum(dim=0)
        rank = torch.where(present, count, len(y) + 1)
        found: IntArray = torch.where(present.any(dim=1), rank.argmin(dim=1), y.shape[1]).numpy()
        return found

    def bin_names(self, y: Tensor, bins: IntArray) -> tuple[str, ...]:
        """Return the number of each group's rarest label."""
        labels = self._rarest(y)[np.unique(bins, return_index=True)[1]]
        return tuple("none" if label == y.shape[1] else f"label {label}" for label in labels.tolist())

    def wrong(self, y: Tensor) -> Tensor:
        """Return the labels that a sample does not have."""
        return 1 - y


def average_precision(scores: FloatArray, right: Any) -> float:
    """Return Σ (R_k - R_{k-1})·P_k over the different scores, from the highest; equal scores count as one step."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(right[order])
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    precision, recall = hits[last] / (last + 1), hits[last] / hits[-1]
    return float((np.diff(recall, prepend=0.0) * precision).sum())
