"""Scores from what a learner tallied on the test set."""

import torch

from covey.client.learner import Tally
from covey.core.scores import Scores
from covey.data.dataset import Dataset


def scores_of(tally: Tally, dataset: Dataset) -> Scores:
    """Return the scores of models on a data set's test samples."""
    task, test_y = dataset.learns, dataset.test_y
    totals = torch.bincount(test_y, minlength=dataset.classes) if task.has_classes else torch.zeros(0).long()
    return Scores(
        tally.loss.numpy() / len(test_y),
        tally.correct.numpy(),
        totals.numpy(),
        predicted=tally.predicted.numpy(),
        answers=tally.answers if tally.answers.numel() else None,
        y=test_y,
        task=task,
    )
