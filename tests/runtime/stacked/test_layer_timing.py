"""Layers timed alone, with CUDA graphs faked: what is timed, and which step that decides for."""

import pytest
import torch

from covey.model import build_model
from covey.runtime.stacked import layer_timing
from covey.runtime.stacked.graph_capture import GraphSteps
from covey.runtime.stacked.layer_timing import fused_layers_win

NAMES = ["conv1", "conv2"]


@pytest.fixture
def seconds(monkeypatch):
    """What each replay takes, by what is timed; everything that is timed runs once."""
    taken = {"fused": [1.0, 2.0], "alone": [1.0, 2.0]}

    def replay_seconds(work, repeats):
        work()
        return taken[work.__name__].pop(0)

    monkeypatch.setattr(layer_timing, "warm_up", lambda work, device: None)
    monkeypatch.setattr(layer_timing, "record_graph", lambda work: work)
    monkeypatch.setattr(layer_timing, "replay_seconds", replay_seconds)
    return taken


def winner(module=None):
    module = module or build_model("tutorial-cnn", {}, (3, 16, 16), 10, 0)
    return fused_layers_win(module, NAMES, (3, 16, 16), 2, 3, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(("of_last", "wins"), [(2.0, True), (1.0, True), (2.5, False)])
def test_fused_layers_win_if_they_take_no_longer_than_their_convolutions(seconds, of_last, wins):
    seconds["fused"][1] = of_last
    assert winner() == wins
    assert seconds == {"fused": [], "alone": []}


def test_the_first_layer_has_no_gradient_for_its_images(seconds, monkeypatch):
    asked = []
    images = torch.ops.covey.pooled_convolution_images

    def noted(*given):
        asked.append(given)
        return images(*given)

    monkeypatch.setattr(torch.ops.covey, "pooled_convolution_images", noted)
    assert winner()
    ((gradient, _, weight, size, _),) = asked
    assert gradient.shape == (2, 3, 16, 1, 1) and weight.shape == (2, 16, 6, 5, 5) and size == [6, 6]


def test_layers_that_cannot_be_timed_decide_nothing(seconds, monkeypatch):
    def too_much(*given):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.ops.covey, "image_convolution_gradients", too_much)
    assert not winner()


def test_only_a_step_of_fused_layers_alone_can_win(monkeypatch):
    steps = GraphSteps.__new__(GraphSteps)
    assert not steps._wins({"conv1": "fused", "conv2": "kernel"})
    assert not steps._wins({"conv1": "slices"})
