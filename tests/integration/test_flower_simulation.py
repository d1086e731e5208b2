"""Flower's simulation engine (Ray), and a fleet of sites in one process."""

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

import covey
from covey import Config
from covey.core.interfaces import Probe
from covey.core.replies import checked
from covey.flower import InProcessGrid
from covey.flower.flower_runtime import FlowerRuntime
from covey.flower.simulation import simulation
from covey.job.experiment import Experiment
from covey.registries import methods
from tests.conftest import SMALL, small_for, without_timings
from tests.flower.test_flower import FEDERATION, ROOT

pytestmark = pytest.mark.filterwarnings("ignore:selector.clusters")


@pytest.fixture(scope="module")
def engine():
    """Flower's simulation engine with 20 nodes, started once."""
    with simulation(nodes=20, cpus=2):
        yield


@pytest.mark.parametrize("method", methods.names())
def test_every_method_runs_on_flowers_simulation_with_20_nodes(method, engine, tmp_path):
    settings = {**small_for(method, FEDERATION), "rounds": 2}
    local = covey.run(settings, out=tmp_path / "local")
    flower = covey.run(settings, runtime="flower", workers=2, out=tmp_path / "flower")
    assert without_timings(flower.metrics) == without_timings(local.metrics)
    read = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("local", "flower")]
    assert read[0] == read[1]


def test_full_participation_with_convolutions_dropout_and_crops_is_the_same_on_the_simulation(engine, tmp_path):
    settings = {
        **FEDERATION,
        "cohort": 20,
        "rounds": 2,
        "dataset": {"name": "synthetic", "shape": (1, 28, 28), "train": 400, "test": 50},
        "model": {"name": "fashion-cnn"},
        "local": {"epochs": 1, "batch": 8, "rate": 0.05, "momentum": 0.5, "crop": 2, "flip": True},
    }
    local = covey.run(settings, out=tmp_path / "local")
    flower = covey.run(settings, runtime="flower", workers=2, out=tmp_path / "flower")
    assert [row["clients"] for row in flower.metrics] == [list(range(20))] * 2
    assert without_timings(flower.metrics) == without_timings(local.metrics)
    read = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("local", "flower")]
    assert read[0] == read[1]


def test_a_run_on_flower_resumes_where_it_stopped_with_what_clients_held(engine, tmp_path):
    """Nodes of another simulation hold nothing: MOCHA's dual variables come from the checkpoint."""
    settings = {**FEDERATION, "method": "mocha", "rounds": 2}
    whole = covey.run(settings, out=tmp_path / "whole", rounds=4)
    covey.run(settings, runtime="flower", workers=2, out=tmp_path / "part")
    config = tmp_path / "part" / "config.json"
    said = json.loads(config.read_text())
    (said.get("config") or said)["rounds"] = 4
    config.write_text(json.dumps(said))
    resumed = covey.resume(tmp_path / "part")
    assert [row["accuracy"] for row in resumed.metrics] == [row["accuracy"] for row in whole.metrics]


def test_analyze_asks_the_nodes_of_a_simulation(engine):
    settings = {"clients": 20, "environment": {"name": "uniform", "samples": 40}, "model": SMALL["model"]}
    local = covey.analyze(settings, workers=1)
    flower = covey.analyze(settings, runtime="flower", workers=2)
    assert len(local.clients) == 20
    for one, other in zip(local.clients, flower.clients, strict=True):
        assert one == other


def test_ondemand_asks_and_trains_the_nodes_of_a_simulation(engine, tmp_path):
    base = covey.run({**FEDERATION, "method": "fedavg"}, out=tmp_path / "base")
    mix = {0: 0.5, 1: 0.5}
    done = {
        runtime: covey.ondemand(
            base, mix, estimator="analytic", rounds=2, out=tmp_path / runtime, runtime=runtime, workers=workers
        )
        for runtime, workers in (("local", 1), ("flower", 2))
    }
    read = [sorted((tmp_path / name).rglob("*.safetensors")) for name in done]
    assert read[0]
    for one, other in zip(*read, strict=True):
        tensors, same = load_file(one), load_file(other)
        assert all(torch.equal(tensors[name], same[name]) for name in {*tensors, *same})


def test_flower_is_not_imported_unless_it_is_used():
    script = (
        "import sys, covey.cli.main; from covey.runtime import runtimes; runtimes.names(); "
        "print('flwr' in sys.modules, 'ray' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]


@dataclass(frozen=True)
class Fragile(Probe):
    """A probe that fails on clients with an odd number of samples."""

    name = "fragile"

    def measure(self, learner, received, trained, samples, key):
        if len(samples) % 2:
            raise OSError("the sensor is unplugged")
        return {"value": torch.tensor(1.0)}


def test_a_node_of_the_simulation_that_fails_costs_one_reply(engine):
    config = Config.of({**FEDERATION, "environment": {"name": "dirichlet", "alpha": 1.0}, "workers": 2})
    experiment = Experiment.of(config)
    runtime = FlowerRuntime.of(experiment.federation, experiment.module, config)
    try:
        order = replace(experiment.method.order(1, np.arange(20)), clients=np.arange(20), probes=(Fragile(),))
        replies = checked(runtime.execute(order))
        again = checked(runtime.execute(replace(order, probes=())))
    finally:
        runtime.close()
        experiment.runtime.close()
    odd = np.flatnonzero(experiment.federation.sizes % 2)
    assert 0 < len(odd) < 20
    assert [fault.client for fault in replies.faults] == odd.tolist()
    assert {fault.reason for fault in replies.faults} == {"it answered with an error: the sensor is unplugged"}
    assert replies.clients.tolist() == np.flatnonzero(experiment.federation.sizes % 2 == 0).tolist()
    assert again.clients.tolist() == list(range(20))


def test_a_fleet_of_sites_with_folders_of_their_own(monkeypatch, tmp_path, capsys):
    folder = ROOT / "examples/flower-fleet"
    subprocess.run([sys.executable, str(folder / "make_sites.py"), str(tmp_path)], check=True)
    monkeypatch.syspath_prepend(str(folder))
    site, operator = (import_module(f"fleet.{side}_app").app for side in ("client", "server"))
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    sites = [{"client": name, "folder": str(tmp_path / name)} for name in ("quarry", "harbour", "mill")]
    output = str(tmp_path / "out")
    operator(InProcessGrid(site, sites), Context(1, 0, {}, RecordDict(), {**config, "output": output}))
    said = capsys.readouterr().out
    assert "round 5: harbour, mill, quarry answered; lost: nothing" in said
    assert float(said.split("accuracy at the sites: ")[1]) > 0.8
