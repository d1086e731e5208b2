"""FedACS's insight against autograd, on one client and on a cohort, locally and stacked."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import covey
from covey.client.learner import Learner
from covey.config.schema import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.data.dataset import Samples, load_dataset
from covey.errors import Refusal
from covey.model import build_model
from covey.probe import insight
from covey.probe.insight import Insight, head_gradients, vectors
from covey.probe.losses import Losses, Utility, alike
from covey.runtime.local import LocalRuntime
from covey.runtime.stacked.stacked_runtime import StackedRuntime

DATA = load_dataset("digits", None, {})


def a_learner(model: str = "mlp") -> tuple[Learner, torch.Tensor]:
    learner = Learner(build_model(model, {}, DATA.shape, DATA.classes, 0), DATA, "fp64")
    return learner, learner.layout.read(learner.module).clone()


def by_backpropagation(learner: Learner, state: torch.Tensor, samples: Samples) -> dict[str, torch.Tensor]:
    """The gradient of the mean loss for every parameter, by a full backward pass in evaluation mode."""
    learner.place(state)
    named = dict(learner.module.named_parameters())
    loss = F.cross_entropy(learner.module(learner.inputs(samples.x)), samples.y)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def test_the_head_insight_is_rate_times_the_gradient_of_the_last_layer():
    learner, state = a_learner()
    learner.chunk = 64
    samples = Samples(DATA.x[:150], DATA.y[:150])
    gradient = by_backpropagation(learner, state, samples)
    head = learner.module.head
    measured = Insight(rate=0.3).measure(learner, state, state, samples, key=1)
    assert set(measured) == {"weight", "bias"}
    torch.testing.assert_close(measured["weight"], 0.3 * gradient[f"{head}.weight"], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(measured["bias"], 0.3 * gradient[f"{head}.bias"], rtol=1e-10, atol=1e-14)


def test_the_full_insight_is_the_gradient_of_all_parameters():
    learner, state = a_learner()
    learner.chunk = 64
    samples = Samples(DATA.x[:150], DATA.y[:150])
    gradient = by_backpropagation(learner, state, samples)
    measured = Insight(rate=1.0, kind="full").measure(learner, state, state, samples, key=1)["change"]
    torch.testing.assert_close(measured, torch.cat([value.flatten() for value in gradient.values()]))
    learner.place(state)
    assert all(parameter.requires_grad for parameter in learner.module.parameters())


class ScaledHead(nn.Module):
    """A model that changes its last layer's output, so the product of residual and input is not its gradient."""

    head = "last"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        return 3 * self.last(torch.relu(self.body(x.flatten(1))))


class ConvolvedHead(nn.Module):
    head = "last"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 4, 3)
        self.last = nn.Conv2d(4, 10, 6)

    def forward(self, x):
        return self.last(torch.relu(self.body(x.reshape(-1, 1, 8, 8)))).flatten(1)


class PixelHead(nn.Module):
    """A last layer that is a 1 x 1 convolution, of one pixel or averaged over several."""

    head = "last"

    def __init__(self, pixels: int = 1) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 4, 9 - pixels)
        self.last = nn.Conv2d(4, 10, 1)

    def forward(self, x):
        return self.last(torch.relu(self.body(x.reshape(-1, 1, 8, 8)))).mean(dim=(2, 3))


class ViewedPixelHead(PixelHead):
    def forward(self, x):
        return self.last(torch.relu(self.body(x.reshape(-1, 1, 8, 8)))).flatten(1)


class FirstPixelHead(PixelHead):
    """Returns a view that starts with the last layer's output and has one number per class."""

    def __init__(self) -> None:
        super().__init__(pixels=2)

    def forward(self, x):
        return self.last(torch.relu(self.body(x.reshape(-1, 1, 8, 8))))[:, :, 0, 0]


class PaddedHead(PixelHead):
    """One pixel from an image of nine by a padded kernel of nine: as many inputs, but other ones."""

    def __init__(self) -> None:
        super().__init__(pixels=3)
        self.last = nn.Conv2d(4, 10, 3, stride=3, padding=1)

    def forward(self, x):
        return self.last(torch.relu(self.body(x.reshape(-1, 1, 8, 8)))).flatten(1)


class ChangedHead(ScaledHead):
    def forward(self, x):
        return self.last(torch.relu(self.body(x.flatten(1)))).mul_(3)


@pytest.mark.parametrize("module", [ViewedPixelHead, ConvolvedHead])
def test_a_convolution_of_the_whole_image_is_a_product_and_needs_no_backward_pass(monkeypatch, module):
    learner = Learner(module(), DATA, "fp64")
    state = learner.layout.read(learner.module).clone()
    samples = Samples(DATA.x[:40], DATA.y[:40])
    gradient = by_backpropagation(learner, state, samples)
    monkeypatch.setattr(insight, "_head_by_autograd", None)
    measured = Insight(rate=1.0).measure(learner, state, state, samples, key=1)
    torch.testing.assert_close(measured["weight"], gradient["last.weight"])
    torch.testing.assert_close(measured["bias"], gradient["last.bias"])


@pytest.mark.parametrize(
    "module",
    [
        ScaledHead,
        ChangedHead,
        ConvolvedHead,
        PaddedHead,
        PixelHead,
        ViewedPixelHead,
        FirstPixelHead,
        lambda: PixelHead(2),
    ],
)
def test_any_last_layer_has_its_insight(module):
    learner = Learner(module(), DATA, "fp64")
    state = learner.layout.read(learner.module).clone()
    samples = Samples(DATA.x[:40], DATA.y[:40])
    gradient = by_backpropagation(learner, state, samples)
    measured = Insight(rate=1.0).measure(learner, state, state, samples, key=1)
    torch.testing.assert_close(measured["weight"], gradient["last.weight"])
    torch.testing.assert_close(measured["bias"], gradient["last.bias"])
    assert all(parameter.requires_grad for parameter in learner.module.parameters())


def test_a_head_whose_weight_is_made_of_others_sends_the_gradient_of_the_weight():
    class Normed(ScaledHead):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.utils.parametrizations.weight_norm(self.last)

        def forward(self, x):
            return self.last(torch.relu(self.body(x.flatten(1))))

    learner = Learner(Normed(), DATA, "fp64")
    state = learner.layout.read(learner.module).clone()
    found = head_gradients(learner, state, Samples(DATA.x[:40], DATA.y[:40]), [25, 15])
    assert {name: tuple(values.shape) for name, values in found.items()} == {"weight": (2, 10, 8), "bias": (2, 10)}


def test_a_head_without_bias_sends_none():
    learner, state = a_learner("leaf-cnn")
    measured = Insight(rate=1.0).measure(learner, state, state, Samples(DATA.x[:20], DATA.y[:20]), key=1)
    assert set(measured) == {"weight"}
    assert vectors({"weight": measured["weight"][None]}).shape == (1, measured["weight"].numel())


def brightness(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=0).flatten()


def test_a_users_function_finds_clients_whose_images_are_shifted():
    """Section V-E: labels are IID and only the images differ."""
    config = Config.of(
        {"environment": "iid", "clients": 20, "altered": {"shifted": 0.1}, "local": {"epochs": 1}, "runtime": "local"}
    )
    federation = build_federation(config)
    assert federation.altered is not None
    odd = {client for client, kind in enumerate(federation.altered.features) if kind}
    assert len(odd) == 2
    module = build_model("mlp", {}, DATA.shape, DATA.classes, 0)
    runtime = LocalRuntime(federation, module, workers=1)
    probe = Insight(rate=1.0, kind="tests.probe.test_insight:brightness")
    order = Order(1, np.arange(20), covey.model.layout.Layout.of(module).read(module), Local(), (probe,), train=False)
    values = vectors(runtime.execute(order).probes["insight"])
    runtime.close()
    distance = (values - values.mean(dim=0)).norm(dim=1)
    assert set(distance.topk(2).indices.tolist()) == odd


@pytest.mark.parametrize("kind", ["heads", "no.such.module:thing", "math:pi"])
def test_an_impossible_insight_is_refused(kind):
    with pytest.raises(Refusal):
        Insight(rate=1.0, kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "tutorial-cnn"])
@pytest.mark.parametrize("train", [True, False])
def test_local_and_stacked_measure_the_same(model, train):
    dataset = {"name": "synthetic", "shape": "3,32,32", "train": 400, "test": 50} if model != "mlp" else "digits"
    given = {"dataset": dataset, "environment": "dirichlet", "clients": 6, "altered": {"poison": 0.2}}
    federation = build_federation(Config.of(given))
    data = federation.dataset
    probes = (Losses(), Utility(), Insight(rate=0.1), Insight(rate=0.1, kind="full"))
    replies = {}
    for name in ("local", "stacked"):
        module = build_model(model, {}, data.shape, data.classes, 0)
        runtime = (
            LocalRuntime(federation, module, workers=1, precision="fp64")
            if name == "local"
            else StackedRuntime(federation, module, precision="fp64")
        )
        start = covey.model.layout.Layout.of(module).read(module).double()
        order = Order(1, np.array([0, 2, 3, 5]), start, Local(epochs=1, rate=0.01), probes, train=train)
        replies[name] = runtime.execute(order)
        runtime.close()
    local, stacked = replies["local"], replies["stacked"]
    assert local.states.shape == stacked.states.shape == (4, len(start) if train else 0)
    assert local.bytes_up == stacked.bytes_up
    assert local.probe_bytes == stacked.probe_bytes
    for probe, fields in local.probes.items():
        for field, values in fields.items():
            torch.testing.assert_close(stacked.probes[probe][field], values, rtol=1e-9, atol=1e-12)


def test_parts_of_equal_size_are_found_with_their_rows_and_every_row_once():
    counts = [10, 3, 10, 1, 3, 10]
    parts = torch.split(torch.arange(sum(counts)), counts)
    found = [(place, row) for places, rows in alike(counts) for place, row in zip(places, rows, strict=True)]
    assert sorted(int(place) for place, _ in found) == list(range(len(counts)))
    assert all(torch.equal(row, parts[int(place)]) for place, row in found)
    assert len(list(alike(counts))) == 3
