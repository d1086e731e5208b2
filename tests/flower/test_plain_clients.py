"""Clients that know nothing of Covey: what is sent to them, what is believed of them, and which methods they serve."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import covey
from covey import Refusal
from covey.core.interfaces import Probe, Selector
from covey.flower import InProcessGrid, PlainClients, Strategy, client_app
from covey.flower.named_arrays import NamedArrays
from covey.flower.node_kinds import NodeKind
from covey.flower.private_api import NO_SUCH_QUERY
from covey.flower.roster import Roster
from covey.registries import aggregators, manymodels, methods, selectors, trainers
from tests.flower.flower_apps import (
    CLASSES,
    FEATURES,
    held,
    loss_of,
    net,
    numpy_app,
    numpy_trained,
    of_node,
    start_arrays,
    torch_app,
)
from tests.flower.test_identities import Authenticated

pytestmark = pytest.mark.filterwarnings("ignore:selector.clusters")

PAGE = (Path(__file__).parents[2] / "docs/flower.md").read_text(encoding="utf-8")
CLIENTS = 6
OPTIONS: dict[str, dict[str, Any]] = {"fedacs": {"selector": {"pool": 0.5}}, "oort": {"selector": {"penalty": 0.0}}}
"""Real seconds, which Oort looks at, are never the same twice."""


def documented() -> dict[str, tuple[str, str]]:
    """Method → what the page says of plain apps and of apps with the mod."""
    rows = re.findall(r"^\| ([\w, -]+) \| (yes|no)[^|]* \| (yes|no) \|$", PAGE, re.MULTILINE)
    return {name.strip(): (plain, mod) for names, plain, mod in rows for name in names.split(",")}


def played(app: ClientApp, method: str | None = "fedavg", rounds: int = 2, **given: Any) -> tuple[Strategy, Any]:
    given = {"clients": CLIENTS, "cohort": 3, **OPTIONS.get(method or "", {}), **given}
    strategy = Strategy(method, **given)
    arrays = ArrayRecord(net().state_dict()) if given.get("model") else start_arrays()
    return strategy, strategy.start(InProcessGrid(app, CLIENTS), arrays, num_rounds=rounds)


def faults(strategy: Strategy) -> list[str]:
    return [fault["reason"] for entry in strategy.history for fault in entry["faults"]]


# Methods


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in ("central", "iid")])
def test_a_method_runs_on_plain_apps_or_says_why_not_as_the_page_says(method):
    plain, with_mod = documented()[method]
    if plain == "yes":
        strategy, result = played(numpy_app(), method)
        assert faults(strategy) == []
        assert all(len(entry["answered"]) >= 3 for entry in strategy.history)
        assert result.evaluate_metrics_clientapp[2]["num-examples"] == sum(40 + client for client in range(CLIENTS))
    else:
        remedy = "Covey's mod adds it" if with_mod == "yes" else "Covey's own client app does"
        sentence = rf"The method '{method}' needs clients that .* know nothing of Covey: 0, 1, 2, 3, 4, 5\. {remedy}"
        with pytest.raises(Refusal, match=sentence):
            played(numpy_app(), method)


def own_names(registry):
    """Return the names of Covey's own parts; other tests register some of theirs."""
    return {name for name in registry.names() if registry[name].part.__module__.startswith("covey.")}


def test_every_part_that_the_page_does_not_name_is_known_to_need_nothing():
    """A part that is added later must say what it needs of clients, or be listed here."""
    named = set(documented())
    assert own_names(selectors) - named == {"uniform", "composed"}
    free = {"average", "ratios", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "bulyan"}
    assert own_names(aggregators) - named == free | {"norm-bound", "dp-fedavg"}
    assert own_names(trainers) - named == {"sgd", "dp-sgd"}
    assert own_names(manymodels) - named == set()


@pytest.mark.parametrize(
    "given",
    [
        *({"aggregator": name} for name in ("median", "trimmed-mean", "geometric-median", "multi-krum", "norm-bound")),
        {"aggregator": {"name": "norm-bound", "around": "loss-softmax"}},
        {"aggregator": {"name": "dp-fedavg", "noise": 0.1, "clip": 1.0}},
        {"aggregator": {"name": "average", "fairness": True}},
        {"selector": {"name": "fedacs", "pool": 1.0}, "aggregator": "loss-softmax"},
        {"server": {"optimizer": "adam"}, "averaging": {"ema": 0.5}},
    ],
    ids=str,
)
def test_parts_that_need_updates_counts_and_losses_go_together(given):
    strategy, result = played(numpy_app(), None, **given)
    assert faults(strategy) == []
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"trainer": "dp-sgd"}, "needs clients that train as dp-sgd does"),
        ({"selector": {"name": "fedacs", "insight": "full", "pool": 1.0}}, "that measure the insight full"),
        ({"aggregator": {"name": "norm-bound", "around": "cmfl"}}, "keep a model that disagrees"),
        ({"local": {"proximal": 0.1}}, "are pulled towards the received model"),
    ],
)
def test_options_that_plain_apps_do_not_serve_are_refused(given, sentence):
    with pytest.raises(Refusal, match=sentence):
        played(numpy_app(), None, **given)


@dataclass(frozen=True)
class Secret(Probe):
    """A measurement of a user's own."""

    name = "secret"

    def measure(self, learner, received, trained, samples, key):
        return {"value": torch.tensor(1.0)}


class Curious(Selector):
    """A selector of a user's own that asks for it."""

    def select(self, t, candidates):
        return candidates[: self.setting.cohort]

    def probes(self, t):
        return (Secret(),)


def test_a_part_of_a_users_own_that_asks_for_more_is_refused_before_anything_is_sent():
    seen: list[Any] = []
    with pytest.raises(Refusal, match="needs clients that measure secret, and apps without Covey do not"):
        played(numpy_app(seen), None, selector={"name": "tests.flower.test_plain_clients:Curious"})
    assert seen == []


# What is sent, and what it gives


def test_fedavg_is_flowers_own_fedavg():
    """The same arrays as Flower's strategy on the same apps, to rounding."""
    _, result = played(numpy_app(), cohort=CLIENTS, rounds=3)
    grid = InProcessGrid(numpy_app(), CLIENTS)
    theirs = FedAvg(min_train_nodes=CLIENTS).start(grid, ArrayRecord(start_arrays()), num_rounds=3)
    assert list(result.arrays) == list(theirs.arrays)
    for one, other in zip(result.arrays.values(), theirs.arrays.values(), strict=True):
        assert one.dtype == other.dtype == "float64"
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12)
    for t in (1, 2, 3):
        said, expected = result.evaluate_metrics_clientapp[t], theirs.evaluate_metrics_clientapp[t]
        assert {name: said[name] for name in expected} == pytest.approx(dict(expected))
        assert said["loss"] == said["eval_loss"]
        trained = result.train_metrics_clientapp[t]["train_loss"]
        assert trained == pytest.approx(theirs.train_metrics_clientapp[t]["train_loss"])


def test_a_client_is_sent_the_settings_that_the_user_gave_and_no_others():
    seen: list[tuple[str, int, dict[str, Any]]] = []
    strategy = Strategy(
        "fedavg",
        clients=2,
        cohort=2,
        local={"rate": 0.5, "decay": 0.5, "epochs": 2},
        configure=lambda t, name: {"epochs": 7} if name == "1" else {},
    )
    strategy.start(
        InProcessGrid(numpy_app(seen), 2),
        start_arrays(),
        num_rounds=2,
        train_config=ConfigRecord({"site": "here"}),
        evaluate_config=ConfigRecord({"split": "test"}),
    )
    trained = {(config["server-round"], client): config for kind, client, config in seen if kind == "train"}
    assert trained[1, 0] == {"server-round": 1, "lr": 0.5, "epochs": 2, "site": "here"}
    assert trained[1, 1]["epochs"] == 7
    assert trained[2, 0]["lr"] == 0.125
    evaluated = [config for kind, _, config in seen if kind == "evaluate"]
    assert evaluated == [{"server-round": t, "split": "test"} for t in (1, 1, 2, 2)]
    seen.clear()
    played(numpy_app(seen), rounds=1)
    assert [config for kind, _, config in seen if kind == "train"] == [{"server-round": 1}] * 3


def test_clients_are_asked_no_more_than_the_method_needs():
    """Losses before and after training for FedDRL, before it for power-of-choice; the mod only where it matters."""
    counts = {}
    for method in ("fedavg", "power-of-choice", "feddrl"):
        seen: list[tuple[str, int, dict[str, Any]]] = []
        played(numpy_app(seen), method, rounds=1, evaluate=0.0)
        counts[method] = sum(kind == "evaluate" for kind, _, _ in seen)
    assert counts == {"fedavg": 0, "power-of-choice": CLIENTS + 6, "feddrl": CLIENTS + 2 * 3}
    seen = []
    played(numpy_app(seen), "feddrl", rounds=1, evaluate=0.0, plain=True)
    assert sum(kind == "evaluate" for kind, _, _ in seen) == 2 * 3


def test_losses_are_those_of_the_models_received_and_trained():
    strategy, _ = played(numpy_app(), "loss-softmax", rounds=1, cohort=CLIENTS, aggregator={"sharpness": 3.0})
    losses = np.array([loss_of(start_arrays(), client) for client in range(CLIENTS)])
    powers = np.exp(3.0 * losses / losses.sum())
    factors = strategy.history[0]["figures"]["impact_factors"]
    assert [factors[str(client)] for client in range(CLIENTS)] == pytest.approx(list(powers / powers.sum()))
    trained = [numpy_trained(start_arrays(), client) for client in range(CLIENTS)]
    assert all(loss_of(model, client) < losses[client] for client, model in enumerate(trained))


def test_power_of_choice_invites_those_with_the_highest_loss():
    strategy, _ = played(numpy_app(), "power-of-choice", rounds=2, selector={"candidates": CLIENTS})
    first, _ = played(numpy_app(), "power-of-choice", rounds=1, selector={"candidates": CLIENTS})
    model = [array.numpy() for array in first._model_arrays().values()]
    losses = [loss_of(model, client) for client in range(CLIENTS)]
    highest = np.sort(np.argsort(losses)[-3:])
    assert strategy.history[1]["invited"] == [str(client) for client in highest]


def test_fedacs_prefers_clients_with_little_skew_by_their_updates():
    """Of twelve clients, the odd ones hold mostly one class."""
    strategy = Strategy("fedacs", clients=12, cohort=4, selector={"pool": 0.5}, evaluate=0.0)
    strategy.start(InProcessGrid(numpy_app(), 12), start_arrays(), num_rounds=30)
    invited = [int(name) % 2 for entry in strategy.history[15:] for name in entry["invited"]]
    assert np.mean(invited) < 0.35
    assert strategy.config.selector is not None
    assert strategy.config.selector.options["insight"] == "update"


def test_cfl_tells_two_kinds_of_clients_apart_by_their_updates():
    """Clients 3 to 5 train the other way; the cluster of all is split once."""

    def turned(client: int, content: RecordDict) -> RecordDict:
        if client >= 3 and "arrays" in content:
            sent = [(-1.0) * array for array in content.array_records["arrays"].to_numpy_ndarrays()]
            content["arrays"] = ArrayRecord(sent)
        return content

    many = {"name": "cfl", "epsilon1": 10.0, "epsilon2": 0.0, "warm_up": 1}
    strategy, _ = played(numpy_app(change=turned), "cfl", rounds=2, many=many)
    assert strategy.method is not None
    groups = strategy.method.model_of_client
    assert len(set(groups[:3])) == len(set(groups[3:])) == 1
    assert groups[0] != groups[3]
    assert set(strategy.models()) == {str(client) for client in range(CLIENTS)}


def test_arrays_keep_their_names_types_and_what_is_not_trained():
    def with_norm() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))

    begin = with_norm().state_dict()
    strategy = Strategy("fedavg", clients=3, cohort=3, averaging={"swa": 2})
    result = strategy.start(InProcessGrid(torch_app(model=with_norm), 3), ArrayRecord(begin), num_rounds=2)
    arrays = result.arrays.to_torch_state_dict()
    assert {name: value.dtype for name, value in arrays.items()} == {n: value.dtype for n, value in begin.items()}
    assert int(arrays["1.num_batches_tracked"]) == 0
    assert not torch.equal(arrays["1.running_var"], begin["1.running_var"])
    assert strategy.layout is not None
    assert [slot.name for slot in strategy.layout.head] == ["3.weight", "3.bias"]
    assert [slot.name for slot in strategy.layout.buffers] == ["1.running_mean", "1.running_var"]
    with_norm().load_state_dict(arrays)


@pytest.mark.parametrize(
    ("arrays", "head", "classes"),
    [
        ([np.zeros((10, 64)), np.zeros(10)], ["0", "1"], 10),
        ([np.zeros((6, 5)), np.zeros(5), np.zeros((5, 3)), np.zeros(3)], ["2", "3"], 3),
        ([np.zeros((4, 3)), np.zeros((2, 3))], ["1"], 2),
        ([np.zeros(7), np.zeros(1)], ["0", "1"], 1),
    ],
)
def test_the_last_layer_is_found_among_arrays(arrays, head, classes):
    found = NamedArrays.of(ArrayRecord(arrays), None)
    assert [slot.name for slot in found.layout.head] == head
    assert found.classes == classes
    state = torch.randn(found.layout.size)
    assert torch.equal(found.read(found.record(state)), state.to(found.dtype))


def test_arrays_that_are_not_trained_alone_or_an_unknown_head_are_refused():
    with pytest.raises(Refusal, match="no numbers that are trained"):
        NamedArrays.of(ArrayRecord([np.zeros(3, dtype=np.int64)]), None)
    with pytest.raises(Refusal, match="No initial array is called body"):
        NamedArrays.of(ArrayRecord(start_arrays()), None, "body")


def test_a_run_of_plain_clients_goes_on_from_its_folder(tmp_path):
    options: dict[str, Any] = {"selector": {"pool": 0.5}, "folder": tmp_path / "run"}
    whole, wanted = played(numpy_app(), "fedacs", rounds=4)
    for rounds in (2, 4):
        parts, result = played(numpy_app(), "fedacs", rounds=rounds, **options)
    assert [entry["invited"] for entry in parts.history] == [entry["invited"] for entry in whole.history[2:]]
    for one, other in zip(result.arrays.values(), wanted.arrays.values(), strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    run = covey.Run.open(tmp_path / "run")
    assert run.config.selector is not None
    assert run.config.selector.options["insight"] == "update"
    assert all(0 <= row["accuracy"] <= 1 for row in run.metrics)


# What is not believed


def changed(client: int, content: RecordDict, kind: str) -> RecordDict:
    """A reply of client 1 that is bad in one way."""
    if client != 1 or "arrays" not in content:
        return content
    arrays, metrics = content.array_records["arrays"].to_numpy_ndarrays(), dict(content.metric_records["metrics"])
    if kind == "nan":
        arrays[0][0, 0] = np.nan
    if kind == "shape":
        arrays[0] = arrays[0].T.copy()
    if kind == "fewer":
        arrays = arrays[:1]
    if kind == "integers":
        arrays[1] = arrays[1].astype(np.int64)
    if kind == "count":
        del metrics["num-examples"]
    if kind == "fraction":
        metrics["num-examples"] = 0.5
    if kind == "none":
        metrics["num-examples"] = 0
    if kind == "loss":
        metrics["train_loss"] = float("nan")
    if kind == "large":
        arrays = [array * 1e30 for array in arrays]
    found = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)})
    if kind == "two":
        found["more"] = ArrayRecord(arrays)
    if kind == "no metrics":
        del found["metrics"]
    if kind == "garbage":
        found.array_records["arrays"]["0"].data = b"garbage"
    return found


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "its model holds NaN"),
        ("shape", r"its 0 has the shape \(3, 6\) and not \(6, 3\)"),
        ("fewer", "it lacks 1"),
        ("integers", "its 1 is of type torch.int64"),
        ("count", r"its metrics lack num-examples \(they are train_loss\)"),
        ("fraction", "its num-examples is 0.5, and counts are whole numbers"),
        ("none", "it reported 0 samples"),
        ("loss", "its loss became NaN"),
        ("large", "times as large as updates are here"),
        ("two", "it has 2 array records"),
        ("no metrics", "it has 0 metric records"),
        ("garbage", "its answer cannot be read: "),
    ],
)
def test_a_bad_reply_costs_one_reply_and_not_the_run(kind, reason):
    app = numpy_app(change=lambda client, content: changed(client, content, kind))
    strategy, result = played(app, cohort=CLIENTS, rounds=1)
    assert strategy.method is not None
    found = faults(strategy) or [f"{kind} was taken"]
    if kind == "large":
        # The guard's faults are in records alone.
        sound, _ = played(numpy_app(), cohort=CLIENTS, rounds=1)
        assert float(strategy.method.models().abs().max()) < 10 * float(sound.method.models().abs().max())  # type: ignore[union-attr]
    else:
        assert len(found) == 1 and re.search(reason, found[0]), found
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_what_a_client_says_is_made_printable():
    def shouting(client: int, content: RecordDict) -> RecordDict:
        content.metric_records["metrics"]["\x1b[31mred\n"] = 1.0
        if client == 1 and "arrays" in content:
            del content.metric_records["metrics"]["num-examples"]
        return content

    strategy, result = played(numpy_app(change=shouting), cohort=CLIENTS, rounds=1)
    assert faults(strategy) == ["its answer cannot be read: its metrics lack num-examples (they are train_loss, red )"]
    assert result.evaluate_metrics_clientapp[1]["red "] == pytest.approx(1.0)
    assert not any("\x1b" in name for name in result.train_metrics_clientapp[1])


def test_a_report_that_makes_no_sense_is_left_out():
    def lying(client: int, content: RecordDict) -> RecordDict:
        if client == 1 and "arrays" not in content:
            content.metric_records["metrics"]["eval_loss"] = float("inf")
        if client == 2 and "arrays" not in content:
            content.metric_records["metrics"]["num-examples"] = -5
        return content

    strategy, result = played(numpy_app(change=lying), "loss-softmax", cohort=CLIENTS, rounds=1, plain=True)
    assert result.evaluate_metrics_clientapp[1]["clients"] == CLIENTS - 2
    factors = strategy.history[0]["figures"]["impact_factors"]
    assert [client for client, factor in factors.items() if factor == 0] == ["1", "2"]


def test_a_loss_that_is_not_told_is_asked_for_by_name():
    def renamed(client: int, content: RecordDict) -> RecordDict:
        metrics = {name.replace("eval_loss", "nll"): value for name, value in content.metric_records["metrics"].items()}
        content["metrics"] = MetricRecord(metrics)
        return content

    sentence = (
        r"needs the losses of clients, and client 0 reports none .* its metrics are nll, eval_acc\. .*PlainClients"
    )
    with pytest.raises(Refusal, match=sentence):
        played(numpy_app(change=renamed), "feddrl")
    strategy, _ = played(numpy_app(change=renamed), "feddrl", messages=PlainClients(loss=("nll",)))
    assert faults(strategy) == []
    strategy, _ = played(numpy_app(train_loss=False), "oort-simple", rounds=1)
    assert all("the method needs its training loss, and its metrics are none" in reason for reason in faults(strategy))
    strategy, _ = played(numpy_app(train_loss=False), "fedavg", rounds=1)
    assert faults(strategy) == []
    with pytest.raises(Refusal, match="lists names of metrics"):
        PlainClients(loss="nll")  # type: ignore[arg-type]


def test_an_app_that_cannot_evaluate_serves_methods_that_need_no_loss():
    app, whole = ClientApp(), numpy_app()
    app.train()(lambda message, context: whole(message, context))
    strategy, _ = played(app)
    assert faults(strategy) == []
    assert all(len(entry["unscored"]) == CLIENTS for entry in strategy.history)
    with pytest.raises(Refusal, match=r"client 0 cannot evaluate a model: .*No evaluate function"):
        played(app, "feddrl")


# Who is who


def test_flower_says_that_an_app_has_no_such_query_in_the_words_that_are_looked_for():
    grid = InProcessGrid(numpy_app(), 1)
    asked = Message(RecordDict(), dst_node_id=1000, message_type="query.who")
    (answer,) = grid.send_and_receive([asked])
    assert NO_SUCH_QUERY in (answer.error.reason or "")


def test_an_app_that_fails_to_load_is_not_taken_for_a_plain_one():
    def failing(message: Message, context: Context) -> Message:
        raise ImportError("no module named task")

    app = ClientApp()
    app.query("who")(failing)
    with pytest.raises(Refusal, match=r"0 have said who they are .* answered with an error: ImportError: no module"):
        played(app, patience=0.1)


def plain_grid(*nodes: tuple[str, bytes, str]) -> Authenticated:
    """Nodes with a registered name, a key and a time of registration; node i holds partition i."""
    grid = Authenticated(numpy_app(), [{"partition-id": place} for place in range(len(nodes))])
    grid.known = list(nodes)
    return grid


def counted(grid: InProcessGrid, **given: Any) -> dict[str, int]:
    """Client's name → its number of samples, which tells which node it is."""
    strategy = Strategy("fedavg", cohort=1.0, evaluate=0.0, **given)
    strategy.start(grid, start_arrays(), num_rounds=1)
    assert strategy.method is not None
    claims = strategy.method.state_dict()["guard"]["claims"]
    names = strategy._running().exchange.roster.names
    return {names[int(client)]: count - 40 for client, count in claims.items()}


def test_plain_clients_are_known_by_key_by_registered_name_or_by_their_order():
    nodes = [("mill", b"m", "2"), ("quarry", b"q", "3"), ("harbour", b"h", "1")]
    assert counted(plain_grid(*nodes), clients=3) == {"0": 2, "1": 0, "2": 1}
    assert counted(plain_grid(*nodes), names=["harbour", "mill", "quarry"]) == {"harbour": 2, "mill": 0, "quarry": 1}
    with pytest.raises(Refusal, match=r"Not there .*: site .*Apps without Covey state no name: give keys="):
        counted(plain_grid(*nodes), names=["mill", "site"], patience=0.1)


class Slow(Authenticated):
    """A grid on which no node answers the first two questions."""

    questions = 0

    def send_and_receive(self, messages, *, timeout=None):
        self.questions += 1
        return super().send_and_receive(messages if self.questions > 2 else [], timeout=timeout)


def test_a_key_says_who_a_client_is_and_it_is_asked_what_its_app_knows():
    """Before the first round, however slow its node."""
    grid = Slow(numpy_app(), [{"partition-id": place} for place in range(2)])
    grid.known = [("", b"s", "1"), ("", b"n", "2")]
    roster = Roster(2, ["north", "south"], patience=20.0, keys={b"n": "north", b"s": "south"}, plain=None)
    roster.wait(grid, 1.0)
    assert [roster.node_of(client) for client in (0, 1)] == [1001, 1000]
    assert [roster.kind_of(client) for client in (0, 1)] == [NodeKind.PLAIN] * 2
    assert roster.identities() == {"north": "pinned key", "south": "pinned key"}


def test_identities_say_that_a_client_is_a_number(caplog):
    strategy = Strategy("fedavg", clients=2, cohort=2)
    strategy.start(plain_grid(("", b"a", "1"), ("", b"b", "2")), start_arrays(), num_rounds=1)
    roster = strategy._running().exchange.roster
    assert roster.identities() == {"0": "numbered", "1": "numbered"}
    assert [roster.kind_of(client) for client in (0, 1)] == [NodeKind.PLAIN] * 2


def test_a_plain_node_that_is_started_again_takes_the_place_that_is_free_and_gives_it_back(caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    grid = InProcessGrid(numpy_app(), 3)
    strategy = Strategy("fedavg", clients=3, cohort=3)
    strategy.start(grid, start_arrays(), num_rounds=1)
    roster = strategy._running().exchange.roster
    gone, app = grid.contexts.pop(1001), grid.apps[1001]
    roster.refresh(grid, 1.0)
    assert roster.available().tolist() == [0, 2]
    grid.contexts[5000], grid.apps[5000] = gone, app
    roster.refresh(grid, 1.0)
    assert roster.node_of(1) == 5000
    assert "takes the place of client 1" in caplog.text
    grid.contexts[1001] = gone
    roster.refresh(grid, 1.0)
    assert roster.node_of(1) == 1001


# With clients that have Covey


def mixed(method: str, rounds: int = 2, **given: Any) -> tuple[Strategy, Any]:
    """Clients 0 to 2 have Covey's app, the others none of it."""
    with_covey = client_app(net, of_node, threads=1)
    grid = InProcessGrid([with_covey] * 3 + [torch_app()] * 3, CLIENTS)
    given = {"model": net(), "clients": CLIENTS, "cohort": CLIENTS, "local": {"epochs": 1}, **given}
    strategy = Strategy(method, **given)
    return strategy, strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds)


@pytest.mark.parametrize("method", ["fedavg", "fedadam", "cfl", "feddrl", "power-of-choice", "fedacs", "oort-simple"])
def test_clients_with_covey_and_without_train_one_model(method):
    options: dict[str, Any] = {"selector": {"pool": 1.0}} if method == "fedacs" else {}
    strategy, result = mixed(method, **options)
    assert faults(strategy) == []
    assert [len(entry["answered"]) for entry in strategy.history] == [CLIENTS] * 2
    scores = result.evaluate_metrics_clientapp[2]
    assert scores["clients"] == CLIENTS
    assert 0 <= scores["accuracy"] <= 1


def test_in_a_mixed_federation_everyones_losses_are_measured_in_one_way():
    strategy, _ = mixed("loss-softmax", rounds=1)
    model = net()
    losses = []
    with torch.no_grad():
        for client in range(CLIENTS):
            x, y = held(client)
            outputs = model(torch.tensor(x, dtype=torch.float32))
            losses.append(nn.functional.cross_entropy(outputs, torch.tensor(y)).item())
    powers = np.exp(8.0 * np.array(losses) / np.sum(losses))
    factors = strategy.history[0]["figures"]["impact_factors"]
    assert [factors[str(client)] for client in range(CLIENTS)] == pytest.approx(list(powers / powers.sum()), rel=1e-5)


def test_a_method_that_plain_clients_do_not_serve_names_them():
    with pytest.raises(Refusal, match=r"needs clients that hash their samples\. .* know nothing of Covey: 3, 4, 5\."):
        mixed("nccb")


def test_with_covey_the_strategy_needs_the_model_for_the_order_of_its_arrays():
    with pytest.raises(Refusal, match=r"Some clients have Covey: give the strategy the model that they train"):
        mixed("fedavg", model=None)
