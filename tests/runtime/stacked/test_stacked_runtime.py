"""The stacked runtime computes the same as the local one; it also runs on a CPU, so it is tested everywhere."""

import json
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import covey
from covey import Config, Refusal, compare, run
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.job.experiment import Experiment
from covey.model import build_model
from covey.model.layout import Layout
from covey.probe.losses import Losses
from covey.registries import models
from covey.runtime import LocalRuntime, StackedRuntime
from covey.runtime.devices import OnDevices
from covey.runtime.stacked.convolution import candidate_algorithms, with_kernels
from covey.runtime.stacked.engine import COPIES, Engine, LaunchKind, _terms
from covey.runtime.stacked.lane_schedule import COMPILING, LaunchShape
from covey.runtime.stacked.launcher import EagerSteps, Launcher
from covey.runtime.stacked.stack_module import stack_module
from tests.conftest import SMALL, small_for, without_timings
from tests.equal_runs import ends_the_same
from tests.runtime.stacked.test_lane_schedule import of_steps

STACKED: dict[str, Any] = {"runtime": "stacked", "device": "cpu"}
SKEWED = {**SMALL, "environment": {"name": "dirichlet", "alpha": 0.3}}
METHODS = covey.methods.names()


def pair(given, model="mlp", precision="fp64", options=None):
    """Return both runtimes on the same federation and model, and a function that makes the model."""
    federation = build_federation(Config.of(given))
    dataset = federation.dataset

    def module():
        return build_model(model, options or {}, dataset.shape, dataset.classes, seed=0)

    local = LocalRuntime(federation, module(), seed=3, workers=1, precision=precision)
    return local, StackedRuntime(federation, module(), seed=3, precision=precision), module


def both(given, work, clients, model="mlp", precision="fp64", probes=(), options=None):
    local, stacked, module = pair(given, model, precision, options)
    start = Layout.of(module()).read(module()).to(local._learner.dtype)
    order = Order(2, np.array(clients), start, work, probes)
    replies = local.execute(order), stacked.execute(order)
    local.close()
    return start, *replies


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_same_run_of_five_rounds(method, tmp_path):
    given = {**small_for(method, SKEWED), "cohort": 0.3, "rounds": 5, "precision": "fp64"}
    local = run(given, out=tmp_path / "local")
    stacked = run(given, **STACKED, out=tmp_path / "stacked")
    assert [row["clients"] for row in local.metrics] == [row["clients"] for row in stacked.metrics]
    one, other = (Layout.of(result.model(0)).read(result.model(0)) for result in (local, stacked))
    assert (one - other).norm() <= 1e-9 * one.norm()
    for mine, theirs in zip(local.metrics, stacked.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        assert mine["bytes_up"] == theirs["bytes_up"]
        assert mine["clock"] == theirs["clock"]


SHAPES = {
    "mlp": (1, 8, 8),
    "tutorial-cnn": (3, 16, 16),
    "fashion-cnn": (1, 16, 16),
    "vgg11": (3, 32, 32),
    "mobilenetv2": (3, 16, 16),
}


def train_alike(model):
    given = {
        "dataset": {"name": "synthetic", "shape": SHAPES.get(model, (3, 8, 8)), "train": 36, "test": 20},
        "environment": {"name": "dirichlet", "alpha": 0.5, "minimum": 2},
        "clients": 5,
        "cohort": 3,
    }
    # A small rate: batch norm over a handful of values magnifies rounding in unstable training.
    start, local, stacked = both(given, Local(epochs=1, batch=8, rate=0.002, momentum=0.5), [0, 2, 4], model)
    assert (local.states - stacked.states).norm() <= 1e-7 * (local.states - start).norm()
    assert torch.allclose(local.losses, stacked.losses, rtol=1e-9)


# The LSTM has the same test in test_lstm.py, where its data is.
@pytest.mark.slow
@pytest.mark.parametrize("model", [name for name in models.names() if name != "lstm"])
def test_every_model_trains_alike_on_both_runtimes(model):
    train_alike(model)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tutorial-cnn", "vgg11", "mobilenetv2"])
def test_convolutions_by_patches_train_alike_too(model, monkeypatch):
    used = []

    def by_patches(module, *_):
        used.append(candidate_algorithms(module)[0])
        return stack_module(module, used[-1])

    monkeypatch.setattr("covey.runtime.stacked.engine.stack_module", by_patches)
    train_alike(model)
    assert used and "slices" in used[0].values() and "grouped" not in used[0].values()


@pytest.mark.parametrize("model", ["mlp", "tutorial-cnn", "mcmahan-cnn", "pfl-cnn"])
def test_gradients_of_one_step_agree_in_float32(model):
    shape = (3, 16, 16)
    given = {
        "dataset": {"name": "synthetic", "shape": shape, "train": 60, "test": 20},
        "environment": "iid",
        "clients": 4,
        "cohort": 4,
    }
    start, local, stacked = both(given, Local(epochs=1, batch=0, rate=1.0), [0, 1, 2, 3], model, "fp32")
    gradient, other = start - local.states, start - stacked.states
    assert (gradient - other).norm() <= 1e-5 * gradient.norm()


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"proximal": 0.5},
        {"decay": 0.9, "epochs": 3},
        {"schedule": "cosine", "schedule_rounds": 3},
        {"schedule": "step", "schedule_rounds": 1},
        {"warmup": 2},
        {"batch": 0},
        {"batch": 1},
        {"crop": 2},
        {"flip": True},
        {"crop": 1, "flip": True, "momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1},
        {"clip": 0.3},
        {"clip": 0.3, "momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1},
    ],
    ids=str,
)
def test_every_option_of_local_training_has_the_same_result(options):
    work = Local(**{"epochs": 2, "batch": 7, "rate": 0.05, **options})
    start, local, stacked = both(SKEWED, work, [0, 1, 3, 6, 7])
    assert (local.states - stacked.states).norm() <= 1e-12 * (local.states - start).norm()
    plain = both(SKEWED, Local(epochs=2, batch=7, rate=0.05), [0, 1, 3, 6, 7])[2]
    assert not torch.equal(plain.states, stacked.states)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 0.3},
        {"batch": 0},
        {"decay": 0.9, "crop": 1, "flip": True},
        {"weight_decay": 0.01, "proximal": 0.1},
        {"weight_decay": 0.01, "proximal": 0.1, "clip": 0.3},
    ],
    ids=str,
)
@pytest.mark.parametrize("lanes", [3, 512])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_has_the_same_result_in_every_round(options, lanes, optimizer):
    """Clients of different sizes, incomplete last batches; lanes that are taken again, and lanes that end early."""
    local, stacked, module = pair(SKEWED)
    stacked.engine.most_lanes = lanes
    start = Layout.of(module()).read(module()).double()
    work = Local(**{"epochs": 2, "batch": 7, "rate": 0.002, "optimizer": optimizer, **options})
    assert len(set(local.federation.sizes % 7)) > 1
    for t in (1, 2):
        order = Order(t, np.arange(8), start, work)
        one, other = local.execute(order), stacked.execute(order)
        assert (one.states - other.states).norm() <= 1e-9 * (one.states - start).norm()
        assert torch.allclose(one.losses, other.losses, rtol=1e-9)
        start = one.states.mean(dim=0)
    local.close()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_idle_lanes_keep_their_model_and_adams_moments(optimizer):
    _, stacked, module = pair(SKEWED)
    start = Layout.of(module()).read(module()).double()
    work = Local(epochs=1, batch=4, rate=0.002, optimizer=optimizer, weight_decay=0.1, clip=1.0)
    stacked.execute(Order(1, np.arange(8), start, work))
    (launcher,) = stacked.engine._launchers.values()
    lanes = launcher.lanes
    before = [value.clone() for value in lanes.tensors()]
    assert isinstance(launcher.steps, EagerSteps)
    launcher.steps.schedule["rate"].zero_()
    launcher.steps.schedule["weight"].zero_()
    launcher.steps.schedule["count"].zero_()
    launcher.steps.advance(0, 2)
    assert all(map(torch.equal, before, lanes.tensors()))
    # Some lanes took a second client, and counted its steps alone.
    assert len(lanes.taken) < 8
    assert set(lanes.taken.tolist()) < set((-(-stacked.federation.sizes // 4)).tolist())


def test_a_sweep_over_optimizers_has_the_runs_of_each():
    given = {**SKEWED, "rounds": 2, "precision": "fp64", **STACKED}
    decayed = {"rate": 0.002, "weight_decay": 0.1}
    works: list[dict[str, Any]] = [{"rate": 0.05, "clip": 0.5}, {"rate": 0.05}]
    works += [{**decayed, "optimizer": "adam"}, {**decayed, "optimizer": "adamw"}]
    configs = [Config.of({**given, "local": {**SMALL["local"], **work}}) for work in works]
    experiments = [Experiment.of(config) for config in configs]
    assert len({one.runtime.group for one in experiments}) == 1
    orders = [(one.runtime, one.method.order(1, np.arange(8))) for one in experiments]
    together = experiments[0].runtime.execute_many(orders)
    for (runtime, order), replies in zip(orders, together, strict=True):
        assert torch.allclose(runtime.execute(order).states, replies.states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_runs_by_adam_end_the_same_on_every_runtime_and_when_they_are_resumed(method, tmp_path):
    kind = "adam" if method == "fedavg" else "adamw"
    work = {"epochs": 2, "batch": 7, "rate": 0.002, "optimizer": kind, "clip": 1.0, "weight_decay": 0.1}
    given = {**SKEWED, "method": method, "rounds": 5, "precision": "fp64", "local": work}
    ends_the_same({**given, "devices": {"dropout": 0.3}}, tmp_path)


def test_adam_takes_fewer_lanes_where_memory_is_short(monkeypatch):
    """A GPU is faked: the memory of 50 lanes with SGD."""
    _, stacked, _ = pair(SKEWED)
    engine = stacked.engine
    monkeypatch.setattr(engine, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.for_speed", False)
    engine.memory = 50 * 12 * 8 * engine.layout.size
    engine.most_lanes = engine._lanes_in_memory(COPIES)
    used = {}
    for work in (Local(), Local(optimizer="adam")):
        segments = [one._replace(work=work) for one in of_steps(*[100] * 60)]
        used[work.optimizer] = engine._lanes_for(LaunchShape(10, optimizer=work.optimizer), segments, [], list)
    assert used == {"sgd": 50, "adam": 50 * 12 // 14}


class Copies(TorchDispatchMode):
    """Counts the tensors that are copied."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten.copy_.default, torch.ops.aten.index_put_.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("environment", ["iid", {"name": "dirichlet", "alpha": 0.3}])
def test_models_are_copied_out_once_for_all_runs_in_lockstep(environment, monkeypatch):
    """Clients of equal size lie in their lanes in order; those of different sizes do not."""
    given = {**SMALL, "environment": environment}
    _, stacked, module = pair(given)
    start = Layout.of(module()).read(module()).double()
    orders = [Order(t, np.array(clients), start * t, Local(epochs=1)) for t, clients in ((1, [0, 2, 5]), (2, [1, 2]))]
    copied: list[int] = []

    def counted(self, *arguments):
        with Copies() as copies:
            whole(self, *arguments)
        copied.append(copies.count)

    whole = Launcher._empty
    monkeypatch.setattr(Launcher, "_empty", counted)
    together = stacked.execute_many([(stacked, order) for order in orders])
    slots = len(stacked.engine.layout.parameters)
    # Of each parameter one, and the losses; in turns where steps differ.
    assert copied[0] <= slots + 1
    alone = [stacked.execute(order) for order in orders]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one.states, other.states, rtol=1e-12, atol=1e-14)
        assert torch.allclose(one.losses, other.losses)


def test_altered_clients_and_probes_agree():
    given = {**SKEWED, "altered": {"poison": 0.5, "inverted": 0.3, "shifted": 0.2, "noise": 0.2}}
    start, local, stacked = both(given, Local(epochs=1), list(range(8)), probes=(Losses(),))
    assert (local.states - stacked.states).norm() <= 1e-12 * (local.states - start).norm()
    for field in ("before", "after"):
        assert torch.allclose(local.probes["losses"][field], stacked.probes["losses"][field])


def test_each_lane_may_start_from_a_model_of_its_own():
    local, stacked, module = pair(SKEWED)
    start = Layout.of(module()).read(module()).double()
    order = Order(1, np.array([1, 4, 5]), torch.stack([start, start + 0.1, start - 0.1]), Local(epochs=1))
    one, other = local.execute(order), stacked.execute(order)
    local.close()
    assert torch.allclose(one.states, other.states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_fewer_lanes_than_clients_give_the_same_result(lanes):
    _, whole, module = pair(SKEWED)
    _, narrow, _ = pair(SKEWED)
    narrow.engine.most_lanes = lanes
    start = Layout.of(module()).read(module()).double()
    order = Order(1, np.arange(8), start, Local(epochs=2, batch=4, momentum=0.9))
    one, other = whole.execute(order), narrow.execute(order)
    assert [launcher.count for launcher in narrow.engine._launchers.values()] == [lanes]
    assert torch.allclose(one.states, other.states, rtol=0, atol=1e-12)
    assert torch.allclose(one.losses, other.losses, rtol=1e-12)


def test_a_comparison_in_lockstep_is_the_same_as_runs_by_themselves(tmp_path):
    given = {**SKEWED, "rounds": 3, "precision": "fp64", "devices": {"dropout": 0.3}}
    methods = ["fedavg", "fedprox", "iid", "central", "local-only"]
    together = compare(methods, seeds=2, given={**given, **STACKED}, out=tmp_path / "together")
    for method in methods:
        for seed in range(2):
            alone = run(given, method=method, seed=seed, out=tmp_path / f"{method}-{seed}")
            mine = together.runs[method][seed]
            for one, other in zip(alone.metrics, mine.metrics, strict=True):
                assert one["clients"] == other["clients"]
                assert one["dropped"] == other["dropped"]
                assert one["loss"] == pytest.approx(other["loss"], rel=1e-9)


def test_a_sweep_trains_the_clients_of_all_its_runs_in_one_launch(tmp_path, monkeypatch):
    launches = []
    original = Engine.execute

    def counted(self, requests, *others):
        launches.append(len(requests))
        return original(self, requests, *others)

    monkeypatch.setattr(Engine, "execute", counted)
    compare(["fedavg", "fedprox"], seeds=3, given={**SMALL, **STACKED, "rounds": 4}, out=tmp_path / "cmp")
    assert launches == [6, 6, 6, 6]


def test_a_sweep_that_is_interrupted_resumes_and_ends_the_same(tmp_path, monkeypatch):
    given = {**SMALL, **STACKED, "rounds": 5}
    whole = compare(["fedavg", "iid"], seeds=2, given=given, out=tmp_path / "whole")
    monkeypatch.setattr("covey.job.lockstep_runs.LOCKSTEP_CHECKPOINT", 0.0)
    seen = []

    def cut(record):
        seen.append(record)
        if len(seen) == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["fedavg", "iid"], seeds=2, given=given, out=tmp_path / "cut", on_round=cut)
    again = compare(["fedavg", "iid"], seeds=2, given=given, out=tmp_path / "cut")
    for name, runs in whole.runs.items():
        for one, other in zip(runs, again.runs[name], strict=True):
            assert without_timings(one.metrics) == without_timings(other.metrics)


def test_a_sweep_writes_checkpoints_rarely_and_resumes_without_one(tmp_path, monkeypatch):
    given = {**SMALL, **STACKED, "rounds": 6}
    seen = []

    def cut(record):
        seen.append(record)
        if len(seen) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["fedavg", "iid"], seeds=1, given=given, out=tmp_path / "cut", on_round=cut)
    assert not (tmp_path / "cut" / "fedavg" / "seed-0" / "checkpoint.safetensors").exists()
    done = compare(["fedavg", "iid"], seeds=1, given=given, out=tmp_path / "cut")
    assert [row["round"] for row in done.runs["iid"][0].metrics] == [1, 2, 3, 4, 5, 6]


def test_without_a_gpu_the_local_runtime_is_used_with_a_warning(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.warns(UserWarning, match="There is no GPU here, so the local runtime takes the stacked one's place"):
        result = run(SMALL, runtime="stacked", out=tmp_path / "run")
    assert without_timings(result.metrics) == without_timings(run(SMALL, out=tmp_path / "local").metrics)
    with pytest.raises(Refusal, match="there is no GPU here"):
        run(SMALL, runtime="stacked", device="cuda", out=tmp_path / "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(SMALL, **STACKED, out=tmp_path / "cpu")


@pytest.mark.parametrize("limit", ["much", "-1GiB", "8 furlongs", "0"])
def test_an_impossible_memory_limit_is_refused(limit):
    with pytest.raises(Refusal, match="memory_limit must be a size such as 8GiB"):
        Config.of(memory_limit=limit)


def runtime_of(**settings: Any) -> StackedRuntime:
    """Return the stacked runtime of an experiment, without its devices."""
    runtime = Experiment.of(Config.of({**SMALL, **STACKED, **settings})).runtime
    assert isinstance(runtime, OnDevices)
    assert isinstance(runtime.runtime, StackedRuntime)
    return runtime.runtime


def test_runs_with_another_memory_limit_do_not_share_an_engine():
    runtimes = [runtime_of(memory_limit=limit) for limit in ("1GiB", "2GiB", "1GiB")]
    engines = [runtime.engine for runtime in runtimes]
    assert engines[0] is engines[2]
    assert engines[0] is not engines[1]


def test_memory_limits_are_read_with_their_units():
    assert Config.of(memory_limit="8GiB").memory_bytes == 8 * 2**30
    assert Config.of(memory_limit="500 MB").memory_bytes == 500_000_000
    assert Config.of().memory_bytes == 0


def test_the_command_line_runs_the_stacked_runtime(covey_command, tmp_path):
    where = ["--runtime", "stacked", "--device", "cpu", "--memory-limit", "1GiB"]
    flags = ["run", *where, "--clients", "6", "--cohort", "3", "--rounds", "2"]
    answer = covey_command(*flags, "--set", "environment.samples=10", "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["runtime"], config["device"], config["memory_limit"]) == ("stacked", "cpu", "1GiB")


def test_experiments_of_a_sweep_share_one_engine():
    first, second = runtime_of(seed=0), runtime_of(seed=1)
    assert first.engine is second.engine
    assert runtime_of(precision="fp64").engine is not first.engine


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "tutorial-cnn", "pfl-cnn", "mobilenetv2"])
def test_models_scored_together_have_the_scores_they_have_alone(model):
    given = {"dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 200, "test": 70}, "clients": 5}
    _, stacked, module = pair(given, model)
    start = Layout.of(module()).read(module()).double()
    models = torch.stack([start, 1.1 * start, 0.9 * start])
    alone = stacked.evaluate(models)
    stacked.engine.stacks_scores = True
    stacked.engine.learner.chunk = 32
    together = stacked.evaluate_many([(stacked, models[:1]), (stacked, models[1:])])
    assert [len(scores.loss) for scores in together] == [1, 2]
    np.testing.assert_allclose(np.concatenate([scores.loss for scores in together]), alone.loss, rtol=1e-10)
    np.testing.assert_array_equal(np.concatenate([scores.correct for scores in together]), alone.correct)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mcmahan-cnn", "tutorial-cnn", "mobilenetv2"])
def test_models_are_scored_together_in_bf16_too(model):
    given = {"dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 200, "test": 70}, "clients": 5}
    federation = build_federation(Config.of(given))
    module = build_model(model, {}, (3, 16, 16), 10, 0)
    stacked = StackedRuntime(federation, module, precision="bf16", device="cpu")
    # As on a GPU, where convolutions of few channels are custom operators, which do their own casts.
    with_kernels(stacked.engine.learner.module)
    start = Layout.of(module).read(module)
    models = torch.stack([start, 1.1 * start, 0.9 * start])
    alone = stacked.evaluate(models)
    stacked.engine.stacks_scores = stacked.engine.learner.stacks = True
    np.testing.assert_allclose(stacked.evaluate(models).loss, alone.loss, rtol=0.02)
    samples, counts = stacked._tables.samples([0, 1, 2], stacked.engine.data)
    learner = stacked.engine.learner
    expected = [learner.mean_loss(*pair) for pair in zip(models, samples.split(counts), strict=True)]
    np.testing.assert_allclose(learner.own_losses(models, samples, counts).numpy(), expected, rtol=0.02)


def test_an_engine_counts_the_steps_lost_by_slower_lanes(monkeypatch):
    """Lanes are compiled on a GPU only; here they are faked."""
    _, stacked, _ = pair(SKEWED)
    engine = stacked.engine
    monkeypatch.setattr(engine, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.for_speed", False)
    segments, shape = of_steps(*[1000] * 11), LaunchShape(1)
    engine._launchers = {(LaunchKind(shape, _terms(segments)), 10): SimpleNamespace()}
    used = [engine._lanes_for(shape, segments, [], list) for _ in range(20)]
    rounds = used.index(11)
    assert used[:rounds] == [10] * rounds
    assert rounds == int(COMPILING // (2000 - 1000 * 19 / 18))
    # Launches of another shape are counted apart.
    other = LaunchShape(5)
    engine._launchers[LaunchKind(other, _terms(segments)), 10] = SimpleNamespace()
    assert engine._lanes_for(other, segments, [], list) == 10
