import pytest
import torch
from torch import nn

from covey.errors import Refusal
from covey.model import build_model
from covey.model.layout import Layout
from covey.model.mlp import MLP


def test_binding_makes_the_module_compute_with_the_state():
    module = build_model("tutorial-cnn", {}, (3, 32, 32), 10, seed=0)
    layout = Layout.of(module)
    state = layout.read(module)
    x = torch.rand(2, 3, 32, 32)
    expected = module(x)
    other = build_model("tutorial-cnn", {}, (3, 32, 32), 10, seed=1)
    layout.bind(other, state)
    assert torch.equal(other(x), expected)
    state.zero_()
    assert torch.equal(other(x), torch.zeros(2, 10))


def test_tutorial_cnn_has_the_parameters_that_fedacs_counts():
    module = build_model("tutorial-cnn", {}, (3, 32, 32), 10, seed=0)
    layout = Layout.of(module)
    assert layout.size == 62_006
    assert layout.head_of(layout.read(module)).numel() == 850


def test_head_is_weight_then_bias():
    module = build_model("mlp", {"hidden": (4,)}, (1, 2, 2), 3, seed=0)
    assert isinstance(module, MLP)
    layout = Layout.of(module)
    state = torch.arange(layout.size, dtype=torch.float32)
    layout.bind(module, state)
    head = module.get_submodule(module.head)
    assert isinstance(head, nn.Linear)
    assert torch.equal(layout.head_of(state), torch.cat([head.weight.flatten(), head.bias]))
    assert layout.head_of(state.repeat(5, 1)).shape == (5, 15)


def test_buffers_follow_the_parameters_and_counters_are_left_out():
    class Normed(nn.Module):
        head = "fc"

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.fc = nn.Linear(3, 2)

    module = Normed()
    layout = Layout.of(module)
    assert [slot.name for slot in layout.buffers] == ["norm.running_mean", "norm.running_var"]
    assert layout.trainable == 3 + 3 + 6 + 2
    assert layout.size == layout.trainable + 6
    state = layout.read(module)
    layout.bind(module, state)
    module.norm(torch.rand(8, 3) + 5)
    assert state[layout.trainable : layout.trainable + 3].min() > 0.4


def test_a_head_is_needed_by_its_readers_alone_and_a_wrong_name_is_refused() -> None:
    layout = Layout.of(nn.Linear(2, 2))
    assert layout.head == ()
    with pytest.raises(Refusal, match="The selector reads the model's last layer, and that of the model Linear is not"):
        layout.require_head("The selector")
    model = nn.Sequential(nn.Linear(2, 2))
    model.head = "classifier"  # type: ignore[assignment]
    with pytest.raises(Refusal, match="no layer is called so"):
        Layout.of(model)
