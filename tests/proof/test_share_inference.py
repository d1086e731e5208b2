"""On-Demand FL's predictor tells class shares better from every mini-batch (eq. 6) than from the mean gradient.

A hundred clients hold a hundred classes by a Dirichlet(0.1), as on CIFAR-100. The predictor has learned from gradients
of single mini-batches, each with at most ten of the classes. A client's mean gradient has many more and is shorter, so
it lies outside of what the predictor knows.
"""

from typing import Any, Literal

import pytest
import torch

from covey import Config
from covey.aggregation.share_predictor import WithPredictor
from covey.core.one_model import OneModel
from covey.core.replies import checked
from covey.job.experiment import Experiment

SEEDS = (0, 1)
ROUNDS = 100
GIVEN: dict[str, Any] = {
    "dataset": {"name": "synthetic", "shape": (1, 8, 8), "classes": 100, "train": 50_000, "test": 100},
    "environment": {"name": "dirichlet", "alpha": 0.1},
    "clients": 100,
    "cohort": 10,
    "runtime": "stacked",
    "device": "cpu",
    "rounds": ROUNDS,
    "selector": "uniform",
    "model": {"name": "mlp", "hidden": (32,)},
    "local": {"epochs": 1, "batch": 10, "rate": 0.01, "momentum": 0.9},
}


def errors(seed: int, sends: Literal["shares", "gradient"]) -> tuple[float, float]:
    """Return n·MAE of the estimates after all rounds, and that of a uniform guess; means over clients."""
    aggregator = {"name": "ondemand", "hidden": 128, "epochs": 1, "sends": sends}
    one = Experiment.of(Config.of({**GIVEN, "seed": seed, "aggregator": aggregator}))
    method, truth = one.method, one.federation.truth.shares
    for t in range(1, ROUNDS + 1):
        method.absorb(t, checked(one.runtime.execute(method.order(t, one.runtime.available(t)))))
    assert isinstance(method, OneModel)
    assert isinstance(method.aggregator, WithPredictor)
    found = method.aggregator.class_estimates().errors(truth)
    return float(found.mean()), float(abs(truth - 0.01).sum(axis=1).mean())


@pytest.mark.proof
@pytest.mark.parametrize("seed", SEEDS)
def test_predictions_of_mini_batches_tell_a_hundred_classes_better_than_that_of_the_mean_gradient(seed):
    """Measured with a head without bias, over two seeds: 1.06 and 1.23 after 160 rounds; a uniform guess has 1.49."""
    torch.set_num_threads(1)
    (by_batches, guess), (by_mean, _) = errors(seed, "shares"), errors(seed, "gradient")
    assert by_batches < by_mean - 0.07
    assert by_batches < 0.9 * guess
