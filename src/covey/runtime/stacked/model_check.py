"""A trial of a model of somebody's own before its first round: two made-up clients at once, as on a GPU."""

import copy

from torch import nn

from covey.client.learner import Learner
from covey.core.trainer import TrainerRef
from covey.data.dataset import Dataset, Samples
from covey.errors import Refusal
from covey.runtime.stacked.trainer_check import check_trainer

_SAMPLES = 2


def why_not_stacked(module: nn.Module, dataset: Dataset) -> str:
    """Return why a stack cannot train a model; "" if it can."""
    if type(module).__module__.startswith("covey."):
        return ""
    learner = Learner(copy.deepcopy(module), dataset)
    samples = Samples(dataset.x[:_SAMPLES], dataset.y[:_SAMPLES])
    try:
        check_trainer(TrainerRef("sgd"), learner, samples)
    except (Refusal, RuntimeError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""
