"""Tasks: what a model learns to answer, its loss, and the metrics that tell how well it does."""

from covey.task.auto import Auto
from covey.task.classification import Classification, NextToken
from covey.task.custom import Custom
from covey.task.label_kinds import Labels, infer, labels_as, named_task
from covey.task.learning_task import Metric, Task
from covey.task.multilabel import MultiLabel
from covey.task.regression import Regression
from covey.task.run_metric import main_score, metric_of

__all__ = [
    "Auto",
    "Classification",
    "Custom",
    "Labels",
    "Metric",
    "MultiLabel",
    "NextToken",
    "Regression",
    "Task",
    "infer",
    "labels_as",
    "main_score",
    "metric_of",
    "named_task",
]
