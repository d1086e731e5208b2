"""Tests that need a GPU: CUDA graphs, memory limits and resident data, against the local runtime."""

import copy
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey.aggregation.share_predictor import WithPredictor
from covey.config.schema import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.checkpoint import FORMAT, read_checkpoint
from covey.core.messages import Order
from covey.core.one_model import OneModel
from covey.core.records import read_config
from covey.job.experiment import Experiment
from covey.model import build_model
from covey.model.layout import Layout
from covey.probe.insight import mean_products
from covey.probe.losses import means
from covey.probe.predictor import ClassPredictor
from covey.probe.predictor_fit import RecordedSteps, TrainingPairs, trained_predictors
from covey.randomness import permutation, torch_seed
from covey.runtime.local import LocalRuntime
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from covey.storage import write_json

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

COLOUR = {"name": "synthetic", "shape": (3, 16, 16), "train": 300, "test": 60}
WORDS = {"name": "papers.nccb:made_up", "samples": 20, "test_users": 4, "test_samples": 10}
SMALL_LSTM = {"name": "lstm", "embedding": 8, "hidden": 8, "layers": 2}


@pytest.mark.parametrize(
    ("method", "model", "dataset"),
    [
        ("fedacs", "mlp", "digits"),
        ("fedprox", "mlp", "digits"),
        ("feddrl", "mlp", "digits"),
        ("ondemand", "mlp", "digits"),
        ("nccb", "mlp", "digits"),
        ("oort", "mlp", "digits"),
        ("fedadam", "mlp", "digits"),
        ("qffl", "mlp", "digits"),
        ("scaffold", "mlp", "digits"),
        ("feddyn", "tutorial-cnn", COLOUR),
        ("fedcm", "mlp", "digits"),
        ("fednova", "mlp", "digits"),
        ("fedlc", "mlp", "digits"),
        ("fedsam", "tutorial-cnn", COLOUR),
        ("moon", "tutorial-cnn", COLOUR),
        ("fedavg", "tutorial-cnn", COLOUR),
        ("fedavg", SMALL_LSTM, WORDS),
    ],
)
def test_five_rounds_in_double_precision_are_those_of_the_local_runtime(tmp_path, method, model, dataset):
    given = {
        "method": method,
        "dataset": dataset,
        "model": model,
        "environment": {"name": "dirichlet", "alpha": 0.5},
        "clients": 20,
        "cohort": 5,
        "rounds": 5,
        "precision": "fp64",
        "local": {"epochs": 1, "batch": 8, "rate": 0.05, "momentum": 0.5},
    }
    local = covey.run(given, workers=1, out=tmp_path / "local")
    stacked = covey.run(given, runtime="stacked", device="cuda", out=tmp_path / "stacked")
    assert [row["clients"] for row in local.metrics] == [row["clients"] for row in stacked.metrics]
    one, other = (Layout.of(result.model()).read(result.model()).cpu() for result in (local, stacked))
    assert (one - other).norm() <= 1e-9 * one.norm()


@pytest.mark.parametrize(
    ("method", "model", "dataset"),
    [("fedavg", "mlp", "digits"), ("fedprox", "tutorial-cnn", COLOUR), ("fedavg", {**SMALL_LSTM, "layers": 5}, WORDS)],
)
def test_rounds_by_adam_in_double_precision_are_those_of_the_local_runtime(tmp_path, method, model, dataset):
    given = {
        "method": method,
        "dataset": dataset,
        "model": model,
        "environment": {"name": "dirichlet", "alpha": 0.5},
        "clients": 20,
        "cohort": 5,
        "rounds": 3,
        "precision": "fp64",
        "local": {"epochs": 2, "batch": 8, "rate": 0.002, "optimizer": "adam", "clip": 1.0, "weight_decay": 1e-3},
    }
    local = covey.run(given, workers=1, out=tmp_path / "local")
    stacked = covey.run(given, runtime="stacked", device="cuda", out=tmp_path / "stacked")
    one, other = (Layout.of(result.model()).read(result.model()).cpu() for result in (local, stacked))
    assert (one - other).norm() <= 1e-9 * one.norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("model", "dataset"), [("mobilenetv2", COLOUR), ({**SMALL_LSTM, "layers": 5}, WORDS)])
def test_adam_lowers_the_loss_in_every_precision_and_repeats_its_bits(tmp_path, model, dataset, precision):
    given = {"dataset": dataset, "model": model, "environment": "iid", "clients": 10, "cohort": 10, "rounds": 4}
    work = {"epochs": 2, "batch": 10, "rate": 0.002, "optimizer": "adam", "clip": 5.0}
    where = {"runtime": "stacked", "device": "cuda", "precision": precision, "local": work}
    one, other = (covey.run({**given, **where}, out=tmp_path / name) for name in ("one", "other"))
    losses = [row["train_loss"] for row in one.metrics]
    assert losses[-1] < losses[0]
    assert losses == [row["train_loss"] for row in other.metrics]


@pytest.mark.parametrize(("model", "shape"), [("tutorial-cnn", (3, 32, 32)), ("mcmahan-cnn", (1, 28, 28))])
def test_one_step_in_single_precision_has_the_same_gradient(model, shape):
    # Few images: among many, rounding may change which of two nearly equal values a pool takes.
    dataset = {"name": "synthetic", "shape": shape, "train": 24, "test": 20}
    federation = build_federation(Config.of({"dataset": dataset, "environment": "iid", "clients": 4}))
    data = federation.dataset
    order_of = {}
    for name, make in (("local", LocalRuntime), ("stacked", StackedRuntime)):
        module = build_model(model, {}, data.shape, data.classes, 0)
        start = Layout.of(module).read(module)
        more = {"workers": 1} if name == "local" else {"device": "cuda"}
        runtime = make(federation, module, **more)
        order = Order(1, np.arange(4), start, Local(epochs=1, batch=0, rate=1_000.0))
        order_of[name] = start - runtime.execute(order).states.cpu()
        runtime.close()
    local, stacked = order_of["local"], order_of["stacked"]
    for mine, theirs in zip(local, stacked, strict=True):
        assert (mine - theirs).norm() / mine.norm() <= 1e-5


class Normed(nn.Module):
    """Convolutions with batch norm as in MobileNetV2: before and after a depthwise one."""

    head = "classifier"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU6(inplace=True),
            nn.Conv2d(32, 32, 3, 2, 1, groups=32, bias=False),
            nn.BatchNorm2d(32),
            nn.Conv2d(32, 640, 1, bias=False),
            nn.BatchNorm2d(640),
            nn.ReLU6(inplace=True),
        )
        self.classifier = nn.Conv2d(640, 10, 1)

    def forward(self, x):
        return self.classifier(self.layers(x).mean(dim=(2, 3), keepdim=True)).flatten(1)


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-4), ("bf16", 0.05)])
def test_batch_norm_has_the_gradient_of_the_local_runtime_every_time(precision, limit):
    # Batches of different sizes, many times over: this is how a missing barrier between threads once showed.
    dataset = {"name": "synthetic", "shape": (3, 16, 16), "train": 120, "test": 20}
    federation = build_federation(Config.of({"dataset": dataset, "environment": "dirichlet", "clients": 7}))
    with torch_seed(0):
        module = Normed()
    layout = Layout.of(module)
    start = layout.read(module)

    def moved(states):
        """Return the changes of the parameters and of the statistics."""
        parts = layout.parameters, layout.buffers
        return [torch.cat([slot.of(states - start).flatten(1) for slot in slots], dim=1) for slots in parts]

    order = Order(1, np.arange(7), start, Local(epochs=1, batch=10, rate=0.001, momentum=0.9))
    local = LocalRuntime(federation, copy.deepcopy(module), workers=1)
    expected = moved(local.execute(order).states)
    local.close()
    stacked = StackedRuntime(federation, copy.deepcopy(module), precision=precision, device="cuda")
    first = stacked.execute(order).states.cpu()
    for ours, theirs in zip(moved(first), expected, strict=True):
        assert ((ours - theirs).norm(dim=1) <= limit * theirs.norm(dim=1)).all()
    for _ in range(20):
        assert torch.equal(stacked.execute(order).states.cpu(), first)


@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        ("tutorial-cnn", COLOUR),
        ("mobilenetv2", COLOUR),
        ("mcmahan-cnn", {"name": "synthetic", "shape": (1, 28, 28), "train": 300, "test": 60}),
        (SMALL_LSTM, WORDS),
    ],
)
def test_the_same_seed_gives_the_same_bits(tmp_path, model, dataset):
    given = {"dataset": dataset, "model": model, "environment": "iid", "clients": 10, "cohort": 5, "rounds": 4}
    where = {
        "runtime": "stacked",
        "device": "cuda",
        "precision": "bf16",
        "local": {"epochs": 2, "batch": 4, "rate": 0.1},
    }
    one, other = (covey.run({**given, **where}, out=tmp_path / name) for name in ("one", "other"))
    assert torch.equal(*(Layout.of(result.model()).read(result.model()) for result in (one, other)))
    assert [row["loss"] for row in one.metrics] == [row["loss"] for row in other.metrics]


def test_a_thousand_large_models_under_a_memory_limit_give_the_same_result():
    dataset = {"name": "synthetic", "shape": (1, 28, 28), "train": 2_000, "test": 20}
    given = {"dataset": dataset, "environment": {"name": "iid", "samples": 10}, "clients": 1_000}
    federation = build_federation(Config.of(given))
    data = federation.dataset
    module = build_model("mcmahan-cnn", {}, data.shape, data.classes, 0)
    start = Layout.of(module).read(module).double()
    order = Order(1, np.arange(1_000), start, Local(epochs=1, batch=10, rate=0.05))
    local = LocalRuntime(federation, build_model("mcmahan-cnn", {}, data.shape, data.classes, 0), precision="fp64")
    expected = local.execute(order).states.mean(dim=0)
    local.close()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    limited = StackedRuntime(federation, module, precision="fp64", device="cuda", memory=8 << 30)
    states = limited.execute(order).states
    assert torch.cuda.max_memory_reserved() <= 8 << 30
    assert limited.engine.most_lanes < 1_000
    found = states.mean(dim=0).cpu()
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert (found - expected).norm() <= 1e-9 * expected.norm()


def test_a_guess_that_does_not_fit_is_halved_until_it_does():
    dataset = {"name": "synthetic", "shape": (1, 28, 28), "train": 1_000, "test": 20}
    given = {"dataset": dataset, "environment": {"name": "iid", "samples": 100}, "clients": 64}
    federation = build_federation(Config.of(given))
    data = federation.dataset
    module = build_model("mcmahan-cnn", {}, data.shape, data.classes, 0)
    start = Layout.of(module).read(module).double()
    order = Order(1, np.arange(64), start, Local(epochs=1, batch=100, rate=0.05))
    # Models and graphs of earlier tests would count as this process's memory.
    gc.collect()
    torch.cuda.empty_cache()
    runtime = StackedRuntime(federation, module, precision="fp64", device="cuda", memory=3 << 30)
    runtime.engine.most_lanes = 64
    try:
        states = runtime.execute(order).states
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert runtime.engine.most_lanes < 64
    assert torch.isfinite(states).all()


def test_ten_thousand_clients_of_six_hundred_images_are_resident():
    dataset = {"name": "synthetic", "shape": (1, 28, 28), "train": 60_000, "test": 100}
    given = {"dataset": dataset, "environment": {"name": "iid", "samples": 600}, "clients": 10_000}
    federation = build_federation(Config.of(given))
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    module = build_model("mlp", {}, federation.dataset.shape, 10, 0)
    runtime = StackedRuntime(federation, module, device="cuda")
    assert runtime._tables.resident.sample.is_cuda
    assert len(runtime._tables.resident.sample) == 6_000_000
    assert torch.cuda.max_memory_allocated() - before < 1 << 30
    replies = runtime.execute(Order(1, np.arange(0, 10_000, 100), Layout.of(module).read(module), Local(epochs=1)))
    assert len(replies) == 100


def test_the_local_runtime_works_after_gradients_on_the_gpu(tmp_path):
    given = {"dataset": "digits", "model": "mlp", "environment": "iid", "clients": 6, "rounds": 2, "cohort": 4}
    one = covey.run(given, workers=1, out=tmp_path / "one")
    torch.ones(3, device="cuda", requires_grad=True).sum().backward()
    with pytest.warns(UserWarning, match="gradients on a GPU"):
        two = covey.run(given, workers=2, out=tmp_path / "two")
    assert torch.equal(*(Layout.of(result.model()).read(result.model()) for result in (one, two)))


def taught(device: str, counts: list[int], steps: RecordedSteps) -> tuple[torch.Tensor, torch.Tensor]:
    """Return predictors trained by clients with so many gradients each, and the state they began with."""
    with torch_seed(3):
        module = ClassPredictor(40, 10, 16)
        gradients, shares = torch.randn(sum(counts), 40), torch.rand(sum(counts), 10).softmax(dim=1)
    layout = Layout.of(module)
    begins = np.cumsum([0, *counts[:-1]]).tolist()
    orders = [begin + permutation(7, count) for begin, count in zip(begins, counts, strict=True)]
    schedules = [[*order.split(5)][: len(order) // 5] for order in orders]
    pairs = TrainingPairs(gradients.to(device), shares.to(device), schedules)
    start = layout.read(module)
    return trained_predictors(start, layout, pairs, 0.01, 0.5, steps).cpu(), start


def test_predictors_learn_on_a_gpu_what_they_learn_on_a_cpu(monkeypatch):
    """Clients of different sizes, one without a whole batch; then a step that is reused, and one for fewer clients."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    steps = RecordedSteps()
    for counts in ([5, 20, 3, 32], [7, 20, 3, 32], [12, 5, 40]):
        (found, start), (expected, _) = (taught(device, counts, steps) for device in ("cuda", "cpu"))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found[0], found[1], rtol=1e-3)
        assert all(torch.equal(found[at], start) for at, count in enumerate(counts) if count < 5)
    assert [step.clients for step in steps._kept] == [4]


def test_a_recorded_step_of_predictors_is_recorded_anew_for_another_arithmetic(monkeypatch):
    steps, found = RecordedSteps(), []
    for tf32 in (False, True):
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
        again, afresh = (taught("cuda", [20, 30], one)[0] for one in (steps, RecordedSteps()))
        assert torch.equal(again, afresh)
        found.append(again)
    assert not torch.equal(*found)


def test_means_of_equal_parts_computed_at_once_are_the_same():
    with torch_seed(4):
        values = torch.randn(58, 7, dtype=torch.float64)
        features = torch.randn(58, 11, dtype=torch.float64)
    counts = [10, 10, 3, 10, 10, 5, 10]
    torch.testing.assert_close(means(values.cuda(), counts).cpu(), means(values, counts))
    products = mean_products(values.cuda(), features.cuda(), counts)
    torch.testing.assert_close(products.cpu(), mean_products(values, features, counts))


def test_a_base_run_and_its_predictor_resume_from_a_file(tmp_path):
    given = {
        "method": "ondemand",
        "aggregator": {"hidden": 16, "epochs": 2},
        "dataset": "digits",
        "model": "mlp",
        "environment": {"name": "dirichlet", "alpha": 1.0},
        "clients": 8,
        "cohort": 4,
        "local": {"epochs": 1, "batch": 5, "rate": 0.05},
        "precision": "fp64",
    }
    folder = tmp_path / "stacked"
    covey.run({**given, "rounds": 1}, workers=1, out=tmp_path / "first")
    covey.run({**given, "rounds": 2}, workers=1, out=tmp_path / "local")
    covey.run({**given, "rounds": 1}, runtime="stacked", device="cuda", out=folder)
    longer = replace(read_config(folder), rounds=2).as_mapping()
    write_json(folder / "config.json", {"format": FORMAT, "config": longer})
    assert len(covey.resume(folder).metrics) == 2
    first, local, stacked = (
        state["aggregator"]["predictor"]
        for name in ("first", "local", "stacked")
        if (state := read_checkpoint(tmp_path / name)[1])
    )
    # Batch norm over five gradients magnifies rounding errors a hundredfold per round.
    assert (stacked - local).norm() <= 0.02 * (local - first).norm()


def test_steps_are_recorded_in_graphs_as_the_local_runtime_records_them():
    given = {"method": "ondemand", "dataset": "digits", "model": "mlp", "clients": 12, "cohort": 6, "precision": "fp64"}
    given |= {"environment": {"name": "dirichlet", "alpha": 0.5}, "local": {"epochs": 2, "batch": 8, "momentum": 0.5}}
    machines: tuple[dict[str, object], ...] = ({"workers": 1}, {"runtime": "stacked", "device": "cuda"})
    for t in (1, 2):
        found = []
        for machine in machines:
            one = Experiment.of(Config.of({**given, **machine}))
            order = one.method.order(t, np.arange(12))
            assert order.probes[0].wants_steps()
            found.append(one.runtime.execute(order).probes["predictor"])
        local, stacked = found
        torch.testing.assert_close(stacked["shares"].cpu(), local["shares"], rtol=1e-4, atol=1e-5)
        assert stacked["gradients"].tolist() == local["gradients"].tolist()
        # Predictors are float32 and normalise tiny gradients: over many steps, rounding grows to some thousandths.
        apart = (stacked["predictor"].cpu() - local["predictor"]).norm(dim=1)
        learned = (local["predictor"] - order.probes[0].payload()["predictor"]).norm(dim=1)
        assert (apart / learned).max() < 0.01


def test_a_predictor_that_learns_along_a_training_of_its_own_takes_cohorts_on_the_gpu():
    given = {"method": "ondemand", "dataset": "digits", "model": "mlp", "clients": 8, "cohort": 4, "precision": "fp64"}
    given |= {"aggregator": {"gradients": "training"}, "local": {"epochs": 2, "batch": 8}}
    found = []
    for machine in ({"workers": 1}, {"runtime": "stacked", "device": "cuda"}):
        one = Experiment.of(Config.of({**given, **machine}))
        found.append(one.runtime.execute(one.method.order(1, np.arange(8))).probes["predictor"]["shares"].cpu())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_measured_predictors_stay_on_the_device_and_other_fields_do_not():
    given = {"method": "ondemand", "dataset": "digits", "model": "mlp", "environment": "iid", "clients": 8, "cohort": 4}
    one = Experiment.of(Config.of({**given, "runtime": "stacked", "device": "cuda"}))
    replies = one.runtime.execute(one.method.order(1, np.arange(8)))
    devices = {name: values.device.type for name, values in replies.probes["predictor"].items()}
    assert devices.pop("predictor") == "cuda"
    assert set(devices.values()) == {"cpu"}
    one.method.absorb(1, replies)
    assert isinstance(one.method, OneModel)
    assert isinstance(one.method.aggregator, WithPredictor)
    assert one.method.aggregator.predictor.is_cuda
    assert "predictor" not in replies.for_records().probes["predictor"]


@pytest.mark.parametrize("averaging", [{"ema": 0.9}, {"swa": 2}])
def test_moments_and_averages_on_the_gpu_are_those_of_the_local_runtime(tmp_path, averaging):
    given = {"method": "fedavgm", "averaging": averaging, "clients": 8, "cohort": 4, "rounds": 5, "precision": "fp64"}
    given |= {"environment": "iid", "local": {"epochs": 1, "batch": 8}}

    def stop(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run({**given, "runtime": "stacked", "device": "cuda"}, out=tmp_path / "stacked", on_round=stop)
    stacked = covey.resume(tmp_path / "stacked")
    local = covey.run(given, workers=1, out=tmp_path / "local")
    one, other = (Layout.of(result.model()).read(result.model()).cpu() for result in (local, stacked))
    assert (one - other).norm() <= 1e-9 * one.norm()
    for mine, theirs in zip(local.metrics, stacked.metrics, strict=True):
        assert mine["raw_loss"] == pytest.approx(theirs["raw_loss"], rel=1e-9)


@pytest.mark.parametrize("trainer", ["scaffold", "feddyn", "moon", "ditto"])
def test_a_run_whose_clients_keep_rows_on_the_gpu_resumes_to_the_same_bits(tmp_path, monkeypatch, trainer):
    given = {
        **({"method": "ditto"} if trainer == "ditto" else {"method": trainer}),
        "dataset": COLOUR,
        "model": "tutorial-cnn",
        "environment": {"name": "dirichlet", "alpha": 0.5},
        "clients": 8,
        "cohort": 4,
        "local": {"epochs": 1, "batch": 8, "rate": 0.05},
        "runtime": "stacked",
        "device": "cuda",
        "precision": "bf16",
    }
    whole = covey.run(given, rounds=4, out=tmp_path / "whole")
    covey.run(given, rounds=2, out=tmp_path / "parts")
    # The first rows are on the host now, and later ones have no room on the device.
    monkeypatch.setattr("covey.core.client_store.room_on", lambda device: 0)
    parts = covey.resume(tmp_path / "parts", rounds=4)
    losses = [[row["train_loss"] for row in run.metrics] for run in (whole, parts)]
    assert losses[0] == losses[1]
