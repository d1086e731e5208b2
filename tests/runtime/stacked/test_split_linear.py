"""Which linear layers are split, and that whole rounds with split layers train the same models."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.model import build_model
from covey.model.layout import Layout
from covey.runtime import StackedRuntime
from covey.runtime.stacked import split_linear
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.split_linear import OutputGradients, SplitLinear, split, split_layers, splittable
from tests.conftest import SMALL
from tests.runtime.stacked.test_lane_check import held, trained

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def few(monkeypatch):
    """Have small weights count as large, and as enough."""
    monkeypatch.setattr(split_linear, "LARGE", 64 * 64)
    monkeypatch.setattr(split_linear, "LEAST_SHARE", 0.1)


class Two(nn.Module):
    """Two linear layers, in whose place a test puts others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(64, 64)
        self.b = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(F.relu(self.a(x)))
        return y


class Twice(Two):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(F.relu(self.a(F.relu(self.a(x)))))
        return y


class WeightUsedApart(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.a.weight.sum()


class ThreeDimensions(Two):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x.unflatten(0, (2, -1))).flatten(0, 1))
        return y


class RowsOfPieces(Two):
    """Every sample is two rows of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(torch.cat([x, x + 1]))
        return y[: len(x)] + y[len(x) :]


class NotReached(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 0.0 - 1e9).relu() * 0.0


class InPlace(Two):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x).relu_())
        return y


def tied() -> nn.Module:
    module = Two()
    module.b.weight = module.a.weight
    return module


def hooked() -> nn.Module:
    module = Two()
    module.a.register_forward_hook(lambda layer, given, y: y * 2)
    return module


def frozen() -> nn.Module:
    module = Two()
    module.a.weight.requires_grad_(False)
    return module


def normed() -> nn.Module:
    module = Two()
    module.a = nn.utils.parametrizations.weight_norm(module.a)
    return module


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Two, ["a", "b"]),
        (InPlace, ["a", "b"]),
        (Twice, ["b"]),
        (WeightUsedApart, ["b"]),
        (ThreeDimensions, ["b"]),
        (RowsOfPieces, []),
        (NotReached, []),
        (tied, []),
        (hooked, ["b"]),
        (frozen, ["b"]),
        (normed, ["b"]),
    ],
)
def test_layers_whose_gradient_is_not_that_of_one_call_on_rows_of_samples_stay(make, names):
    module = make()
    before = copy.deepcopy(module.state_dict())
    assert splittable(module, X) == names
    assert not split_layers(module) and module.state_dict().keys() == before.keys()


def test_only_large_weights_that_are_most_of_a_model_are_split(monkeypatch):
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    assert splittable(wide, X) == ["1"]
    assert splittable(Two(), X) == []
    assert splittable(nn.Sequential(wide, nn.Linear(10, 7000), nn.Linear(7000, 2)), X) == ["0.1", "1"]
    monkeypatch.setattr(split_linear, "LEAST_SHARE", 0.9)
    assert splittable(wide, X) == []
    monkeypatch.setattr(split_linear, "LARGE", 64 * 64)
    monkeypatch.setattr(split_linear, "LEAST_SHARE", 0.5)
    assert splittable(Twice(), X) == [], "what may be split is too little"


@pytest.mark.parametrize(("name", "shape"), [("pfl-cnn", (3, 32, 32)), ("mcmahan-cnn", (1, 28, 28))])
def test_the_first_linear_layer_of_small_networks_for_images_is_split(name, shape):
    module = build_model(name, {}, shape, 10, 0)
    assert splittable(module, torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))) == ["fc1"]


def test_networks_of_convolutions_alone_have_no_layers_to_split():
    module = build_model("tutorial-cnn", {}, (3, 32, 32), 10, 0)
    assert splittable(module, torch.randn(4, 3, 32, 32)) == []


def test_a_split_layer_gives_its_input_and_the_gradient_by_its_output():
    module = Two()
    weight = module.a.weight
    split(module, ["a"])
    (layer,) = split_layers(module).values()
    assert isinstance(layer, SplitLinear) and layer.weight is weight and type(module.b) is nn.Linear
    zeros = torch.zeros(4, 64, requires_grad=True)
    with OutputGradients({"a": layer}, {"a": zeros}) as taken:
        loss = module(X).square().sum()
        x = taken.inputs()["a"]
    assert layer.zeros is None and layer.given is None
    of_weight, by_output = torch.autograd.grad(loss, [weight, zeros])
    torch.testing.assert_close(by_output.t() @ x, of_weight)
    with (
        pytest.raises(ValueError, match=r"gives \[4, 64\], not \[3, 64\]"),
        OutputGradients({"a": layer}, {"a": zeros}),
    ):
        module(X[:3])


def in_split_layers(monkeypatch, names, compiles=False):
    """Have these layers of models on a CPU be split."""
    make_step = Engine.make_step

    def made(engine, terms, algorithms, updated=()):
        engine.compiles = compiles
        return make_step(engine, terms, algorithms, names)

    monkeypatch.setattr(Engine, "make_step", made)


WORKS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 1e-2, "proximal": 0.1},
    {"weight_decay": 1e-2},
]
MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any], list[str]]] = {
    "mlp": ((1, 8, 8), {"hidden": (32, 16)}, ["layers.hidden0", "layers.hidden1"]),
    "mlp with batch norm": ((1, 8, 8), {"hidden": (32,), "norm": "batch"}, ["layers.hidden0", "layers.head"]),
    "pfl-cnn": ((3, 12, 12), {}, ["fc1"]),
}


def rounds(name, work, most_lanes):
    """Return models and losses of two rounds of seven clients of unequal size."""
    shape, options, _ = MODELS[name]
    dataset = {"name": "synthetic", "shape": shape, "train": 90, "test": 20}
    skewed = {"name": "dirichlet", "alpha": 0.5}
    federation = build_federation(Config.of({**SMALL, "dataset": dataset, "environment": skewed}))
    module = build_model(name.split()[0], options, shape, federation.dataset.classes, 0)
    runtime = StackedRuntime(federation, module, seed=3, precision="fp64")
    runtime.engine.most_lanes = most_lanes
    start = Layout.of(module).read(module).double()
    replies = [runtime.execute(Order(t, np.arange(7), start, Local(epochs=2, batch=4, **work))) for t in (1, 2)]
    return [one.states for one in replies], [torch.as_tensor(one.losses) for one in replies]


@pytest.mark.parametrize("work", WORKS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_rounds_with_split_layers_train_the_same_models(monkeypatch, name, work):
    """Clients of several sizes leave lanes idle, and batches partly filled."""
    wanted = rounds(name, work, 3)
    in_split_layers(monkeypatch, MODELS[name][2])
    torch.testing.assert_close(rounds(name, work, 3), wanted, rtol=1e-9, atol=1e-12)


def test_a_compiled_round_with_split_layers_trains_the_same_models(monkeypatch):
    """The step is one graph, which changes weights, working copies and velocities where they are."""
    work = {"momentum": 0.9, "weight_decay": 1e-2, "proximal": 0.1}
    wanted = held(trained(precision="fp64", **work))
    in_split_layers(monkeypatch, ["layers.hidden0"], compiles=True)
    compile_step = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step, **given: compile_step(step, fullgraph=True, **given))
    torch.testing.assert_close(held(trained(precision="fp64", **work)), wanted, rtol=1e-9, atol=1e-12)
