"""Covey on Flower: clients' work, messages, the roster of nodes, and bad nodes."""

import json
import logging
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.linkstate.utils import (
    create_message_error_unavailable_ins_message,
    create_message_error_unavailable_res_message,
)
from torch import Tensor, nn

import covey
from benchmarks import flower_overhead
from covey import Config, Refusal
from covey.config.sections import Local
from covey.core.client_health import Health
from covey.core.client_names import read_names
from covey.core.interfaces import Probe
from covey.core.loop import run_in_lockstep
from covey.core.messages import Order
from covey.core.one_model import OneModel
from covey.core.records import Records, read_metrics
from covey.core.replies import checked
from covey.data.dataset import Dataset, Samples
from covey.environment.federated_data import Federation
from covey.errors import require
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.answer_text import reason_of
from covey.flower.exchange import Exchange
from covey.flower.flower_runtime import FlowerRuntime
from covey.flower.in_process_grid import travelled
from covey.flower.roster import Roster
from covey.flower.simulated_client import app as simulated_app
from covey.flower.wire import CARRIED, ORDER, REPLY, as_tensor, describe, digest, rebuild, unpack_order
from covey.job.experiment import Experiment
from covey.job.loop_run import loop_run
from covey.job.settings import as_config, describing
from covey.model import build_model
from covey.personalization.fedfomo import Offer
from covey.personalization.mocha import LocalSubproblem
from covey.personalization.shared_and_own import SharedAndOwn
from covey.probe.class_query import ClassQuery, Privacy
from covey.probe.insight import Insight
from covey.probe.losses import Losses, Utility
from covey.probe.predictor import PredictorProbe, PrivatePredictorProbe
from covey.probe.simhash import SimHash
from covey.registries import methods
from covey.runtime.devices import OnDevices
from tests.conftest import SMALL, small_for, without_timings

ROOT = Path(__file__).parents[2]
FEDERATION: dict[str, Any] = {**SMALL, "clients": 20, "cohort": 6, "rounds": 3}
REFERENCES = ("central", "iid")

pytestmark = pytest.mark.filterwarnings("ignore:selector.clusters")


def played(config: Config, folder: Path, grid: Callable[[int], InProcessGrid] | None = None):
    """Metrics and checkpoint of a run on the local runtime, or over a grid in this process."""
    experiment = Experiment.of(config)
    if grid is not None:
        federation = experiment.federation
        over = FlowerRuntime(federation, experiment.module, config, grid(federation.clients))
        runtime = OnDevices(over, config.devices, federation.sizes, config.seed)
        experiment = replace(experiment, runtime=runtime)
    records = Records.create(folder, config)
    try:
        run_in_lockstep([loop_run(experiment, records, None)])
    finally:
        records.close()
        experiment.runtime.close()
    return without_timings(read_metrics(folder)), (folder / "checkpoint.safetensors").read_bytes()


# Clients' work


@pytest.mark.parametrize("method", [*methods.names(), "fedacs+cmfl"])
def test_every_method_through_messages_is_the_local_run_to_the_bit(method, tmp_path):
    config = Config.of(small_for(method, FEDERATION))
    local = played(config, tmp_path / "local")
    over = played(config, tmp_path / "grid", lambda nodes: InProcessGrid(simulated_app, nodes))
    assert over == local


OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"trainer": name} for name in ("fedcm", "feddyn", "fedlc", "fednova", "fedprox", "fedsam", "moon")},
    **{name: {"trainer": name} for name in ("scaffold", "sgd", "dp-sgd")},
    **{name: {"method": name} for name in ("fedbn", "fedper", "fedrep", "ditto", "qffl")},
    "adam": {"local": {"epochs": 2, "rate": 0.002, "optimizer": "adam", "clip": 1.0, "weight_decay": 0.1}},
    "adamw": {"local": {"epochs": 2, "rate": 0.002, "optimizer": "adamw", "schedule": "cosine", "warmup": 2}},
    "momentum": {"local": {"epochs": 2, "momentum": 0.5, "clip": 1.0, "schedule": "step", "schedule_rounds": 2}},
    "fedavgm": {"server": {"optimizer": "momentum"}, "averaging": {"ema": 0.9}},
    "fedadam": {"server": {"optimizer": "adam"}, "averaging": {"swa": 2}},
    "fedyogi": {"server": {"optimizer": "yogi"}},
    "fedadagrad": {"server": {"optimizer": "adagrad"}},
}


@pytest.mark.parametrize("option", list(OPTIONS))
def test_trainers_and_server_options_with_drop_outs_are_the_local_run_to_the_bit(option, tmp_path):
    """What clients keep belongs to their last reply that arrived, in messages too."""
    given = OPTIONS[option]
    small = small_for(given.get("method", "fedavg"), {**FEDERATION, "clients": 6, "cohort": 3, "rounds": 5})
    config = Config.of({**small, **given, "devices": {"dropout": 0.3}})
    local = played(config, tmp_path / "local")
    assert any(row["dropped"] for row in local[0])
    assert played(config, tmp_path / "grid", lambda nodes: InProcessGrid(simulated_app, nodes)) == local


def test_simulated_nodes_know_the_stop_words_of_their_texts(tmp_path):
    config = Config.of(
        {
            "dataset": {"name": "papers.nccb:made_up", "stop_words": "keep"},
            "environment": "natural",
            "model": {"name": "lstm", "embedding": 4, "hidden": 4, "layers": 1},
            "selector": {"name": "nccb", "clusters": 4, "threshold": 0},
            "cohort": 3,
            "rounds": 1,
            "workers": 1,
        }
    )
    local = played(config, tmp_path / "local")
    assert played(config, tmp_path / "grid", lambda nodes: InProcessGrid(simulated_app, nodes)) == local
    hashed = as_config(config, {"selector": {"stop_words": "hash"}})
    assert played(hashed, tmp_path / "hashed") != local


# Messages


PROBES: list[Probe] = [
    Losses(),
    Utility(),
    Insight(0.1),
    Insight(0.05, "full"),
    SimHash(32, "projection", stop_words="hash"),
    ClassQuery("bias", Privacy(1.0, 1e-5)),
    PredictorProbe(torch.randn(7), 3, 10, 2, 5, 0.01, 0.5, "gradient", 2**64 - 3),
    PredictorProbe(torch.randn(7), 3, 10, 2, 5, 0.01, 0.5, "shares", 4, Local(epochs=2, rate=0.1), 7),
    PrivatePredictorProbe(PredictorProbe(torch.randn(7), 3, 10, 0, 5, 0.01, 0.5, "shares", 9), Privacy(2, 1e-6), 0.7),
    LocalSubproblem(np.random.default_rng(0).random((3, 4)), 0.1 + 0.2, None, "hinge", 2),
    LocalSubproblem(np.zeros((3, 4)), 1.5, np.ones((5, 3)), "logistic", 1),
    Offer(3, (3, 1), [torch.randn(6), torch.randn(6)], 4, 5),
]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: type(probe).__name__)
def test_a_probe_is_the_same_after_its_journey(probe):
    arrays: dict[str, Any] = {}

    def refer(name, numbers):
        arrays[name] = torch.as_tensor(numbers)
        return {"array": name}

    text = json.dumps(describe(probe, probe.name, refer))
    arrived = rebuild(json.loads(text), lambda reference: arrays[reference["array"]], allowed=())
    assert type(arrived) is type(probe)
    assert json.dumps(describe(arrived, probe.name, refer)) == text
    assert arrived.name == probe.name
    assert arrived.kept == probe.kept


@dataclass(frozen=True)
class MeanInput(Probe):
    """A probe of a user's own."""

    power: int = 1

    name = "mean input"

    def measure(self, learner, received, trained, samples, key):
        return {"value": (samples.x.double() ** self.power).mean()}


def test_a_client_makes_a_users_own_probe_only_where_it_is_allowed():
    described = describe(MeanInput(2), "mean input", lambda name, numbers: {})
    with pytest.raises(Refusal, match=r"does not measure tests\.flower\.test_flower:MeanInput"):
        rebuild(described, lambda reference: torch.empty(0), allowed=())
    assert rebuild(
        described, lambda reference: torch.empty(0), allowed=["tests.flower.test_flower:MeanInput"]
    ) == MeanInput(2)


def test_a_client_imports_no_function_that_is_not_allowed():
    """Neither a user's own insight nor any other function of Covey that a server may name."""
    names = ("unheard_of.module:f", "covey.flower.wire:digest")
    for name in names:
        described = {"~part": "insight", "options": {"rate": 0.1, "kind": name}}
        with pytest.raises(Refusal, match=f"does not measure {name}"):
            rebuild(described, lambda reference: torch.empty(0), allowed=())
        with pytest.raises(Refusal, match=f"does not measure {name}"):
            rebuild({"~part": name, "options": {}}, lambda reference: torch.empty(0), allowed=())
    described = {"~part": "insight", "options": {"rate": 0.1, "kind": names[1]}}
    assert rebuild(described, lambda reference: torch.empty(0), allowed=[names[1]]).kind == names[1]


def test_digests_tell_numbers_types_and_shapes_apart():
    one = torch.arange(6, dtype=torch.float32)
    assert digest(one) == digest(one.numpy().copy())
    others = [one.double(), one.view(2, 3), one + 1, one.int()]
    assert len({digest(one), *map(digest, others)}) == 5


def an_exchange(grid: InProcessGrid, clients: int, **options) -> Exchange:
    roster = Roster(clients, patience=1.0)
    roster.wait(grid, 5.0)
    return Exchange(roster, seed=0, timeout=5.0, **options)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def points(client: int, count: int = 30) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(client)
    y = torch.randint(3, (count + client,), generator=draw)
    return torch.randn(len(y), 6, generator=draw) + 2 * torch.eye(3)[y].repeat(1, 2), y


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def net_with_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3))


def an_app(model: Callable[[], nn.Module] = net, **options) -> ClientApp:
    return client_app(model, lambda context: points(int(context.node_config["partition-id"])), threads=1, **options)


def an_order(clients: list[int], **options) -> Order:
    return Order(1, np.array(clients), flat(net()), covey.Local(epochs=1), **options)


def test_a_model_that_clients_hold_is_not_sent_again():
    grid = InProcessGrid(an_app(), 3)
    exchange = an_exchange(grid, 3)
    first = an_order([0, 1, 2], held=True)
    sizes = [[len(message.content.array_records) for message in exchange.messages(first)]]
    replies = exchange.execute(grid, first)
    second = replace(first, round=2, start=replies.states)
    sizes.append([len(message.content.array_records) for message in exchange.messages(second)])
    assert sizes == [[1, 1, 1], [0, 0, 0]]
    # And the clients do resume from there.
    direct = exchange.execute(grid, replace(second, held=False))
    assert torch.equal(exchange.execute(grid, second).states, direct.states)


def test_a_client_that_lost_what_it_held_is_asked_again_with_everything():
    grid = InProcessGrid(an_app(), 2)
    exchange = an_exchange(grid, 2)
    first = an_order([0, 1], held=True)
    replies = exchange.execute(grid, first)
    second = replace(first, round=2, start=replies.states)
    for context in list(grid.contexts.values())[:1]:
        context.state = RecordDict()
    again = exchange.execute(grid, second)
    assert again.faults == ()
    assert torch.equal(again.states, exchange.execute(grid, replace(second, held=False)).states)


def test_what_probes_keep_stays_in_the_nodes_state():
    grid = InProcessGrid(an_app(), 3)
    strategy = Strategy("mocha", model=net(), clients=3, cohort=3, evaluate=0.0)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
    assert strategy.history[-1]["answered"] == ["0", "1", "2"]
    assert strategy.method is not None
    for client, context in enumerate(grid.contexts.values()):
        shapes = [tuple(array.shape) for array in context.state.array_records["covey.held"].values()]
        assert (30 + client, 3) in shapes
    kept = strategy.method.state_dict()["client_resident"]
    assert {tuple(np.shape(value)) for value in kept.values()} == {(1,)}


def test_mocha_without_the_dual_variables_on_the_server_is_the_same_mocha():
    """Clients that keep them and a simulation that carries them end with the same models."""
    grid = InProcessGrid(an_app(), 3)
    strategy = Strategy("mocha", model=net(), clients=3, cohort=3, evaluate=0.0, local={"epochs": 2})
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
    experiment = a_local_experiment("mocha", rounds=3, local={"epochs": 2})
    assert strategy.method is not None
    assert torch.equal(strategy.method.models(), experiment.method.models())


# The roster, and bad nodes


def broken(kind: str) -> ClientApp:
    """An app whose answers to orders are bad in one way."""
    app, good = ClientApp(), an_app()

    def work(message: Message, context: Context) -> Message:
        if kind == "raises":
            raise RuntimeError("the disk is full")
        answer = good(message, context)
        arrays = answer.content.array_records.get(f"{REPLY}.arrays", ArrayRecord())
        if kind == "not covey's":
            return Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)
        if kind == "another shape":
            arrays["state"] = ArrayRecord([np.zeros(3, dtype=np.float32)])["0"]
        if kind == "nan":
            arrays["state"] = ArrayRecord([np.full(len(flat(net())), np.nan, dtype=np.float32)])["0"]
        if kind == "no model":
            del arrays["state"]
        if kind == "another type":
            arrays["state"] = ArrayRecord([arrays["state"].numpy().astype(np.float64)])["0"]
        if kind == "no samples":
            answer.content[REPLY] = MetricRecord({"samples": 0, "loss": 1.0})
        if kind == "strange samples":
            answer.content[REPLY] = MetricRecord({"samples": [1, 2], "loss": 1.0})
        if kind == "too many samples":
            answer.content[REPLY] = MetricRecord({"samples": 1 << 60, "loss": 1.0})
        if kind == "bytes":
            arrays["state"].data = b"garbage"
        return answer

    app.train()(work)
    app.query()(work)
    app.evaluate()(good)
    app.query("who")(good)
    return app


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raises", "it answered with an error: RuntimeError: the disk is full"),
        ("not covey's", "its answer is not one of Covey's"),
        ("another shape", "its model has the shape"),
        ("another type", "its model is of type torch.float64"),
        ("nan", "its model holds NaN"),
        ("no model", "it sent no model"),
        ("no samples", "it reported 0 samples"),
        ("strange samples", "its answer cannot be read"),
        ("too many samples", "its number of samples is"),
        ("bytes", "its answer cannot be read"),
    ],
)
def test_a_bad_node_costs_one_reply_and_not_the_run(kind, reason):
    grid = InProcessGrid([an_app(), broken(kind), an_app()], 3)
    strategy = Strategy("fedavg", model=net(), clients=3, cohort=3)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=2)
    for entry in strategy.history:
        assert entry["answered"] == ["0", "2"]
        (fault,) = entry["faults"]
        assert fault["client"] == "1"
        assert reason in fault["reason"]
    assert all(torch.isfinite(value).all() for value in result.arrays.to_torch_state_dict().values())


def test_what_only_a_simulation_carries_is_not_taken_from_real_clients():
    """local-only: a client that encloses a model nobody asked for does not place it on the server."""
    app, good = ClientApp(), an_app()

    def pushy(message, context):
        answer = good(message, context)
        answer.content[CARRIED] = ArrayRecord({"state": ArrayRecord([np.full(len(flat(net())), 7, np.float32)])["0"]})
        return answer

    app.train()(pushy)
    app.query("who")(good)
    grid = InProcessGrid(app, 2)
    replies = an_exchange(grid, 2).execute(grid, an_order([0, 1], resident=True))
    assert not (replies.states == 7).any()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("<class 'builtins.OSError'>:<'the disk is full'>", "OSError: the disk is full"),
        (
            "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::run()\n  File \"x.py\"\n"
            "Exception ClientAppException occurred. Message: the disk isn't there'>",
            "the disk isn't there",
        ),
        ("OSError: the disk is full", "OSError: the disk is full"),
        (None, "no reason given"),
    ],
)
def test_what_flower_wraps_around_an_error_is_no_part_of_the_reason(said, reason):
    assert reason_of(said) == reason


class Silent(InProcessGrid):
    """A grid on which one node does not answer orders."""

    silent = 1001

    def send_and_receive(self, messages, *, timeout=None):
        answers = super().send_and_receive(messages, timeout=timeout)
        return [
            answer
            for answer in answers
            if answer.metadata.src_node_id != self.silent or "who" in answer.metadata.message_type
        ]


def test_a_node_that_does_not_answer_is_named():
    strategy = Strategy("fedavg", model=net(), clients=3, cohort=3)
    strategy.start(Silent(an_app(), 3), ArrayRecord(net().state_dict()), num_rounds=1, timeout=5)
    assert strategy.history[0]["faults"] == [{"client": "1", "reason": "no answer within 5 seconds"}]


class Expiring(InProcessGrid):
    """A grid whose SuperLink has given up on one node's order; the error is Flower's own."""

    def __init__(self, *args, say: Callable[[Metadata], Message]) -> None:
        super().__init__(*args)
        self.say = say

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        asked = {message.metadata.dst_node_id: message.metadata for message in sent}
        answers = super().send_and_receive(sent, timeout=timeout)
        return [
            travelled(self.say(asked[1001]))
            if answer.metadata.reply_to_message_id == asked[1001].message_id
            and "who" not in answer.metadata.message_type
            else answer
            for answer in answers
        ]


NO_ANSWER, GONE = "no answer within 5 seconds", "it cannot be reached"


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda order: create_message_error_unavailable_ins_message(order.message_id, 1), NO_ANSWER),
        (lambda order: create_message_error_unavailable_res_message(order, "msg_unavail"), NO_ANSWER),
        (lambda order: create_message_error_unavailable_res_message(order, "node_unavail"), GONE),
    ],
    ids=["the order expired", "the answer expired", "the node left"],
)
def test_an_order_that_the_superlink_gave_up_is_an_answer_that_did_not_come(say, reason):
    grid = Expiring(an_app(), 3, say=say)
    replies = an_exchange(grid, 3).execute(grid, an_order([0, 1, 2]))
    assert replies.clients.tolist() == [0, 2]
    assert [(fault.client, fault.reason) for fault in replies.faults] == [(1, reason)]


def test_the_server_waits_for_clients_and_says_how_many_came():
    strategy = Strategy("fedavg", model=net(), clients=4, cohort=2, patience=0.1)
    with pytest.raises(Refusal, match=r"after 0\.1 seconds 3 have said who they are \(nodes connected: 3\)"):
        strategy.start(InProcessGrid(an_app(), 3), ArrayRecord(net().state_dict()))


def named(names: list[str]) -> InProcessGrid:
    app = client_app(net, lambda context: points(len(str(context.node_config["client"]))), threads=1)
    return InProcessGrid(app, [{"client": name} for name in names])


def test_clients_are_known_by_their_names_whatever_the_order_of_nodes():
    results = []
    for order in (["mill", "harbour", "quarry"], ["quarry", "mill", "harbour"]):
        strategy = Strategy("fedavg", model=net(), names=["harbour", "mill", "quarry"], cohort=2, seed=3)
        result = strategy.start(named(order), ArrayRecord(net().state_dict()), num_rounds=3)
        invited = [entry["invited"] for entry in strategy.history]
        results.append((invited, {name: value.tolist() for name, value in result.arrays.to_torch_state_dict().items()}))
    assert results[0] == results[1]


def test_a_name_that_is_absent_is_named():
    strategy = Strategy("fedavg", model=net(), names=["harbour", "mill"], cohort=2, patience=0.1)
    with pytest.raises(Refusal, match=r"Not there after 0.1 seconds: mill \(nodes connected: 1\)\."):
        strategy.start(named(["harbour"]), ArrayRecord(net().state_dict()))


class Late(InProcessGrid):
    """A grid on which some nodes give their name only when asked for the sixth time."""

    def __init__(self, *args, late: tuple[int, ...]) -> None:
        super().__init__(*args)
        self.late, self.questions = late, 0

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        late = [message for message in sent if message.metadata.dst_node_id in self.late]
        self.questions += bool(late)
        return super().send_and_receive([one for one in sent if self.questions > 5 or one not in late])


def test_nodes_that_start_slowly_are_asked_until_patience_is_over():
    grid = Late(an_app(), 4, late=(1000, 1001, 1002, 1003))
    roster = Roster(4, patience=20.0)
    roster.wait(grid, 0.1)
    assert roster.available().tolist() == [0, 1, 2, 3]


def test_a_question_is_not_open_for_all_of_the_patience(monkeypatch):
    """If one node is silent, nodes that arrive later are asked as well."""
    limits = []

    class Noting(Late):
        def send_and_receive(self, messages, *, timeout=None):
            limits.append(timeout)
            return super().send_and_receive(messages, timeout=timeout)

    roster = Roster(2, patience=60.0)
    roster.wait(Noting(an_app(), 2, late=(1000, 1001)), 3_600.0)
    assert limits[:4] == [5, 10, 20, 40]
    assert all(limit <= 60 for limit in limits)


def test_a_node_that_does_not_say_who_it_is_is_asked_again_less_and_less_often():
    grid = Late(an_app(), 3, late=(1002,))
    roster = Roster(3, ["0", "1", "2"], patience=0.0)
    asked = []
    for look in range(1, 22):
        before = grid.questions
        roster.refresh(grid, 1.0)
        asked += [look] * (grid.questions - before)
    assert asked == [1, 2, 4, 7, 12, 21]
    assert roster.available().tolist() == [0, 1, 2]


def test_a_node_that_comes_back_under_another_number_is_the_same_client():
    grid = named(["harbour", "mill"])
    roster = Roster(2, patience=0.1)
    roster.wait(grid, 1.0)
    before = roster.node_of(1)
    gone = grid.contexts.pop(1001)
    roster.refresh(grid, 1.0)
    assert roster.available().tolist() == [0]
    grid.contexts[2000], grid.apps[2000] = gone, grid.apps[1001]
    roster.refresh(grid, 1.0)
    assert (before, roster.node_of(1)) == (1001, 2000)
    assert roster.client_of(2000) == 1


# The strategy


@pytest.fixture
def flower_log(caplog):
    """Capture Flower's log, also while a simulation of another test is open."""
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


def a_local_experiment(method: str, rounds: int, **settings) -> Experiment:
    """Run the federation of the tests' clients on the local runtime."""
    clients = settings.pop("clients", 3)
    held = [points(client) for client in range(clients)]
    x, y = torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])
    dataset = Dataset("points", x, y, x[:5], y[:5], ("a", "b", "c"))
    parts = list(torch.arange(len(y)).split([len(y) for _, y in held]))
    federation = Federation(dataset, parts, shared=False)
    given = {
        "method": method,
        "rounds": rounds,
        "cohort": clients,
        "model": "tests.flower.test_flower:as_built",
        "workers": 1,
    }
    config = as_config({**given, **settings}, describing(federation))
    experiment = Experiment.of(config, federation)
    for number in range(1, rounds + 1):
        reachable = experiment.runtime.available(number)
        survey = experiment.method.survey(number, reachable)
        if survey is not None:
            experiment.method.surveyed(number, checked(experiment.runtime.execute(survey)))
        experiment.method.absorb(
            number, checked(experiment.runtime.execute(experiment.method.order(number, reachable)))
        )
    experiment.runtime.close()
    return experiment


def as_built(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = net()
    model.head = "3"  # type: ignore[assignment]
    return model


def as_built_with_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = net_with_norm()
    model.head = "4"  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in REFERENCES])
def test_the_strategy_is_the_local_run_to_the_bit(method):
    cohort = 4 if method in ("fedacs", "rexp3", "nccb", "k-linucb", "oort", "oort-simple", "power-of-choice") else 12
    # Real seconds, which Oort looks at, are never the same twice.
    parts: dict[str, Any] = {"selector": {"penalty": 0.0}} if method == "oort" else {}
    local = {"epochs": 2 if method == "fedrep" else 1}
    model = net_with_norm if method == "fedbn" else net
    grid = InProcessGrid(an_app(model=model), 12)
    strategy = Strategy(method, model=model(), clients=12, cohort=cohort, local=local, **parts)
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=3)
    built = f"tests.flower.test_flower:{'as_built_with_norm' if method == 'fedbn' else 'as_built'}"
    experiment = a_local_experiment(method, 3, clients=12, cohort=cohort, local=local, model=built, **parts)
    assert [entry["faults"] for entry in strategy.history] == [[], [], []]
    assert strategy.method is not None
    if method == "local-only":
        own = [context.state.array_records["covey.held"] for context in grid.contexts.values()]
        for row, arrays in zip(experiment.method.models(), own, strict=True):
            assert digest(row) in {digest(as_tensor(array)) for array in arrays.values()}
    elif isinstance(strategy.method, SharedAndOwn):
        # The server has the shared part alone; what clients keep is what the local run has.
        assert isinstance(experiment.method, SharedAndOwn)
        assert torch.equal(strategy.method.models()[0], experiment.method.models()[0])
        kept = experiment.method.trainer.store.of(range(12))
        for client, context in enumerate(grid.contexts.values()):
            arrays = context.state.array_records["covey.held"]
            assert digest(kept[client].values) in {digest(as_tensor(array)) for array in arrays.values()}
    else:
        assert torch.equal(strategy.method.models(), experiment.method.models())


@pytest.mark.parametrize("averaging", [{"ema": 0.9}, {"swa": 2}])
def test_the_strategy_steps_and_averages_as_the_local_run_does(averaging, tmp_path):
    chain: dict[str, Any] = {"server": {"optimizer": "momentum", "rate": 0.5}, "averaging": averaging}
    given: dict[str, Any] = {"model": net(), "clients": 3, "cohort": 3, "local": {"epochs": 1}}
    strategy = Strategy("fedavg", **given, **chain)
    result = strategy.start(InProcessGrid(an_app(), 3), ArrayRecord(net().state_dict()), num_rounds=4)
    expected = a_local_experiment("fedavg", 4, local={"epochs": 1}, **chain).method
    assert isinstance(strategy.method, OneModel) and isinstance(expected, OneModel)
    assert torch.equal(strategy.method.model, expected.model)
    assert torch.equal(strategy.method.models(), expected.models())
    handed = torch.cat([array.flatten() for array in result.arrays.to_torch_state_dict().values()])
    assert torch.equal(handed, expected.models()[0])
    assert not torch.equal(handed, expected.model)
    # A strategy that is started again goes on from the model itself, with its optimiser's moments and its average.
    for rounds in (2, 4):
        again = Strategy("fedavg", **given, **chain, folder=tmp_path / "run")
        again.start(InProcessGrid(an_app(), 3), ArrayRecord(net().state_dict()), num_rounds=rounds)
    assert isinstance(again.method, OneModel)
    assert torch.equal(again.method.model, expected.model)
    assert torch.equal(again.method.models(), expected.models())


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_nodes_train_by_adam_as_the_local_runtime_does(method):
    kind = "adam" if method == "fedavg" else "adamw"
    work = {"epochs": 2, "rate": 0.002, "optimizer": kind, "clip": 0.5, "weight_decay": 0.1, "schedule": "cosine"}
    strategy = Strategy(method, model=net(), clients=3, cohort=3, local=work)
    strategy.start(InProcessGrid(an_app(), 3), ArrayRecord(net().state_dict()), num_rounds=2)
    assert [entry["faults"] for entry in strategy.history] == [[], []]
    assert strategy.method is not None
    assert torch.equal(strategy.method.models(), a_local_experiment(method, 2, local=work).method.models())


def test_settings_that_older_clients_do_not_know_are_sent_only_if_they_are_used():
    """An order by SGD has the settings of earlier versions, in their order, and an order without the others is SGD."""
    earlier = ["epochs", "batch", "rate", "decay", "momentum", "weight_decay", "proximal", "crop", "flip"]
    sent = Local(epochs=2).as_message()
    assert list(sent) == earlier
    assert Local(**sent) == Local(epochs=2, optimizer="sgd", clip=0.0)
    for work in (Local(optimizer="adam"), Local(clip=5.0), Local(optimizer="adamw", clip=5.0), Local(warmup=1)):
        assert len(work.as_message()) > len(earlier)
        assert Local(**work.as_message()) == work
        described = describe(work, "work", lambda name, numbers: {})
        assert rebuild(described, lambda reference: torch.empty(0), ()) == work
    assert list(describe(Local(), "work", lambda name, numbers: {})["options"]) == earlier


def test_nodes_that_are_left_out_are_named_once(flower_log):
    strategy = Strategy("fedavg", model=net(), clients=2, cohort=2)
    strategy.start(InProcessGrid(an_app(), 4), ArrayRecord(net().state_dict()), num_rounds=2)
    assert flower_log.text.count("Left out, as 2 clients are expected: 2, 3") == 1


@pytest.mark.parametrize("method", REFERENCES)
def test_references_that_rearrange_data_are_refused(method):
    with pytest.raises(Refusal, match="rearranges clients' data"):
        Strategy(method, model=net(), clients=3)


def test_a_pool_too_small_for_the_cohort_is_refused_before_anything_is_started():
    with pytest.raises(Refusal, match=r"selector\.pool = 0\.4 of 10 clients is a pool of 4, too few for a cohort of 5"):
        Strategy("fedacs", clients=10, cohort=0.5)
    Strategy("fedacs", clients=10, cohort=0.5, selector={"pool": 0.7})


def test_a_strategy_of_parts_and_a_model_that_loads_again():
    strategy = Strategy(
        selector={"name": "fedacs", "pool": 1.0}, aggregator="average", model=net(), clients=6, cohort=3
    )
    result = strategy.start(InProcessGrid(an_app(), 6), ArrayRecord(net().state_dict()), num_rounds=4)
    model = net(1)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    scores = result.evaluate_metrics_clientapp
    assert list(scores) == [1, 2, 3, 4]
    accuracy = scores[4]["accuracy"]
    assert isinstance(accuracy, float) and accuracy > 0.6
    assert scores[4]["num-examples"] == sum(len(points(client)[1]) for client in range(6))
    assert all(metrics["clients"] == 3 for metrics in result.train_metrics_clientapp.values())


def test_a_users_own_training_and_settings_for_single_clients():
    seen: list[tuple[int, float, int, str]] = []

    def train(model: nn.Module, data: Any, settings: dict[str, Any]) -> float:
        seen.append((len(data[1]), settings["lr"], settings["epochs"], settings["site"]))
        assert (settings["optimizer"], settings["clip"]) == ("sgd", 0.0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(settings["value"]))
        return 0.5

    def configure(t: int, name: str) -> dict[str, Any]:
        return {"epochs": 7 if name == "1" else 2, "site": f"site {name}", "rate": 0.25}

    strategy = Strategy("fedavg", model=net(), clients=2, cohort=2, configure=configure)
    settings = ConfigRecord({"value": 3.0})
    grid = InProcessGrid(an_app(train=train), 2)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1, train_config=settings)
    assert seen == [(30, 0.25, 2, "site 0"), (31, 0.25, 7, "site 1")]
    assert {float(value.min()) for value in result.arrays.to_torch_state_dict().values()} == {3.0}
    assert result.train_metrics_clientapp[1]["train_loss"] == 0.5


def test_a_training_function_of_ones_own_declines_what_it_cannot_do():
    grid = InProcessGrid(an_app(train=lambda model, data, settings: 0.0), 2)
    strategy = Strategy("fedprox", model=net(), clients=2, cohort=2)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1)
    assert all("training function of your own" in fault["reason"] for fault in strategy.history[0]["faults"])


def test_a_loader_of_batches_is_as_good_as_tensors():
    x, y = points(4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=7)
    with_names = [{"img": x[at : at + 5], "label": y[at : at + 5]} for at in range(0, len(y), 5)]
    for given in (loader, with_names, (x.numpy(), y.numpy()), Samples(x, y)):
        samples = covey.flower.as_samples(given)
        assert torch.equal(samples.x, x)
        assert torch.equal(samples.y, y)


def test_a_run_goes_on_from_its_checkpoint(tmp_path, flower_log):
    scored: list[int] = []

    def score(t: int, arrays: ArrayRecord) -> MetricRecord:
        scored.append(t)
        return MetricRecord({"round": t})

    def started(rounds: int, folder: Path | None):
        strategy = Strategy("power-of-choice", model=net(), clients=5, cohort=2, local={"epochs": 1}, folder=folder)
        grid, begin = InProcessGrid(an_app(), 5), ArrayRecord(net().state_dict())
        scored.clear()
        return strategy, strategy.start(grid, begin, num_rounds=rounds, evaluate_fn=score)

    started(2, tmp_path)
    resumed, result = started(4, tmp_path)
    assert scored == [2, 3, 4] == list(result.evaluate_metrics_serverapp)
    assert [3, 4] == list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp)
    whole, wanted = started(4, None)
    assert [entry["round"] for entry in resumed.history] == [3, 4]
    assert [entry["invited"] for entry in resumed.history] == [entry["invited"] for entry in whole.history[2:]]
    for name, value in wanted.arrays.to_torch_state_dict().items():
        assert torch.equal(result.arrays.to_torch_state_dict()[name], value)
    started(1, tmp_path)
    assert "Nothing is left to do (rounds asked for: 1, done: 4)." in flower_log.text
    assert covey.Run.open(tmp_path).config.rounds == 4


@pytest.mark.parametrize("method", ["local-only", "mocha", "fedper", "ditto"])
def test_a_run_that_needs_what_clients_held_does_not_go_on_without_it(method, tmp_path):
    for rounds in (2, 3):
        strategy = Strategy(method, model=net(), clients=3, cohort=3, folder=tmp_path)
        grid = InProcessGrid(an_app(), 3)
        if rounds == 2:
            strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds)
            assert not any(entry["faults"] for entry in strategy.history)
        else:
            with pytest.raises(Refusal, match=f"cannot be resumed: '{method}' leaves with clients what only they"):
                strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"seed": 3}, r"was begun with seed = 0, and is now given seed = 3\. .* give the strategy another folder\."),
        ({"cohort": 3}, "was begun with cohort = 2, and is now given cohort = 3"),
        ({"local": {"rate": 0.5}}, "was begun with local.rate = 0.1, and is now given local.rate = 0.5"),
        ({"method": "oort"}, r"method = fedavg, .* method = oort, selector\.name = oort, .*more settings differ"),
        ({"model": nn.Sequential(nn.Linear(6, 3))}, "is about a model with other tensors"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_left_as_it_is(given, sentence, tmp_path):
    def started(**changes: Any) -> None:
        wanted = {"method": "fedavg", "model": net(), "clients": 3, "cohort": 2, "folder": tmp_path / "run", **changes}
        strategy = Strategy(wanted.pop("method"), **wanted)
        arrays = ArrayRecord(wanted["model"].state_dict())
        strategy.start(InProcessGrid(an_app(), 3), arrays, num_rounds=2)

    started()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(Refusal, match=sentence):
        started(**given)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_strategys_folder_of_an_earlier_format_keeps_its_settings(tmp_path):
    def started(rounds: int) -> Strategy:
        strategy = Strategy("fedavg", model=net(), clients=3, cohort=2, folder=tmp_path)
        strategy.start(InProcessGrid(an_app(), 3), ArrayRecord(net().state_dict()), num_rounds=rounds)
        return strategy

    assert started(1).config.numbering == "shuffled"
    written = json.loads((tmp_path / "config.json").read_text())
    for later in ("numbering", "guard", "attack"):
        del written["config"][later]
    (tmp_path / "config.json").write_text(json.dumps({**written, "format": 1}))
    for rounds in (2, 3):
        assert started(rounds).config.numbering == "environment"
        assert covey.Run.open(tmp_path).config.numbering == "environment"


def test_a_client_with_another_model_says_so():
    other = client_app(lambda: nn.Sequential(nn.Linear(6, 3)), lambda: points(0))
    strategy = Strategy("fedavg", model=net(), clients=2, cohort=2)
    strategy.start(InProcessGrid([an_app(), other], 2), ArrayRecord(net().state_dict()), num_rounds=1)
    (fault,) = strategy.history[0]["faults"]
    assert "both sides must build the same model" in fault["reason"]


def test_another_version_of_the_format_is_refused():
    grid = InProcessGrid(an_app(), 1)
    (message,) = an_exchange(grid, 1).messages(an_order([0]))
    told = json.loads(str(message.content.config_records[ORDER]["instructions"]))
    message.content[ORDER] = ConfigRecord({"instructions": json.dumps({**told, "version": 99})})
    with pytest.raises(Refusal, match="use the same version of covey"):
        unpack_order(message.content, lambda name: None, ())


def test_messages_survive_bytes():
    grid = InProcessGrid(an_app(), 2)
    (message, _) = an_exchange(grid, 2).messages(an_order([0, 1], probes=(Losses(), SimHash(16))))
    task = unpack_order(travelled(message).content, lambda name: None, ())
    assert task.start is not None
    assert torch.equal(task.start, flat(net()))
    assert task.probes == (Losses(), SimHash(16))
    require(task.client == 0, "the first message is for client 0")


def test_models_with_batch_norm_and_dropout_keep_what_is_not_learned():
    def model() -> nn.Module:
        torch.manual_seed(0)
        layers = (nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        return nn.Sequential(*layers)

    app = client_app(model, lambda context: points(int(context.node_config["partition-id"])), threads=1)
    results = []
    for _ in range(2):
        strategy = Strategy("fedavg", model=model(), clients=3, cohort=3)
        results.append(strategy.start(InProcessGrid(app, 3), ArrayRecord(model().state_dict()), num_rounds=2).arrays)
    one, two = (arrays.to_torch_state_dict() for arrays in results)
    assert list(one) == list(model().state_dict())
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["1.running_mean"], model().state_dict()["1.running_mean"])


def test_batch_norm_trains_on_a_last_batch_of_one_sample():
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    x, y = points(0)
    app = client_app(model, (x[:9], y[:9]), threads=1)
    strategy = Strategy("fedavg", model=model(), clients=2, cohort=2, local={"batch": 4})
    strategy.start(InProcessGrid(app, 2), ArrayRecord(model().state_dict()), num_rounds=1)
    assert strategy.history[0]["faults"] == []


def test_build_model_is_the_same_on_both_sides():
    """Simulated nodes build the model by themselves, from the configuration and the seed."""
    first = build_model("mlp", {"hidden": (16,)}, (1, 8, 8), 10, 3)
    second = build_model("mlp", {"hidden": (16,)}, (1, 8, 8), 10, 3)
    assert torch.equal(flat(first), flat(second))


def test_the_benchmark_of_covey_s_own_part_adds_up():
    parts = flower_overhead.measured(flower_overhead.CASES["fedacs, 62k parameters"], rounds=3)
    assert parts["all"] == pytest.approx(parts["server"] + parts["clients"])
    assert parts["all"] > 0


# The examples


def test_what_the_example_of_a_fleet_writes_is_ignored():
    example = ROOT / "examples/flower-fleet"
    written = tomllib.loads((example / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["output"]
    assert {"sites/", f"{written}/"} <= set((example / ".gitignore").read_text().split())


# Clients that fail, and the run folder of a strategy


def test_a_client_that_fails_is_rested_longer_each_time_and_forgiven_at_once():
    health = Health(strikes=2, longest=4)
    sat_out: list[int] = []
    for number in range(1, 30):
        assert health.resting(number) <= {7}
        if 7 in health.resting(number):
            sat_out.append(number)
        else:
            health.note(number, [3, 7], [7])
    # Two failures, then one round of rest, two, four, and never more.
    assert sat_out == [3, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 23, 24, 25, 26, 28, 29]
    assert health.resting(29) == {7}
    health.note(28, [7], [])
    assert health.resting(29) == set()


def test_a_client_that_answers_surveys_and_fails_in_training_is_rested_all_the_same():
    health = Health(strikes=2)
    for number in (1, 2):
        health.note(number, [0, 1], [], forgiving=False)
        health.note(number, [0, 1], [1])
    assert health.resting(3) == {1}


def test_a_strategy_rests_clients_that_fail_and_invites_them_again():
    grid = InProcessGrid([an_app(), broken("nan"), an_app()], 3)
    strategy = Strategy("fedavg", model=net(), clients=3, cohort=3)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=6)
    invited = [entry["invited"] for entry in strategy.history]
    everyone, others = ["0", "1", "2"], ["0", "2"]
    assert invited == [everyone, everyone, others, everyone, others, others]
    assert strategy.history[2]["resting"] == ["1"]


def test_a_strategys_folder_says_who_failed_and_can_be_reported(tmp_path):
    grid = InProcessGrid([an_app(), broken("raises"), an_app()], 3)
    strategy = Strategy("fedavg", model=net(), clients=3, cohort=3, folder=tmp_path / "run")
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
    rows = read_metrics(tmp_path / "run")
    assert [[fault["client"] for fault in row["dropped"]] for row in rows] == [[1], [1], []]
    assert [row["resting"] for row in rows] == [[], [], [1]]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    page = covey.report([tmp_path / "run"]).read_text()
    assert "the disk is full" in page
    assert read_names(tmp_path / "run") == {0: "0", 1: "1", 2: "2"}
    again = Strategy("fedavg", model=net(), clients=3, cohort=3, folder=tmp_path / "run")
    again.start(grid, ArrayRecord(net().state_dict()), num_rounds=4)
    assert [row["round"] for row in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
    assert [row["dropped"] for row in read_metrics(tmp_path / "run")[:3]] == [row["dropped"] for row in rows]


def test_a_strategy_that_gets_nothing_of_use_says_so(tmp_path):
    strategy = Strategy("fedavg", model=net(), clients=2, cohort=2, folder=tmp_path / "stuck", strikes=100)
    grid = InProcessGrid([broken("nan"), broken("nan")], 2)
    with pytest.warns(UserWarning, match="The run stuck stands still: 10 rounds in a row no reply could be used"):
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=10)


def test_a_strategy_that_goes_on_rests_whom_it_would_have_rested(tmp_path):
    def started(rounds: int, folder: Path) -> list[dict[str, Any]]:
        strategy = Strategy("fedavg", model=net(), clients=3, cohort=3, folder=folder)
        grid = InProcessGrid([an_app(), broken("nan"), an_app()], 3)
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds)
        return read_metrics(folder)

    whole = started(6, tmp_path / "whole")
    for rounds in (2, 4, 6):
        parts = started(rounds, tmp_path / "parts")
    for key in ("clients", "resting", "dropped", "health"):
        assert [row.get(key) for row in parts] == [row.get(key) for row in whole]
    assert [row["resting"] for row in parts] == [[], [], [1], [], [1], [1]]


class Forging(InProcessGrid):
    """A grid on which a node's answers claim to come from another node."""

    def send_and_receive(self, messages, *, timeout=None):
        answers = list(super().send_and_receive(messages, timeout=timeout))
        for answer in answers:
            if "who" not in answer.metadata.message_type:
                answer.metadata.__dict__["_src_node_id"] = 1000
        return answers


def test_an_answer_counts_for_who_was_asked_whatever_it_says_of_itself():
    grid = Forging(an_app(), 3)
    replies = an_exchange(grid, 3).execute(grid, an_order([0, 1, 2]))
    assert replies.clients.tolist() == [0, 1, 2]
    assert replies.samples.tolist() == [30, 31, 32]


@pytest.mark.slow
def test_an_answer_that_is_too_large_is_not_used():
    grid = InProcessGrid(an_app(), 2)
    replies = an_exchange(grid, 2, limit=100).execute(grid, an_order([0, 1]))
    assert len(replies) == 0
    assert [fault.reason for fault in replies.faults] == ["its answer is larger than 100 bytes"] * 2
