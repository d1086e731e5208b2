"""Bad measurements, nodes and sites on Flower: each is rejected alone, and the run continues."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from covey import Config, Refusal
from covey.core.build import build_federation
from covey.fleet.fleet_folder import Site
from covey.fleet.fleet_runtime import FleetRuntime
from covey.fleet.loopback import loopback_fleet
from covey.fleet.site import RUN, about, prepared
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.wire import REPLY, as_array
from covey.job.experiment import Experiment
from tests.conftest import SMALL

Change = Callable[[np.ndarray], np.ndarray]

KINDS: dict[str, Change] = {
    "another shape": lambda value: np.ones((*value.shape, 2), np.float32),
    "no numbers": lambda value: np.ones(0, np.float32),
    "unsigned": lambda value: np.ones(value.shape, np.uint16),
    "whole": lambda value: np.full(value.shape, 7, np.int64),
    "huge": lambda value: np.full(value.shape, 1e300),
    "huge floats": lambda value: np.full(value.shape, 3e38, np.float32),
}
METHODS = ("oort", "nccb", "power-of-choice", "feddrl", "loss-softmax", "mocha", "fedfomo", "ondemand", "fedacs")


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def points(context: Context) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    return torch.randn(20, 6, generator=rng), torch.randint(0, 3, (20,), generator=rng)


GOOD = client_app(net, points, threads=1)


class Node(ClientApp):
    """A node whose answers a function gives."""

    def __init__(self, answer: Callable[[Message, Context], Message]) -> None:
        super().__init__()
        self.answer = answer

    def __call__(self, message: Message, context: Context) -> Message:
        return self.answer(message, context)


def measuring_badly(change: Change) -> Node:
    """A node that corrupts all its measurements."""

    def answer(message: Message, context: Context) -> Message:
        given = GOOD(message, context)
        found = given.content.array_records.get(f"{REPLY}.arrays") if given.has_content() else None
        arrays = ArrayRecord() if found is None else found
        for name in [name for name in arrays if "." in name]:
            arrays[name] = as_array(change(np.array(arrays[name].numpy())))
        return given

    return Node(answer)


def silent(message: Message, context: Context) -> Message:
    if message.metadata.message_type in ("train", "query"):
        raise RuntimeError("no")
    return GOOD(message, context)


@pytest.mark.filterwarnings("ignore:selector.clusters", "ignore:In round", "ignore:The run", "ignore:overflow")
@pytest.mark.parametrize("alone", [False, True], ids=["among others", "alone"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_measurement_does_not_end_the_run(method, kind, alone, tmp_path):
    other = Node(silent) if alone else GOOD
    grid = InProcessGrid([measuring_badly(KINDS[kind]), *[other] * 3], 4)
    pool: dict[str, Any] = {"selector": {"pool": 1.0}} if method == "fedacs" else {}
    strategy = Strategy(
        method, model=net(), clients=4, cohort=4, strikes=0, evaluate=0.0, folder=tmp_path / "run", **pool
    )
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3, timeout=10)
    assert len(strategy.history) == 3
    assert all(torch.isfinite(value).all() for value in result.arrays.to_torch_state_dict().values())
    if not alone:
        assert all(set(entry["answered"]) >= {"1", "2", "3"} for entry in strategy.history)


@pytest.mark.parametrize("lost", [{2}, {2, 3}, {2, 3, 4}])
def test_a_client_that_keeps_variables_returns_after_any_number_of_lost_answers(lost):
    count = 0

    def late(message: Message, context: Context) -> Message:
        nonlocal count
        answer = GOOD(message, context)
        if message.metadata.message_type == "query":
            count += 1
            if count in lost:
                raise RuntimeError("lost on its way")
        return answer

    strategy = Strategy("mocha", model=net(), clients=3, cohort=3, strikes=0, evaluate=0.0)
    strategy.start(
        InProcessGrid([Node(late), GOOD, GOOD], 3), ArrayRecord(net().state_dict()), num_rounds=7, timeout=10
    )
    assert [entry["round"] for entry in strategy.history if entry["faults"]] == sorted(lost)


def test_a_node_without_a_name_is_no_client():
    def nameless(message: Message, context: Context) -> Message:
        answer = GOOD(message, context)
        for record in answer.content.config_records.values():
            record.clear()
        return answer

    strategy = Strategy("fedavg", model=net(), clients=2, cohort=2, evaluate=0.0, patience=5)
    grid = InProcessGrid([GOOD, GOOD, Node(nameless)], 3)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1, timeout=10)
    assert strategy.history[0]["answered"] == ["0", "1"]


def test_an_unknown_option_of_a_site_is_refused(tmp_path: Path):
    (tmp_path / "site.toml").write_text('name = "kiel"\nserver = "here:1"\n[node]\nupdate_clip = 1.0\n')
    with pytest.raises(Refusal, match="there is no option 'update_clip' under node"):
        Site.read(tmp_path)
    (tmp_path / "site.toml").write_text('name = "kiel"\nserver = "here:1"\napp = "own:app"\n[node]\nany = 1\n')
    assert Site.read(tmp_path).node == {"any": 1}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--address", "here:99999"], "The address has a port from 1 to 65535, not 99999."),
        (["--address", "[::1]:8443"], "'[::1]' cannot be a host here"),
        (["--address", "here:1", "--host", "münchen.de"], "'münchen.de' cannot be a host here"),
        (["--address", "here:1", "--poll", 0], "poll must be above 0 seconds, not 0."),
    ],
)
def test_a_fleet_with_an_unreachable_address_is_refused_before_keys_are_made(tmp_path, covey_command, flags, sentence):
    given = ["--sites", "kiel,bremen", "--shape", 4, "--classes", 2, *flags]
    refused = covey_command("fleet", "init", tmp_path / "fleet", *given)
    assert sentence in refused.err
    assert not (tmp_path / "fleet").exists()


def test_errors_in_a_sites_samples_are_not_sent(tmp_path: Path):
    (tmp_path / "train.csv").write_text("a,label\nJane Doe,ok\n")
    told = about(build_federation(Config.of(SMALL)).dataset, "mlp", {}, 0, "fp32")
    context = Context(0, 0, {"folder": str(tmp_path)}, RecordDict(), {RUN: json.dumps(told)})
    with pytest.raises(Refusal) as refused:
        prepared(context, "train")
    assert str(refused.value) == "Its samples cannot be read; the site's log says why."
    assert "Jane Doe" in str(refused.value.__cause__), "what the log says"


@pytest.mark.parametrize(("method", "goes_on"), [("local-only", False), ("mocha", False), ("fedavg", True)])
def test_state_that_only_sites_hold_cannot_be_resumed_on_another_fleet(tmp_path, method, goes_on):
    config = Config.of({**SMALL, "method": method, "clients": 4, "cohort": 4})
    experiment = Experiment.of(config)
    fleet = loopback_fleet(tmp_path / "fleet", build_federation(config), {**SMALL, "clients": 4})
    runtime = FleetRuntime(experiment.federation, experiment.module, config, fleet)
    try:
        runtime.restore([{"round": 1}])
        order = experiment.method.order(2, np.arange(4))
        # Nobody serves this fleet: what is not refused fails to reach it.
        refused = "cannot be reached|refused|certificate" if goes_on else f"'{method}' leaves with sites what only they"
        with pytest.raises(Refusal, match=refused):
            runtime.execute(order)
        runtime._scored = False
        record = runtime.annotate({"round": 2, "accuracy": 0.0, "loss": 0.0})
        assert not {"accuracy", "loss", "own_accuracy"} & set(record), "where no site has scored the model"
    finally:
        runtime.close()
        experiment.runtime.close()
