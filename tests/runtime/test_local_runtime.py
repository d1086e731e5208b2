import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from covey import Config, Experiment, Refusal, run
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.interfaces import Probe
from covey.core.messages import Order
from covey.environment.federated_data import Federation
from covey.model import build_model
from covey.probe.losses import Losses
from covey.runtime import LocalRuntime, worker_pool
from covey.runtime.worker_pool import WorkerError, workers_can_train
from tests.conftest import SMALL, without_timings


def federation(**settings) -> Federation:
    return build_federation(Config.of({**SMALL, **settings}))


def runtime(parts: Federation, workers: int, precision="fp32") -> LocalRuntime:
    module = build_model("mlp", {"hidden": (16,)}, parts.dataset.shape, parts.dataset.classes, seed=0)
    return LocalRuntime(parts, module, seed=0, workers=workers, precision=precision)


def an_order(local: LocalRuntime, clients: list[int], **options) -> Order:
    layout = local._learner.layout
    return Order(1, np.array(clients), layout.read(local._learner.module).clone(), Local(epochs=1), **options)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_the_number_of_workers_never_changes_a_bit(precision):
    parts = federation(environment={"name": "dirichlet", "alpha": 0.2})
    results, scores = [], []
    for workers in (1, 2, 3):
        local = runtime(parts, workers, precision)
        try:
            results.append(local.execute(an_order(local, [0, 2, 3, 5, 7], probes=(Losses(),))))
            scores.append(local.evaluate(results[-1].states))
        finally:
            local.close()
    for other, score in zip(results[1:], scores[1:], strict=True):
        assert torch.equal(other.states, results[0].states)
        assert torch.equal(other.losses, results[0].losses)
        assert torch.equal(other.probes["losses"]["after"], results[0].probes["losses"]["after"])
        assert other.bytes_up == results[0].bytes_up
        assert np.array_equal(score.correct, scores[0].correct)
        assert np.array_equal(score.loss, scores[0].loss)


def test_no_more_workers_are_started_than_there_are_tasks():
    local = runtime(federation(), 500)
    try:
        for clients, started in (([0, 2], 2), ([0, 2, 3, 5], 4), ([1, 2, 3], 4)):
            assert local.execute(an_order(local, clients)).faults == ()
            assert local._pool is not None
            assert len(local._pool._workers) == started
    finally:
        local.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_scores_are_the_same_if_models_share_their_bodies_or_not(workers):
    local = runtime(federation(), workers)
    layout = local._learner.layout
    start = layout.read(local._learner.module).clone()
    states = start.repeat(3, 1)
    layout.head[0].of(states[1]).neg_()
    different = states.clone()
    different[2] *= 1.5
    try:
        together, apart = local.evaluate(states), local.evaluate(different)
        single = [local.evaluate(state[None]) for state in different]
    finally:
        local.close()
    assert np.array_equal(together.loss[:2], apart.loss[:2])
    assert np.array_equal(together.correct[2], together.correct[0])
    assert np.array_equal(np.concatenate([one.loss for one in single]), apart.loss)
    assert np.array_equal(np.concatenate([one.correct for one in single]), apart.correct)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "local-only", "central", "iid"])
def test_a_whole_run_is_the_same_with_one_worker_and_with_two(method, tmp_path):
    one = run(SMALL, method=method, workers=1, out=tmp_path / "one")
    two = run(SMALL, method=method, workers=2, out=tmp_path / "two")
    assert without_timings(one.metrics) == without_timings(two.metrics)
    read = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("one", "two")]
    assert read[0] == read[1]


def test_convolutions_too_are_the_same_with_any_number_of_workers(tmp_path):
    given = {
        **SMALL,
        "dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 200, "test": 50},
        "model": "tutorial-cnn",
        "local": {"epochs": 1, "batch": 8, "rate": 0.05, "momentum": 0.5, "crop": 2, "flip": True},
    }
    one = run(given, workers=1, out=tmp_path / "one")
    two = run(given, workers=2, out=tmp_path / "two")
    assert without_timings(one.metrics) == without_timings(two.metrics)


def test_replies_are_in_client_order_for_any_sizes():
    parts = federation(environment={"name": "dirichlet", "alpha": 0.2})
    local = runtime(parts, 2)
    try:
        replies = local.execute(an_order(local, [0, 1, 2, 3, 4, 5, 6, 7]))
    finally:
        local.close()
    assert replies.clients.tolist() == list(range(8))
    assert replies.samples.tolist() == parts.sizes.tolist()
    assert len(set(parts.sizes.tolist())) > 3


def test_each_client_starts_from_its_own_model_where_there_is_one():
    local = runtime(federation(), 2)
    try:
        together = an_order(local, [1, 4])
        apart = Order(1, together.clients, torch.stack([together.start, together.start + 0.1]), together.work)
        first, second = local.execute(together), local.execute(apart)
    finally:
        local.close()
    assert torch.equal(first.states[0], second.states[0])
    assert not torch.allclose(first.states[1], second.states[1], atol=0.01)


def test_a_single_client_with_a_single_sample_trains():
    parts = federation(clients=1, cohort=1, environment={"name": "uniform", "samples": 1})
    local = runtime(parts, 2)
    try:
        replies = local.execute(an_order(local, [0]))
    finally:
        local.close()
    assert replies.samples.tolist() == [1]
    assert torch.isfinite(replies.states).all()


class Dies(Probe):
    """A probe whose client's process is killed."""

    name = "dies"

    def measure(self, learner, received, trained, samples, key):
        if int(samples.y[0]) == int(self.victim):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": torch.zeros(())}

    def __init__(self, victim: int) -> None:
        self.victim = victim


def test_a_worker_that_dies_costs_one_reply_and_is_replaced():
    parts = federation(environment={"name": "uniform", "samples": 10})
    victims = {client: int(parts.dataset.y[part][0]) for client, part in enumerate(parts.parts)}
    victim = victims[3]
    lost = [client for client, label in victims.items() if label == victim]
    local = runtime(parts, 2)
    try:
        replies = local.execute(an_order(local, list(range(8)), probes=(Dies(victim),)))
        after = local.execute(an_order(local, list(range(8))))
    finally:
        local.close()
    assert [fault.client for fault in replies.faults] == lost
    assert "its worker process died (exit code -9)" in replies.faults[0].reason
    assert sorted([*replies.clients.tolist(), *lost]) == list(range(8))
    assert after.clients.tolist() == list(range(8))


def test_a_worker_that_dies_between_rounds_costs_nothing():
    parts = federation(environment={"name": "uniform", "samples": 10})
    local = runtime(parts, 2)
    others = multiprocessing.active_children()
    try:
        before = local.execute(an_order(local, list(range(8))))
        worker, _ = (process for process in multiprocessing.active_children() if process not in others)
        worker.kill()
        worker.join()
        after = local.execute(an_order(local, list(range(8))))
    finally:
        local.close()
    assert after.faults == ()
    assert torch.equal(after.states, before.states)


def test_a_survey_reserves_no_memory_for_trained_models():
    local = runtime(federation(), 2)
    try:
        asked = local.execute(an_order(local, list(range(8)), probes=(Losses(),), train=False))
        assert local._state is not None
        assert len(local._state.models.ends) == 0
        local.execute(an_order(local, [0, 1]))
        assert len(local._state.models.ends) == 2
    finally:
        local.close()
    assert asked.clients.tolist() == list(range(8))
    assert asked.states.shape == (8, 0)


class Raises(Probe):
    name = "raises"

    def measure(self, learner, received, trained, samples, key):
        raise ZeroDivisionError("in the probe")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_client_code_is_not_swallowed(workers):
    local = runtime(federation(), workers)
    try:
        with pytest.raises((WorkerError, ZeroDivisionError), match="in the probe"):
            local.execute(an_order(local, [0, 1, 2], probes=(Raises(),)))
    finally:
        local.close()


def refuse_in_children(monkeypatch) -> None:
    """Simulate gradients on a GPU in this process: autograd fails in forked workers."""
    parent, grad = os.getpid(), torch.autograd.grad

    def refusing(*given, **options):
        if os.getpid() != parent:
            raise RuntimeError("Unable to handle autograd's threading in combination with fork")
        return grad(*given, **options)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.autograd, "grad", refusing)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_one_process_does_all_if_forked_workers_cannot_train(monkeypatch):
    parts = federation()
    alone, local = runtime(parts, 1), runtime(parts, 2)
    order = an_order(alone, [0, 1, 2, 3])
    try:
        expected = alone.execute(order).states
        refuse_in_children(monkeypatch)
        with pytest.warns(UserWarning, match="gradients on a GPU.*one core.*runtime='stacked'"):
            assert torch.equal(local.execute(order).states, expected)
        assert torch.equal(local.execute(order).states, expected)
    finally:
        alone.close()
        local.close()


def test_workers_are_used_if_the_gpu_has_computed_no_gradient(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert workers_can_train()
    monkeypatch.setattr(worker_pool, "_one_gradient", lambda: os._exit(1))
    assert not workers_can_train()


def test_closing_restores_torchs_threads():
    torch.set_num_threads(2)
    local = runtime(federation(), 1)
    assert torch.get_num_threads() == 1
    local.close()
    assert torch.get_num_threads() == 2


def test_a_refused_run_restores_torchs_threads():
    torch.set_num_threads(2)
    config = Config.of(method="fedacs", clients=5, cohort=5, workers=1)
    with pytest.raises(Refusal, match="too few for a cohort of 5") as kept:
        Experiment.of(config)
    assert torch.get_num_threads() == 2
    assert kept.value


def test_the_last_runtime_closed_restores_torchs_threads():
    torch.set_num_threads(2)
    first, second = (runtime(federation(), 1) for _ in range(2))
    first.close()
    assert torch.get_num_threads() == 1
    second.close()
    second.close()
    assert torch.get_num_threads() == 2


HUGE_PAGES = """
import torch
from covey.runtime.local import keep_freed_memory
keep_freed_memory()
middle, inside = torch.empty(1 << 22)[1 << 21 :].data_ptr(), False
for line in open("/proc/self/smaps"):
    first = line.split(" ")[0]
    if "-" in first:
        begin, end = (int(one, 16) for one in first.split("-"))
        inside = begin <= middle < end
    elif inside and first == "VmFlags:":
        print(line)
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no huge pages")
def test_large_tensors_lie_where_the_process_asks_for_huge_pages():
    found = subprocess.run([sys.executable, "-c", HUGE_PAGES], capture_output=True, text=True, check=True)
    assert " hg" in found.stdout
