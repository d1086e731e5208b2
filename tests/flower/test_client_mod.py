"""Covey's mod in Flower apps, and Flower's mods around Covey's training."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import FedAvg
from torch import nn

from covey import Refusal
from covey.flower import InProcessGrid, Strategy, client_app, mod
from covey.flower.node_kinds import NodeKind
from covey.registries import methods
from tests.flower.flower_apps import (
    CLASSES,
    FEATURES,
    net,
    numpy_app,
    of_node,
    start_arrays,
    torch_app,
    torch_train,
)
from tests.flower.test_plain_clients import CLIENTS, documented, faults, played

pytestmark = pytest.mark.filterwarnings("ignore:selector.clusters")


def with_mod() -> ClientApp:
    return torch_app([mod(net, of_node, threads=1)])


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in ("central", "iid")])
def test_an_app_with_the_mod_is_a_client_app_with_the_same_training_to_the_bit(method):
    """The page says which methods the mod serves; there selections, faults and models are the same."""
    if documented()[method][1] == "no":
        with pytest.raises(Refusal, match=r"These clients train by functions of their own: .* Covey's own client app"):
            played(with_mod(), method, model=net())
        return
    found = []
    for app in (with_mod(), client_app(net, of_node, train=torch_train, threads=1)):
        strategy, result = played(app, method, model=net(), rounds=3)
        assert faults(strategy) == []
        assert strategy.method is not None
        scores = dict(result.evaluate_metrics_clientapp[3])
        found.append(([entry["invited"] for entry in strategy.history], strategy.method.models(), scores["accuracy"]))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == pytest.approx(found[1][2])


def test_with_the_mod_fedacs_selects_by_exact_insights_as_with_client_app():
    """Over rounds enough for selections to differ from those by estimates."""
    options: dict[str, Any] = {"rounds": 12, "cohort": 2, "evaluate": 0.0, "seed": 1}
    invited = {}
    for name, app in (
        ("mod", with_mod()),
        ("client_app", client_app(net, of_node, train=torch_train, threads=1)),
        ("plain", torch_app()),
    ):
        strategy, _ = played(app, "fedacs", model=net(), **options)
        assert strategy.config.selector is not None
        assert strategy.config.selector.options["insight"] == ("update" if name == "plain" else "head")
        invited[name] = [entry["invited"] for entry in strategy.history]
    assert invited["mod"] == invited["client_app"]
    assert invited["mod"] != invited["plain"]


def test_the_mod_leaves_a_server_without_covey_alone():
    """Flower's FedAvg gets the same from an app with the mod and from one without."""
    results = []
    for app in (with_mod(), torch_app()):
        begin = ArrayRecord(net().state_dict())
        found = FedAvg(min_train_nodes=CLIENTS).start(InProcessGrid(app, CLIENTS), begin, num_rounds=2)
        results.append((found.arrays.to_torch_state_dict(), dict(found.evaluate_metrics_clientapp[2])))
    # Flower sums in a random order.
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)
    assert all(torch.allclose(value, results[1][0][name], atol=1e-6) for name, value in results[0][0].items())


class Softmax(nn.Module):
    """The NumPy app's model as a module: its arrays in the app's order."""

    head = "layer"

    def __init__(self) -> None:
        super().__init__()
        self.layer = Turned()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


class Turned(nn.Module):
    """A linear layer whose weight is [features, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(FEATURES, CLASSES))
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


@pytest.mark.parametrize("method", ["fedacs", "oort", "feddrl"])
def test_an_app_of_another_framework_answers_with_a_module_that_computes_the_same(method):
    app = numpy_app(mods=[mod(Softmax, lambda context: of_node(context), threads=1)])
    strategy, result = played(app, method)
    assert faults(strategy) == []
    roster = strategy._running().exchange.roster
    assert {roster.kind_of(client) for client in range(CLIENTS)} == {NodeKind.MOD}
    assert {array.dtype for array in result.arrays.values()} == {"float64"}
    assert strategy.config.selector is not None
    assert strategy.config.selector.options.get("insight") in (None, "head")


def test_an_error_of_the_apps_own_function_is_the_clients_fault():
    app = ClientApp(mods=[mod(net, of_node, threads=1)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            raise OSError("the disk is full")
        return torch_app()(message, context)

    app.evaluate()(lambda message, context: torch_app()(message, context))
    strategy, _ = played(app, "oort", model=net(), cohort=CLIENTS, rounds=1)
    assert faults(strategy) == ["it answered with an error: OSError: the disk is full"]


def test_names_that_apps_with_the_mod_state_are_believed_as_those_of_clients_with_covey():
    app = torch_app([mod(net, of_node, threads=1)])
    nodes = [{"client": name, "partition-id": place} for place, name in enumerate(("mill", "harbour"))]
    strategy = Strategy("fedavg", model=net(), names=["harbour", "mill"], cohort=2)
    strategy.start(InProcessGrid(app, nodes), ArrayRecord(net().state_dict()), num_rounds=1)
    assert strategy.history[0]["answered"] == ["harbour", "mill"]
    assert strategy.method is not None
    assert strategy.method.state_dict()["guard"]["claims"] == {"0": 41, "1": 40}


# Flower's mods


def own(mods: Any = (), **options: Any) -> ClientApp:
    return client_app(net, of_node, threads=1, mods=mods, **options)


def moved(app: ClientApp, method: str = "fedavg", **settings: float) -> tuple[Strategy, float]:
    """The strategy after a round with one client, and how far the model moved."""
    strategy = Strategy(method, model=net(), clients=1, cohort=1, local={"epochs": 3, "rate": 0.5})
    begin = ArrayRecord(net().state_dict())
    strategy.start(InProcessGrid(app, 1), begin, num_rounds=1, train_config=ConfigRecord(dict(settings)))
    assert strategy.method is not None
    before = torch.cat([value.flatten() for value in net().state_dict().values()])
    return strategy, float((strategy.method.models()[0] - before).norm())


@pytest.mark.parametrize("train", [None, torch_train], ids=["Covey's training", "a user's own"])
def test_flowers_clipping_bounds_what_is_sent(train):
    options = {} if train is None else {"train": train}
    _, free = moved(own(**options))
    assert free > 0.2
    for clip in (fixedclipping_mod, adaptiveclipping_mod):
        strategy, far = moved(own([clip], **options), clipping_norm=0.1)
        assert faults(strategy) == []
        assert far == pytest.approx(0.1, rel=1e-4)


def test_a_mod_that_misses_its_setting_is_the_clients_fault():
    strategy, far = moved(own([fixedclipping_mod]))
    (reason,) = faults(strategy)
    assert "requires the key 'clipping_norm'" in reason
    assert far == 0


def test_local_differential_privacy_and_sizes_around_training(caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    np.random.seed(0)
    noisy = LocalDpMod(clipping_norm=0.1, sensitivity=0.1, epsilon=50.0, delta=1e-5)
    strategy, far = moved(own([arrays_size_mod, message_size_mod, noisy]))
    deviation = 0.1 * np.sqrt(2 * np.log(1.25e5)) / 50
    size = sum(value.numel() for value in net().state_dict().values())
    assert faults(strategy) == []
    assert far == pytest.approx(np.hypot(0.1, deviation * np.sqrt(size)), rel=0.3)
    assert f"'elements': {size}" in caplog.text
    assert "Outgoing message size" in caplog.text


def test_mods_that_change_nothing_change_no_bit():
    def quiet(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        return call_next(message, context)

    found = []
    for app in (own(), own([quiet]), own([quiet, arrays_size_mod])):
        strategy, _ = played(app, "fedacs", model=net(), rounds=2, local={"epochs": 1, "momentum": 0.5})
        assert strategy.method is not None and faults(strategy) == []
        found.append(strategy.method.models())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_trainer_that_sends_more_than_a_model_is_declined_where_mods_watch_over_it():
    for method in ("scaffold", "fedper"):
        strategy, _ = moved(own([arrays_size_mod]), method)
        assert "this client's mods see whole models" in faults(strategy)[0]
    strategy, _ = moved(own([arrays_size_mod]), "fedprox")
    assert faults(strategy) == []


def test_covey_s_mod_before_flowers_clips_what_the_app_sends():
    app = torch_app([mod(net, of_node, threads=1)])
    clipped = ClientApp(mods=[mod(net, of_node, threads=1)])
    clipped.train(mods=[fixedclipping_mod])(lambda message, context: app(message, context))
    clipped.evaluate()(lambda message, context: app(message, context))
    strategy = Strategy("oort", model=net(), clients=1, cohort=1)
    begin = ArrayRecord(net().state_dict())
    settings = ConfigRecord({"clipping_norm": 0.05})
    strategy.start(InProcessGrid(clipped, 1), begin, num_rounds=1, train_config=settings)
    assert faults(strategy) == []
    assert strategy.method is not None
    before = torch.cat([value.flatten() for value in net().state_dict().values()])
    assert float((strategy.method.models()[0] - before).norm()) == pytest.approx(0.05, rel=1e-4)


def test_a_mod_that_answers_instead_of_training_is_a_fault():
    def lazy(message: Message, context: Context, call_next: Any) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord(start_arrays())}), reply_to=message)

    strategy, far = moved(own([lazy]))
    assert "A mod of this client answered in the place of its training" in faults(strategy)[0]
    assert far == 0
