"""Many more clients than are ever looked at one by one."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.config.schema import Config
from covey.job.experiment import Experiment
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from covey.selection.oort import best_first, weighted_draw

GIVEN: dict[str, Any] = {
    "dataset": {"name": "synthetic", "shape": (1, 8, 8), "train": 500, "test": 50},
    "environment": {"name": "uniform", "samples": 8},
    "model": {"name": "mlp", "hidden": (8,)},
    "clients": 300,
    "cohort": 6,
    "rounds": 3,
    "local": {"epochs": 1, "batch": 4, "rate": 0.1},
    "workers": 1,
}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_survey_in_parts_has_the_answers_of_one(workers, monkeypatch):
    def answers() -> Any:
        experiment = Experiment.of(Config.of(GIVEN, method="nccb", workers=workers))
        survey = experiment.method.survey(1, np.arange(300))
        assert survey is not None
        try:
            return experiment.runtime.execute(survey)
        finally:
            experiment.runtime.close()

    whole = answers()
    monkeypatch.setattr("covey.runtime.local._ASKED_AT_ONCE", 70)
    monkeypatch.setattr("covey.runtime.local._MANY_TASKS", 20)
    parts = answers()
    assert parts.clients.tolist() == list(range(300))
    assert torch.equal(parts.probes["simhash"]["bits"], whole.probes["simhash"]["bits"])
    assert torch.equal(parts.samples, whole.samples)
    assert parts.bytes_up == whole.bytes_up and parts.probe_bytes == whole.probe_bytes


@pytest.mark.parametrize("method", ["fedacs", "fedper"])
def test_a_stack_with_tables_of_the_invited_alone_computes_the_same(method, monkeypatch, tmp_path):
    settings = {**GIVEN, "method": method, "runtime": "stacked", "device": "cpu", "altered": {"inverted": 0.3}}
    whole = covey.run(settings, out=tmp_path / "all")
    monkeypatch.setattr("covey.runtime.stacked.stacked_runtime.MOST_RESIDENT", 100)
    built = Experiment.of(Config.of(settings)).runtime
    tables = getattr(built, "runtime", built)
    assert isinstance(tables, StackedRuntime) and tables._tables.clients is not None
    few = covey.run(settings, out=tmp_path / "few")
    tensors = zip(whole.model(0).state_dict().values(), few.model(0).state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in tensors)


def test_the_best_are_found_without_sorting_all():
    rng = np.random.default_rng(0)
    for values in (np.array(rng.random(500)), np.array(rng.integers(0, 4, 500), dtype=np.float64), np.zeros(500)):
        for count in (0, 1, 7, 499, 500, 600):
            assert best_first(values, count).tolist() == np.argsort(-values, kind="stable")[:count].tolist()


def test_draws_among_very_many_are_those_among_few_in_distribution(monkeypatch):
    weights = np.concatenate([np.array([30.0, 20.0, 10.0]), np.full(400, 0.1)])
    clients = np.arange(len(weights))

    def shares() -> Any:
        drawn = [weighted_draw(np.random.default_rng(seed), clients, weights, 3) for seed in range(4_000)]
        assert all(len(set(one.tolist())) == 3 for one in drawn)
        first, second = (np.bincount([one[place] for one in drawn], minlength=3)[:3] / 4_000 for place in (0, 1))
        return np.concatenate([first, second])

    few = shares()
    monkeypatch.setattr("covey.selection.oort.MANY", 100)
    assert np.abs(shares() - few).max() < 0.04


_MILLION = """
import json, resource, sys, tempfile, time
import covey
given = json.loads(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
described = covey.describe({name: value for name, value in given.items() if name != "method"})
listed = len(described.as_mapping()["each"])
run = covey.run(given, out=tempfile.mkdtemp() + "/run")
record = (run.folder / "metrics.jsonl").stat().st_size
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({
    "cpu": time.process_time(), "mib": (peak - before) / 1024, "listed": listed, "record": record,
    "checkpoint": (run.folder / "checkpoint.safetensors").stat().st_size, "clients": run.metrics[0]["clients"],
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in KiB on Linux alone")
def test_a_million_clients_are_described_selected_and_trained_without_making_them():
    given = {**GIVEN, "method": "oort", "clients": 1_000_000, "rounds": 2}
    done = subprocess.run(
        [sys.executable, "-c", _MILLION, json.dumps(given)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["mib"] < 1024
    assert found["cpu"] < 60
    assert found["listed"] <= 1_000 and found["record"] < 10_000 and found["checkpoint"] < 1_000_000
    assert len(found["clients"]) == 6 and max(found["clients"]) > 1_000
