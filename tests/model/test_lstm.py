"""The LSTM computes the same as torch's own, also as a stack of models, and learns on every runtime."""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from covey import randomness, run
from covey.client.learner import Learner
from covey.config.schema import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.data import Samples
from covey.environment.federated_data import Federation
from covey.errors import Refusal
from covey.model import LSTMCells, build_model, dropout_layers, set_dropout_key
from covey.model.layout import Layout
from covey.runtime import LocalRuntime, StackedRuntime
from tests.data.test_text import made_up, written

TINY: dict[str, Any] = {"embedding": 6, "hidden": 7, "layers": 2}


class Torchs(nn.Module):
    """The same model with torch's own LSTM."""

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.lstm(self.embedding(x))[0][:, -1])
        return logits


def tokens(*shape: int, classes: int = 30, key: int = 1) -> Tensor:
    return randomness.integers(key, torch.Size(shape).numel(), classes).view(shape)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Eight users of four topics; half of all next words follow from the one before."""
    return build_federation(Config.of(setup(tmp_path_factory.mktemp("texts"))))


def setup(folder, **more: Any) -> dict[str, Any]:
    path = written(folder / "made-up.jsonl", made_up(10, texts=12))
    dataset = {"name": "text", "path": str(path), "minimum": 12, "samples": 60, "test_users": 2, "length": 6}
    return {
        "dataset": dataset,
        "environment": "natural",
        "model": {"name": "lstm", "embedding": 12, "hidden": 16},
        "cohort": 4,
        "rounds": 6,
        "workers": 1,
        "local": {"epochs": 2, "batch": 10, "rate": 1.0},
        **more,
    }


@pytest.mark.parametrize(("layers", "steps", "samples"), [(1, 1, 1), (1, 5, 3), (2, 10, 4), (3, 7, 1), (5, 4, 2)])
def test_outputs_and_gradients_are_those_of_torchs_lstm(layers, steps, samples):
    ours = build_model("lstm", {**TINY, "layers": layers}, (steps,), 30, seed=0)
    theirs = Torchs(30, 6, 7, layers)
    theirs.load_state_dict(ours.state_dict())
    x, y = tokens(samples, steps), tokens(samples, key=2)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)
    ours, theirs = ours.double(), theirs.double()
    one, other = (dict(module.named_parameters()) for module in (ours, theirs))
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(F.cross_entropy(ours(x), y), list(one.values()))
    wanted = dict(zip(other, torch.autograd.grad(F.cross_entropy(theirs(x), y), list(other.values())), strict=True))
    for name, gradient in zip(one, gradients, strict=True):
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)


def test_parameters_have_the_names_and_first_values_of_torchs_lstm():
    torch.manual_seed(5)
    ours = LSTMCells(4, 6, 3)
    torch.manual_seed(5)
    theirs = nn.LSTM(4, 6, 3)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())


def test_the_papers_size_is_the_default():
    module = build_model("lstm", {}, (10,), 10_000, seed=0)
    embedding, layer, classifier = 10_000 * 200, 800 * 200 * 2 + 2 * 800, 10_000 * 201
    layout = Layout.of(module)
    assert layout.trainable == layout.size == embedding + 2 * layer + classifier
    assert [slot.name for slot in layout.head] == ["classifier.weight", "classifier.bias"]


def test_logits_depend_on_the_order_of_words_and_not_on_other_samples():
    module = build_model("lstm", TINY, (5,), 30, seed=0).eval()
    x = tokens(3, 5)
    with torch.inference_mode():
        logits = module(x)
        assert not torch.allclose(module(x.flip(1)), logits, atol=1e-3)
        torch.testing.assert_close(module(x[1:2]), logits[1:2])


def test_a_stack_of_models_has_the_gradients_of_the_loop_with_dropout():
    module = build_model("lstm", {**TINY, "layers": 3, "dropout": 0.4}, (5,), 30, seed=0).double().train()
    states = {
        name: torch.stack([p.detach() * (1 + 0.1 * client) for client in range(3)])
        for name, p in module.named_parameters()
    }
    keys = randomness.bits(randomness.key(0, 1, "dropout"), 3)
    x, y = tokens(3, 4, 5), tokens(3, 4, key=2)

    def loss(parameters: dict[str, Tensor], key: Tensor, x: Tensor, y: Tensor) -> Tensor:
        buffers = {f"{name}.key": key for name in dropout_layers(module)}
        return F.cross_entropy(functional_call(module, {**parameters, **buffers}, (x,)), y)

    stacked = vmap(grad(loss))(states, keys, x, y)
    for client, key in enumerate(keys.tolist()):
        set_dropout_key(module, key)
        mine = {name: value[client].clone().requires_grad_() for name, value in states.items()}
        alone = torch.autograd.grad(F.cross_entropy(functional_call(module, mine, (x[client],)), y[client]),
                                    list(mine.values()))  # fmt: skip
        for name, gradient in zip(states, alone, strict=True):
            torch.testing.assert_close(stacked[name][client], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_stack_of_models_is_captured_whole_for_compilation():
    module = build_model("lstm", {**TINY, "dropout": 0.2}, (3,), 30, seed=0).train()
    states = {name: p.detach().expand(2, *p.shape) for name, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, parameters, (x,)), y)

    gradients = vmap(grad(loss))
    captured = torch.compile(gradients, fullgraph=True, backend="eager")
    x, y = tokens(2, 4, 3), tokens(2, 4, key=2)
    for name, gradient in captured(states, x, y).items():
        torch.testing.assert_close(gradient, gradients(states, x, y)[name])


def test_dropout_lies_between_layers_and_masks_do_not_depend_on_the_batch():
    assert not dropout_layers(build_model("lstm", TINY, (5,), 30, seed=0))
    assert not dropout_layers(build_model("lstm", {**TINY, "layers": 1, "dropout": 0.5}, (5,), 30, seed=0))
    module = build_model("lstm", {**TINY, "layers": 3, "dropout": 0.5}, (5,), 30, seed=0).train()
    assert [(layer.p, layer.number) for layer in dropout_layers(module).values()] == [(0.5, 0), (0.5, 1)]
    x = tokens(6, 5)
    with torch.inference_mode():
        set_dropout_key(module, 1)
        first = module(x)
        torch.testing.assert_close(module(x[:2]), first[:2])
        set_dropout_key(module, 2)
        assert not torch.allclose(module(x), first)
        module.eval()
        without = build_model("lstm", {**TINY, "layers": 3}, (5,), 30, seed=0).eval()
        assert torch.equal(module(x), without(x))


@pytest.mark.parametrize(
    ("options", "shape", "sentence"),
    [
        ({}, (3, 32, 32), "'lstm' needs sequences of words, and samples here have the shape 3 x 32 x 32"),
        ({"layers": 0}, (5,), "model.layers must be at least 1, not 0"),
        ({"hidden": 0}, (5,), "model.hidden must be at least 1"),
        ({"dropout": 1.0}, (5,), "model.dropout is the share to drop between layers"),
    ],
)
def test_impossible_options_are_refused(options, shape, sentence):
    with pytest.raises(Refusal, match=sentence):
        build_model("lstm", options, shape, 30, seed=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_a_client_learns_its_own_words_in_every_precision(federation, precision):
    dataset = federation.dataset
    module = build_model("lstm", {"embedding": 12, "hidden": 16, "dropout": 0.1}, dataset.shape, dataset.classes, 0)
    learner = Learner(module, dataset, precision)
    start = learner.layout.read(module)
    samples = federation.samples(0)
    trained, _ = learner.fit(start, samples, Local(epochs=5, batch=10, rate=1.0), t=1, key=0)
    assert learner.mean_loss(trained, samples) < 0.8 * learner.mean_loss(start, samples)
    assert all(not torch.equal(slot.of(trained), slot.of(start)) for slot in learner.layout.parameters)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3, "layers": 3}], ids=["plain", "dropout"])
def test_both_runtimes_train_alike(federation, options):
    dataset = federation.dataset
    module = build_model("lstm", {**TINY, **options}, dataset.shape, dataset.classes, seed=0)
    start = Layout.of(module).read(module).double()
    work = Local(epochs=2, batch=7, rate=0.5, momentum=0.5, weight_decay=1e-3, proximal=0.01)
    order = Order(2, np.array([0, 3, 5]), start, work)
    local = LocalRuntime(federation, copy.deepcopy(module), seed=3, workers=1, precision="fp64")
    stacked = StackedRuntime(federation, copy.deepcopy(module), seed=3, precision="fp64")
    one, other = local.execute(order), stacked.execute(order)
    mine, theirs = (runtime.evaluate(start[None]) for runtime in (local, stacked))
    local.close()
    assert (one.states - other.states).norm() <= 1e-9 * (one.states - start).norm()
    assert torch.allclose(one.losses, other.losses, rtol=1e-9)
    assert np.array_equal(mine.correct, theirs.correct) and mine.loss == pytest.approx(theirs.loss, rel=1e-12)
    assert not mine.correct[:, :2].any()


def test_five_layers_train_by_adam_alike_on_both_runtimes(federation):
    dataset = federation.dataset
    module = build_model("lstm", {**TINY, "layers": 5}, dataset.shape, dataset.classes, seed=0)
    start = Layout.of(module).read(module).double()
    order = Order(1, np.array([0, 3, 5]), start, Local(epochs=2, batch=7, rate=0.002, optimizer="adam", clip=5.0))
    local = LocalRuntime(federation, copy.deepcopy(module), seed=3, workers=1, precision="fp64")
    stacked = StackedRuntime(federation, copy.deepcopy(module), seed=3, precision="fp64")
    one, other = local.execute(order), stacked.execute(order)
    local.close()
    assert (one.states - other.states).norm() <= 1e-9 * (one.states - start).norm()


@pytest.mark.slow
def test_rounds_of_averaging_lower_the_loss_and_are_the_same_stacked(tmp_path):
    given = setup(tmp_path, precision="fp64", rounds=4)
    local = run(given, out=tmp_path / "local")
    stacked = run(given, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    losses = [row["loss"] for row in local.metrics]
    assert losses[-1] < 0.95 * losses[0]
    assert losses == pytest.approx([row["loss"] for row in stacked.metrics], rel=1e-9)
    assert [row["accuracy"] for row in local.metrics] == [row["accuracy"] for row in stacked.metrics]
    assert json.loads((tmp_path / "local" / "metrics.jsonl").read_text().splitlines()[0])["clients"]


def test_samples_appended_to_a_batch_change_nothing_for_the_others(federation):
    dataset = federation.dataset
    learner = Learner(build_model("lstm", TINY, dataset.shape, dataset.classes, seed=0), dataset, "fp64")
    state = learner.layout.read(learner.module)
    whole = learner.losses(state, Samples(dataset.x[:9], dataset.y[:9]))
    torch.testing.assert_close(learner.losses(state, Samples(dataset.x[:4], dataset.y[:4])), whole[:4])
