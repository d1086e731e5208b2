"""Flower clients and sites learn tasks without classes, as a simulation does."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import covey
from covey.core.loop import run_in_lockstep
from covey.core.records import Records, read_metrics
from covey.fleet import samples, site
from covey.fleet.fleet_folder import Fleet
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.flower_runtime import FlowerRuntime
from covey.flower.simulated_client import app as simulated_app
from covey.job.experiment import Experiment
from covey.job.loop_run import loop_run
from covey.job.settings import as_config, describing
from covey.task import MultiLabel, Regression
from tests.task.federations import FEDERATIONS, SETTINGS, conditions, diabetes

pytestmark = pytest.mark.filterwarnings("ignore")
CLIENTS = 4


@pytest.mark.parametrize("task", list(FEDERATIONS))
@pytest.mark.parametrize("method", ["fedacs", "moon"])
def test_simulated_nodes_compute_what_the_local_runtime_does(task, method, tmp_path):
    federation = FEDERATIONS[task]()
    pool = {"selector": {"name": "fedacs", "pool": 0.7}} if method == "fedacs" else {}
    config = as_config({**SETTINGS, **pool, "method": method}, describing(federation))
    found = []
    for name in ("local", "flower"):
        experiment = Experiment.of(config, federation)
        if name == "flower":
            grid = InProcessGrid(simulated_app, federation.clients)
            experiment = replace(experiment, runtime=FlowerRuntime(federation, experiment.module, config, grid))
        records = Records.create(tmp_path / name, config)
        run_in_lockstep([loop_run(experiment, records, None)])
        records.close()
        experiment.runtime.close()
        found.append([{**row, "seconds": 0, "probe_seconds": 0, "clock": 0} for row in read_metrics(tmp_path / name)])
    assert found[0] == found[1]


def net(outputs: int, inputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def samples_of(context, made):
    x, y = made()
    mine = np.arange(len(x)) % CLIENTS == context.node_config["partition-id"]
    return torch.from_numpy(x[mine]).float(), torch.from_numpy(y[mine])


@pytest.mark.parametrize(
    ("made", "task", "outputs", "metric"),
    [
        (diabetes, Regression(centre=(150.0,), scale=(77.0,)), 1, "rmse"),
        (conditions, None, 3, "map"),
        (conditions, "multilabel", 3, "map"),
    ],
)
def test_a_strategy_and_client_apps_of_ones_own(made, task, outputs, metric, tmp_path):
    model = net(outputs, made()[0].shape[1])
    app = client_app(
        lambda: net(outputs, made()[0].shape[1]), lambda context: samples_of(context, made), task=task, threads=1
    )
    strategy = Strategy("oort", model=model, clients=CLIENTS, cohort=2, folder=tmp_path / "run", task=named(task))
    result = strategy.start(InProcessGrid(app, CLIENTS), ArrayRecord(model.state_dict()), num_rounds=3)
    scores = [record[metric] for record in result.evaluate_metrics_clientapp.values()]
    assert len(scores) == 3
    rows = covey.Run.open(tmp_path / "run").metrics
    assert [row["score"] for row in rows] == pytest.approx(scores)
    assert {(row["metric"], row["better"]) for row in rows} == {(metric, "lower" if metric == "rmse" else "higher")}


def named(task):
    return "regression" if isinstance(task, Regression) else "multilabel"


def test_a_strategy_refuses_methods_that_need_classes():
    model = net(1, 10)
    strategy = Strategy("fedlc", model=model, clients=CLIENTS, task="regression")
    app = client_app(lambda: net(1, 10), lambda context: samples_of(context, diabetes))
    with pytest.raises(covey.Refusal, match="The trainer 'fedlc' works with the classes"):
        strategy.start(InProcessGrid(app, CLIENTS), ArrayRecord(model.state_dict()), num_rounds=1)


def test_decimal_labels_are_not_cut_to_whole_numbers():
    """They were, before there were tasks: 0.7 became class 0."""
    from covey.flower.node_app import _as_dataset, as_samples
    from covey.flower.user_model import ModelWithHead

    made = _as_dataset(ModelWithHead(net(1, 2)), as_samples((torch.zeros(3, 2), torch.tensor([0.5, 0.7, 2.0]))), None)
    assert made.learns.name == "regression"
    torch.testing.assert_close(made.y, torch.tensor([[0.5], [0.7], [2.0]]))


# Fleets


def a_fleet(folder, **run) -> Fleet:
    return Fleet(folder=folder, address="127.0.0.1:1", sites=("a", "b"), data={"shape": [10], "targets": 1}, run=run)


def test_a_fleet_of_sites_with_targets_is_known_by_its_task(tmp_path):
    x, y = diabetes()
    np.savez(tmp_path / "test.npz", x=x[:50].astype(np.float32), y=y[:50])
    task = {"name": "regression", "centre": [150.0], "scale": [77.0]}
    fleet = a_fleet(tmp_path, task=task)
    fleet = replace(fleet, data={**fleet.data, "test": "test.npz"})
    data = samples.federation_of(fleet).dataset
    assert (data.outputs, data.learns.name, data.blank) == (1, "regression", True)
    torch.testing.assert_close(data.learns.original(data.test_y)[:, 0], torch.from_numpy(y[:50]), atol=1e-4, rtol=0)
    told = json.loads(json.dumps(site.about(data, "mlp", {}, 0, "fp32")))
    np.savez(tmp_path / "train.npz", x=x.astype(np.float32), y=y)
    from covey.task import named_task

    own = site.read_samples(tmp_path, "train", (), "label", named_task(told["task"]))
    torch.testing.assert_close(own.y[:, 0].double() * 77 + 150, torch.from_numpy(y), atol=1e-4, rtol=0)


def test_a_site_reads_several_labels_and_refuses_what_is_no_label(tmp_path):
    (tmp_path / "train.csv").write_text("a,u,v\n0.5,1,0\n0.25,0,1\n")
    own = site.read_samples(tmp_path, "train", (), "u,v", MultiLabel(labels=2))
    assert own.y.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(covey.Refusal, match="2 labels each, and the run is about 3"):
        site.read_samples(tmp_path, "train", (), "u,v", MultiLabel(labels=3))
    (tmp_path / "train.csv").write_text("a,u,v\n0.5,1,0\n0.25,0,often\n")
    with pytest.raises(covey.Refusal, match="labels must be numbers"):
        site.read_samples(tmp_path, "test", (), "u,v", MultiLabel(labels=2))


def test_a_fleet_with_targets_needs_their_unit(tmp_path):
    with pytest.raises(covey.Refusal, match="nobody sees all sites' targets"):
        samples.federation_of(a_fleet(tmp_path, task="regression"))
