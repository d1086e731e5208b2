"""One class a sample: classification, and the next word of a text."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.registries import tasks
from covey.task.learning_task import ACCURACY, Metric, Task

MACRO_F1 = Metric("macro_f1", "macro F1")
PERPLEXITY = Metric("perplexity", "perplexity", higher=False, share=False)


@tasks.add("classification")
class Classification(Task):
    """One class a sample: cross-entropy; accuracy and macro F1."""

    name = "classification"
    has_classes = True
    metrics = (ACCURACY, MACRO_F1)

    def agrees_with(self, other: Task) -> bool:
        """Words that follow are classes too, and before there were tasks they were called so."""
        return isinstance(other, type(self))

    def loss(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        return F.cross_entropy(output, y, reduction=reduction)

    def answers(self, output: Tensor) -> Tensor:
        return output.argmax(dim=-1)

    def score(self, answers: Tensor, y: Tensor) -> dict[str, float | None]:
        classes = 1 + int(torch.maximum(answers.max(), y.max()))
        correct, predicted, totals = (
            torch.bincount(each, minlength=classes).double().numpy() for each in (y[answers == y], answers, y)
        )
        found = {ACCURACY.name: float(correct.sum() / totals.sum())}
        return {**found, MACRO_F1.name: macro_f1(correct, predicted, totals)}

    def bins(self, y: Tensor) -> IntArray:
        return y.numpy()

    def of_counts(
        self, correct: FloatArray, predicted: FloatArray, totals: FloatArray, loss: float
    ) -> dict[str, float | None]:
        """Return the metrics beside accuracy, from counts by class and the mean loss."""
        return {MACRO_F1.name: macro_f1(correct, predicted, totals)}


@tasks.add("next-token")
class NextToken(Classification):
    """The word that follows, a class each: cross-entropy; accuracy and perplexity."""

    name = "next-token"
    metrics = (ACCURACY, PERPLEXITY)

    def of_counts(
        self, correct: FloatArray, predicted: FloatArray, totals: FloatArray, loss: float
    ) -> dict[str, float | None]:
        """Return e to the power of the mean loss, over all words of the vocabulary."""
        return {PERPLEXITY.name: math.exp(loss) if loss < 700 else None}


def macro_f1(correct: FloatArray, predicted: FloatArray, totals: FloatArray) -> float | None:
    """Return the mean over classes of 2·TP/(2·TP + FP + FN), of the classes that were answered or are right."""
    seen = predicted + totals > 0
    return float((2 * correct[seen] / (predicted + totals)[seen]).mean()) if seen.any() else None
