"""Training on the real files, where they are: COVEY_DATA names the folder."""

import os

import pytest

from covey import run

pytestmark = pytest.mark.skipif(not os.environ.get("COVEY_DATA"), reason="COVEY_DATA names no folder with data sets")


def central(tmp_path, dataset: str, model: str, rounds: int, **local) -> float:
    """Return the accuracy of centralised training after so many epochs."""
    result = run(
        method="central",
        dataset=dataset,
        model=model,
        environment="iid",
        clients=10,
        rounds=rounds,
        evaluate_every=rounds,
        local={"epochs": 1, **local},
        out=tmp_path / dataset,
    )
    return float(result.metrics[-1]["accuracy"])


def test_central_on_fashion_mnist_reaches_what_a_small_network_reaches(tmp_path):
    # A perceptron with 64 hidden units is known to reach about 86-88 % in a few epochs.
    assert 0.84 < central(tmp_path, "fashion-mnist", "mlp", 4, batch=50, rate=0.1) < 0.90


def test_central_on_mnist_reaches_what_a_small_network_reaches(tmp_path):
    assert 0.95 < central(tmp_path, "mnist", "mlp", 3, batch=50, rate=0.1) < 0.985


def test_central_on_cifar10_reaches_what_the_tutorial_network_reaches(tmp_path):
    # PyTorch's tutorial reports about 55 % after two epochs of the same network.
    assert 0.48 < central(tmp_path, "cifar10", "tutorial-cnn", 3, batch=20, rate=0.01, momentum=0.9) < 0.66
