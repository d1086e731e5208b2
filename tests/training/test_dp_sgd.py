"""DP-SGD: clipped gradients of single samples, noise of the stated size, and the ε of the most visited client."""

import json
import math
import sys
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor, nn
from torch.func import grad, vmap

from covey import Config, Refusal, run
from covey.client.learner import Learner
from covey.client.local_work import key_of_client
from covey.client.trainer_fit import LocalNet, TrainerTask, clipped_mean, fit_by
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.interfaces import Setting
from covey.core.messages import Order
from covey.core.trainer import Batch, TrainerOrder, TrainerRef, parameter_tree
from covey.data.dataset import Dataset, Samples
from covey.flower import InProcessGrid, Strategy
from covey.flower.node_memory import Memory
from covey.flower.node_work import Client
from covey.flower.wire import NodeTask, unpack_answer
from covey.job.on_demand import ondemand
from covey.job.result_text import privacy_text, run_summary
from covey.model import build_model
from covey.model.layout import Layout, Slot
from covey.model.trees import Tree
from covey.randomness import bits, key, normal
from covey.runtime import LocalRuntime, StackedRuntime
from covey.runtime.stacked.convolution import StackConv2d
from covey.runtime.stacked.engine import Engine
from covey.training.dp_sgd import DPSGD
from tests.conftest import SMALL
from tests.equal_runs import ends_the_same
from tests.flower.test_flower import a_local_experiment, an_app, net
from tests.model.test_lstm import TINY, setup

SLOT = (Slot("weight", (4,), 0),)
SETTING = Setting(6, 2, 50, 10, 0, Layout(SLOT, (), SLOT), Local(epochs=3))
X = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
Y = torch.tensor([0, 1])
TOLD: Any = None
"""What DP-SGD does not look at: the facts about a client."""


class Scores(nn.Module):
    """Two scores, linear in two inputs, at first all 0."""

    head = "layer"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def a_net(module: nn.Module | None = None, *, secret: bool = False) -> tuple[LocalNet, Tree]:
    learner = Learner(module or Scores(), Dataset("two", X, Y, X, Y, ("a", "b")), "fp64")
    state = learner.layout.read(learner.module)
    learner.layout.bind(learner.module, state)
    w = parameter_tree(state, learner.layout)
    return LocalNet(learner, w, uses_features=False, secret=secret), w


def a_batch(x: Tensor = X, y: Tensor = Y, weight: Tensor | None = None, at: int = 5) -> Batch:
    weight = torch.full((len(y),), 1 / len(y), dtype=torch.float64) if weight is None else weight
    return Batch(x, y, weight, torch.tensor(0.1), torch.tensor(0), torch.tensor(at))


def step_of(trainer: DPSGD, batch: Batch, **options: Any) -> Tree:
    own, w = a_net(**options)
    return trainer.client_step(w, batch, TOLD, {}, own)[0]


# --- the step


def test_a_step_by_hand():
    """At zero both scores are 1/2: a sample's gradient is ±x/2 for the weights, and ±1/2 for the biases.

    The first has the norm √(2·25/4 + 2/4) = √13, which is clipped to 2; the second √(2/4 + 2/4) = 1, which is not.
    """
    found = step_of(DPSGD(noise=3.0, clip=2.0, delta=None), a_batch())
    cut = 2 / math.sqrt(13)
    weight = torch.tensor([[-1.5 * cut, -2.0 * cut + 0.5], [1.5 * cut, 2.0 * cut - 0.5]], dtype=torch.float64) / 2
    bias = torch.tensor([-0.5 * cut + 0.5, 0.5 * cut - 0.5], dtype=torch.float64) / 2
    drawn = box_muller(5 ^ (key("noise") >> 1), 6)
    deviation = 3.0 * 2.0 / 2
    assert torch.allclose(found["layer.weight"], weight + deviation * drawn[:4].view(2, 2), rtol=0, atol=1e-12)
    assert torch.allclose(found["layer.bias"], bias + deviation * drawn[4:], rtol=0, atol=1e-12)


def box_muller(step_key: int, count: int) -> Tensor:
    """Standard normal numbers from the words of a key, one after another."""
    words = [word & (1 << 64) - 1 for word in bits(step_key, count).tolist()]
    uniform = [((word >> 11) + 1) / 2**53 for word in words]
    pairs = list(zip(uniform[: count // 2], uniform[count // 2 :], strict=True))
    length = [math.sqrt(-2 * math.log(radius)) for radius, _ in pairs]
    cosines = [one * math.cos(2 * math.pi * angle) for one, (_, angle) in zip(length, pairs, strict=True)]
    sines = [one * math.sin(2 * math.pi * angle) for one, (_, angle) in zip(length, pairs, strict=True)]
    return torch.tensor(cosines + sines, dtype=torch.float64)


def test_padding_neither_moves_the_mean_nor_lowers_the_noise():
    trainer = DPSGD(noise=1.0, clip=0.5, delta=None)
    x, y = torch.cat([X, torch.full((3, 2), 9.0, dtype=torch.float64)]), torch.cat([Y, torch.zeros(3, dtype=Y.dtype)])
    weight = torch.tensor([0.5, 0.5, 0, 0, 0], dtype=torch.float64)
    plain, padded = step_of(trainer, a_batch()), step_of(trainer, a_batch(x, y, weight))
    for name, value in plain.items():
        assert torch.allclose(value, padded[name], rtol=0, atol=1e-14)


def test_the_noise_of_many_steps_has_the_stated_deviation():
    """b = 4, z = 1.5 and C = 0.2: the mean gradient has noise of 0.075."""
    trainer = DPSGD(noise=1.5, clip=0.2, delta=None)
    x, y = X.repeat(2, 1), Y.repeat(2)
    own, w = a_net()
    exact = own.clipped_gradient(w, a_batch(x, y), 0.2)
    drawn = []
    for at in range(2000):
        own.next_step()
        found = trainer.client_step(w, a_batch(x, y, at=at), TOLD, {}, own)[0]
        drawn.append(torch.cat([(found[name] - exact[name]).flatten() for name in exact]))
    noise = torch.stack(drawn)
    count = noise.numel()
    assert abs(float(noise.mean())) < 4 * 0.075 / math.sqrt(count)
    assert float(noise.std()) == pytest.approx(0.075, rel=4 / math.sqrt(2 * count))
    # Numbers of one step do not depend on each other.
    off = torch.corrcoef(noise.t()) - torch.eye(6, dtype=torch.float64)
    assert float(off.abs().max()) < 5 / math.sqrt(len(noise))


def test_normal_numbers_are_normal_for_one_key_and_for_many():
    many = normal(torch.arange(200), 501)
    assert many.shape == (200, 501) and many.dtype == torch.float64
    assert torch.equal(many[7], normal(7, 501)) and torch.equal(
        vmap(lambda one: normal(one, 501))(torch.arange(200)), many
    )
    flat = many.flatten()
    assert abs(float(flat.mean())) < 4 / math.sqrt(len(flat))
    assert float(flat.square().mean()) == pytest.approx(1.0, abs=4 * math.sqrt(2 / len(flat)))
    assert float(flat.pow(4).mean()) == pytest.approx(3.0, abs=4 * math.sqrt(96 / len(flat)))
    for bound, share in ((1.0, 0.15866), (2.0, 0.02275), (3.0, 0.00135)):
        assert float((flat > bound).double().mean()) == pytest.approx(share, abs=4 * math.sqrt(share / len(flat)))


def test_noise_is_the_same_within_a_step_and_another_in_the_next():
    own, w = a_net()
    first = own.noise(w, a_batch())
    assert all(torch.equal(first[name], value) for name, value in own.noise(w, a_batch()).items())
    own.next_step()
    assert not torch.equal(first["layer.weight"], own.noise(w, a_batch(at=6))["layer.weight"])


@pytest.mark.parametrize("other", [[1e3, -1e3], [math.nan, 0.0], [math.inf, 1.0], [1e200, 1e200], [0.0, 0.0]], ids=str)
def test_whatever_replaces_a_sample_moves_the_sum_by_twice_the_bound_at_most(other):
    own, w = a_net()
    bound = 0.7
    before = own.clipped_gradient(w, a_batch(), bound)
    changed = torch.stack([torch.tensor(other, dtype=torch.float64), X[1]])
    for y in (Y, 1 - Y):
        after = own.clipped_gradient(w, a_batch(changed, torch.stack([y[0], Y[1]])), bound)
        moved = torch.cat([(after[name] - before[name]).flatten() for name in before]) * len(Y)
        assert float(moved.norm()) <= 2 * bound + 1e-12


def test_gradients_in_half_precision_are_clipped_in_full():
    each = {"w": torch.full((3, 1000), 0.1, dtype=torch.bfloat16)}
    mean = clipped_mean(each, torch.full((3,), 1 / 3), 1.0)["w"]
    assert mean.dtype == torch.float32
    assert float(mean.norm()) == pytest.approx(1.0, rel=1e-5)


def test_optimiser_settings_follow_the_noisy_gradient(tmp_path):
    """Momentum and a proximal term are computed from what is private already."""
    given = {**SMALL, "rounds": 2, "trainer": "dp-sgd", "local": {"momentum": 0.5, "clip": 1.0, "proximal": 0.1}}
    assert np.isfinite(run(given, out=tmp_path / "run").metrics[-1]["loss"])


# --- real clients


def test_on_real_clients_the_seed_does_not_tell_the_noise():
    trainer = DPSGD(noise=1.0, clip=1.0, delta=None)
    drawn = [step_of(trainer, a_batch(), secret=True)["layer.weight"] for _ in range(2)]
    assert not torch.equal(*drawn)
    own, w = a_net(secret=True)
    first = own.noise(w, a_batch())["layer.weight"]
    assert torch.equal(first, own.noise(w, a_batch())["layer.weight"])
    many = []
    for _ in range(2000):
        own.next_step()
        many.append(own.noise(w, a_batch())["layer.weight"])
    assert float(torch.stack(many).std()) == pytest.approx(1.0, abs=0.04)


def test_nodes_draw_other_noise_than_a_simulation_and_otherwise_train_alike():
    work = {"epochs": 1, "batch": 5, "rate": 0.05}

    def trained(noise: float) -> tuple[Tensor, Strategy]:
        trainer = {"name": "dp-sgd", "noise": noise, "clip": 0.5}
        strategy = Strategy("fedavg", model=net(), clients=3, cohort=3, local=work, trainer=trainer)
        strategy.start(InProcessGrid(an_app(), 3), ArrayRecord(net().state_dict()), num_rounds=2)
        assert [entry["faults"] for entry in strategy.history] == [[], []]
        assert strategy.method is not None
        return strategy.method.models(), strategy

    def simulated(noise: float) -> Tensor:
        trainer = {"name": "dp-sgd", "noise": noise, "clip": 0.5}
        return a_local_experiment("fedavg", 2, local=work, trainer=trainer).method.models()

    assert torch.allclose(trained(1e-9)[0], simulated(1e-9), rtol=0, atol=1e-6)
    models = [trained(1.0)[0], trained(1.0)[0], simulated(1.0)]
    assert all((one - other).norm() > 1e-3 for one, other in ((models[0], models[1]), (models[0], models[2])))
    assert torch.equal(simulated(1.0), models[2])
    figures = trained(1.0)[1].history[-1]["figures"]
    assert figures["epsilon"] == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / 2 / math.sqrt(2), 1e-5))


@pytest.mark.parametrize("simulated", [True, False])
def test_simulated_nodes_draw_the_noise_of_the_seed(simulated):
    learner = Learner(Scores(), Dataset("two", X, Y, X, Y, ("a", "b")), "fp64")
    start, work = learner.layout.read(learner.module).clone(), Local(epochs=1, batch=2)
    trainer = TrainerTask(TrainerRef("dp-sgd"))
    instructions: dict[str, Any] = {"run": "r", "job": "", "seed": 4, "round": 1, "client": 0, "own": False}
    instructions |= {"anchor": None, "probes": (), "train": True, "gate": None, "holdout": 0, "returns": True}
    task = NodeTask(**instructions, start=start, work=work, holds=False, trainer=trainer)
    content = Client(learner, Samples(X, Y), simulated=simulated).answer(task, Memory(RecordDict(), "r"))
    sent = unpack_answer(content, {}).state
    alone = fit_by(trainer, learner, start, Samples(X, Y), work, 1, key_of_client(4, 1, 0)).state
    assert sent is not None and torch.equal(sent, alone) is simulated


# --- runtimes


def alike(federation: Any, module: nn.Module, options: dict[str, Any] | None = None, **work: Any) -> tuple[Any, Any]:
    """Assert that both runtimes train alike by DP-SGD, with incomplete batches and fewer lanes than clients."""
    start = Layout.of(module).read(module).double()
    ref = TrainerRef("dp-sgd", tuple(sorted({"clip": 0.3, "noise": 0.4, **(options or {})}.items())))
    local = LocalRuntime(federation, module, seed=3, workers=1, precision="fp64")
    stacked = StackedRuntime(federation, module, seed=3, precision="fp64")
    stacked.engine.most_lanes = 3
    order = Order(
        2, np.arange(5), start, Local(**{"epochs": 2, "batch": 7, "rate": 0.1, **work}), trainer=TrainerOrder(ref)
    )
    one, other = local.execute(order), stacked.execute(order)
    local.close()
    assert (federation.sizes[:5] % 7).any()
    assert (one.states - other.states).norm() <= 1e-9 * (one.states - start).norm()
    assert torch.allclose(one.losses, other.losses, rtol=1e-9)
    assert (one.states - start).norm() > 0
    return start, one


@pytest.mark.parametrize("model", [("mlp", {"hidden": (9,)}), ("tutorial-cnn", {}), ("fashion-cnn", {})], ids=str)
def test_both_runtimes_train_alike(model):
    shape = (1, 8, 8) if model[0] == "mlp" else (1, 28, 28) if model[0] == "fashion-cnn" else (3, 32, 32)
    data = {"name": "synthetic", "shape": shape, "train": 70, "test": 10}
    given = {"dataset": data, "environment": {"name": "dirichlet", "alpha": 1.0}, "clients": 5, "cohort": 5}
    federation = build_federation(Config.of(given))
    dataset = federation.dataset
    name, options = model
    alike(federation, build_model(name, options, dataset.shape, dataset.classes, seed=0), epochs=1)


@pytest.mark.parametrize("options", [{}, {"layers": 2, "dropout": 0.3}], ids=["plain", "dropout"])
def test_words_and_recurrences_train_alike_on_both_runtimes(options, tmp_path):
    federation = build_federation(Config.of(setup(tmp_path)))
    dataset = federation.dataset
    alike(federation, build_model("lstm", {**TINY, **options}, dataset.shape, dataset.classes, seed=0), momentum=0.5)


@pytest.mark.slow
def test_a_step_of_a_stack_is_captured_whole_for_compilation(monkeypatch, tmp_path):
    """On a GPU steps are compiled."""
    plain = Engine.make_step
    monkeypatch.setattr(
        Engine,
        "make_step",
        lambda *given: torch.compile(plain(*given), fullgraph=True, dynamic=False, backend="aot_eager"),
    )
    federation = build_federation(Config.of(setup(tmp_path)))
    dataset = federation.dataset
    made = build_model("lstm", {**TINY, "layers": 2, "dropout": 0.3}, dataset.shape, dataset.classes, seed=0)
    alike(federation, made, epochs=1, momentum=0.5)


class Dropping(nn.Module):
    """A small network with a dropout layer."""

    head = "last"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(math.prod(shape), 12), nn.Linear(12, classes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(self.first(x.flatten(1)).relu()))
        return out


def test_samples_have_dropout_masks_of_their_own():
    given = {**SMALL, "environment": {"name": "dirichlet", "alpha": 0.3}}
    federation = build_federation(Config.of(given))
    dataset = federation.dataset
    made = build_model("tests.training.test_dp_sgd:Dropping", {}, dataset.shape, dataset.classes, seed=0)
    alike(federation, made)
    learner = Learner(made, dataset, "fp64")
    state = learner.layout.read(made)
    learner.layout.bind(learner.module, state)
    learner.module.train()
    w = parameter_tree(state, learner.layout)
    own = LocalNet(learner, w, uses_features=False)
    x, y = learner.inputs(dataset.x[:1]), dataset.y[:1]
    # The same sample eight times: with one mask for all, the mean would be the gradient of one.
    alone = own.clipped_gradient(w, a_batch(x, y), 1e9)
    together = own.clipped_gradient(w, a_batch(x.repeat(8, 1, 1, 1), y.repeat(8)), 1e9)
    assert not torch.allclose(alone["last.weight"], together["last.weight"])


@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_for_images_has_gradients_of_single_samples_in_a_stack(bias):
    """The operator that Triton computes on a GPU, under a `vmap` over samples within one over lanes."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1, bias=bias).double() for _ in range(4)]
    weights = {
        name: torch.stack([dict(one.named_parameters())[name] for one in layers]).detach()
        for name, _ in layers[0].named_parameters()
    }
    x = torch.randn(4, 5, 2, 6, 6, dtype=torch.float64)

    def of(module: nn.Module) -> Any:
        def loss(parameters: Tree, image: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(module, parameters, (image[None],))
            return out.pow(3).sum()

        return loss

    ours = vmap(vmap(grad(of(StackConv2d(layers[0], "kernel"))), in_dims=(None, 0)))(weights, x)
    for lane in range(4):
        for sample in range(5):
            own = {name: value[lane] for name, value in weights.items()}
            expected = grad(of(layers[0]))(own, x[lane, sample])
            for name, value in expected.items():
                assert torch.allclose(ours[name][lane, sample], value, rtol=1e-10)


def test_runs_end_the_same_on_every_runtime_and_when_they_are_resumed(tmp_path):
    given = {**SMALL, "rounds": 5, "precision": "fp64", "trainer": {"name": "dp-sgd", "clip": 0.5}}
    ends_the_same({**given, "devices": {"dropout": 0.3}}, tmp_path)


def test_methods_that_trace_steps_see_the_clipped_gradients(tmp_path):
    """On-Demand FL's predictor learns from the last layer's gradients along the training."""
    predictor = {"name": "ondemand", "hidden": 8, "epochs": 1}
    given = {**SMALL, "precision": "fp64", "selector": "uniform", "aggregator": predictor, "trainer": "dp-sgd"}
    given = {**given, "local": {"epochs": 1, "batch": 4}}
    local = run(given, out=tmp_path / "local")
    stacked = run(given, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    for mine, theirs in zip(local.metrics, stacked.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)


# --- ε


def begun(setting: Setting = SETTING, **options: Any) -> DPSGD:
    trainer = DPSGD(**options)
    trainer.begin(setting)
    return trainer


def delta_of(epsilon: float, mu: float) -> float:
    """δ of the Gaussian mechanism with sensitivity μ·σ (Balle and Wang 2018, theorem 8)."""

    def below(value: float) -> float:
        return math.erfc(-value / math.sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


def test_epsilon_is_that_of_the_client_that_was_invited_most_often():
    trainer = begun(noise=8.0)
    for t, cohort in enumerate(([0, 1], [1, 2], [1, 5]), start=1):
        trainer.invited(t, np.array(cohort))
    figures = trainer.figures()
    # Three visits of three epochs, each a mechanism of sensitivity 2C and deviation 8C.
    mu = 2 * math.sqrt(3 * 3) / 8
    epsilon = figures["epsilon"]
    assert isinstance(epsilon, float)
    assert delta_of(epsilon, mu) == pytest.approx(1e-5, rel=1e-6)
    assert figures == {"epsilon": trainer.epsilon(9), "delta": 1e-5, "protects": "sample"}


def test_epsilon_rises_with_rounds_and_epochs_and_falls_with_noise():
    def after(rounds: int, epochs: int = 3, **options: Any) -> float:
        trainer = begun(replace(SETTING, work=Local(epochs=epochs)), **options)
        for t in range(1, rounds + 1):
            trainer.invited(t, np.array([2]))
        epsilon = trainer.figures()["epsilon"]
        assert isinstance(epsilon, float)
        return epsilon

    assert after(3) > after(2) < after(2, epochs=4)
    assert after(2) < after(2, noise=0.9)
    assert after(2) == after(2, clip=7.0) == after(3, epochs=2)
    assert begun(delta=None).epsilon(2) is None and begun(delta=None).figures() == {}


def test_a_reply_that_is_lost_counts(tmp_path):
    given = {**SMALL, "cohort": 8, "rounds": 3, "trainer": "dp-sgd", "devices": {"dropout": 0.9}}
    figures = run(given, out=tmp_path / "run").metrics[-1]["figures"]
    assert figures["epsilon"] == begun().epsilon(3)


def test_what_was_told_is_not_taken_back_with_a_model():
    trainer = begun()
    before = trainer.state_dict()
    trainer.invited(1, np.array([0, 3]))
    assert not before["epochs"].any()
    trainer.load_state_dict(before)
    assert trainer.figures()["epsilon"] == trainer.epsilon(3)


def test_a_round_of_real_clients_that_was_cut_off_counts_for_everybody():
    trainer = begun()
    trainer.invited(1, np.array([0, 3]))
    state = trainer.state_dict()
    for live, epochs in ((False, 3), (True, 6)):
        again = begun(replace(SETTING, resumed=True, live=live))
        again.load_state_dict(state)
        assert again.figures()["epsilon"] == trainer.epsilon(epochs)
        # A model that is taken back later adds no visit.
        again.load_state_dict(again.state_dict())
        assert again.figures()["epsilon"] == trainer.epsilon(epochs)


def test_records_summaries_and_reports_tell_epsilon(tmp_path, covey_command):
    result = run(SMALL, cohort=2, rounds=4, trainer={"name": "dp-sgd", "noise": 2.0}, out=tmp_path / "run")
    visits: dict[int, int] = {}
    for row in result.metrics:
        for client in row["clients"]:
            visits[client] = visits.get(client, 0) + 1
        expected = dp_accounting.get_epsilon_gaussian(2.0 / 2 / math.sqrt(max(visits.values())), 1e-5)
        assert row["figures"]["epsilon"] == pytest.approx(expected)
    assert 1 < max(visits.values()) < 4
    summary = run_summary(result)
    assert (summary["delta"], summary["protects"]) == (1e-5, "sample")
    text = f"{summary['epsilon']:.3g} at δ = 1e-05, for one sample"
    assert privacy_text(summary) == text
    assert covey_command("report", tmp_path / "run").code == 0
    assert text in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert (
        json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["figures"]["protects"] == "sample"
    )


def test_models_on_demand_count_what_the_base_run_has_told(tmp_path):
    quick = {**SMALL, "local": {"epochs": 2, "batch": 4}, "selector": "uniform", "trainer": "dp-sgd", "cohort": 8}
    base = run(quick, aggregator={"name": "ondemand", "hidden": 8, "epochs": 1}, out=tmp_path / "base")
    job = ondemand(base, [0.1] * 10, rounds=2, out=tmp_path / "job", local={"epochs": 1})
    (tuned,) = job.tailored
    assert [row["figures"]["epsilon"] for row in tuned.run.metrics] == [begun().epsilon(3 * 2 + t) for t in (1, 2)]


# --- refusals


def test_models_with_batch_norm_are_refused_at_the_start(tmp_path):
    data = {"name": "synthetic", "shape": (3, 32, 32), "train": 60, "test": 10}
    with pytest.raises(Refusal, match=r"does not go with this model.*batch norm"):
        run(SMALL, dataset=data, model={"name": "mobilenetv2"}, trainer="dp-sgd", out=tmp_path / "run")


def test_two_kinds_of_epsilon_in_one_record_are_refused(tmp_path):
    given = {**SMALL, "aggregator": "dp-fedavg", "trainer": "dp-sgd"}
    with pytest.raises(Refusal, match="a record has one"):
        run(given, out=tmp_path / "both")
    one = run(given, aggregator={"delta": None}, out=tmp_path / "samples")
    assert one.metrics[-1]["figures"]["protects"] == "sample"
    other = run(given, trainer={"delta": None}, out=tmp_path / "clients")
    assert "protects" not in other.metrics[-1]["figures"] and "epsilon" in other.metrics[-1]["figures"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise": 0.0}, "trainer.noise must be above 0 and finite, not 0."),
        ({"noise": math.inf}, "trainer.noise must be above 0 and finite, not inf."),
        ({"clip": -1.0}, "trainer.clip must be above 0 and finite, not -1."),
        ({"delta": 0.0}, "trainer.delta must be between 0 and 1, or none, not 0.0."),
        ({"delta": 1.0}, "trainer.delta must be between 0 and 1, or none, not 1.0."),
    ],
)
def test_senseless_options_are_refused(options, sentence):
    with pytest.raises(Refusal) as refusal:
        DPSGD(**options)
    assert str(refusal.value) == sentence


def test_a_missing_accountant_is_reported_before_the_first_round(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(Refusal, match="dp-accounting"):
        begun()
    begun(delta=None)


class Careless(Scores):
    """Draws from torch's global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5))


def test_a_model_whose_samples_have_gradients_in_full_precision_alone_says_so(tmp_path):
    given = {**SMALL, "model": {"name": "mlp", "norm": "layer"}, "trainer": "dp-sgd", "rounds": 1}
    with pytest.raises(Refusal, match=r"Gradients of single samples .*; try precision=fp32"):
        run(given, precision="bf16", out=tmp_path / "bf16")
    run(given, precision="fp32", out=tmp_path / "fp32")


def test_a_model_without_gradients_of_single_samples_is_refused_with_a_sentence():
    own, w = a_net(Careless())
    with pytest.raises(Refusal, match=r"Gradients of single samples cannot be computed for this model: .*random"):
        own.clipped_gradient(w, a_batch(), 1.0)
