"""What a server that does not keep to the rules learns from a client with noise."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from torch import Tensor, nn

from covey import Refusal
from covey.client.learner import Learner
from covey.core.messages import UNTOLD
from covey.core.records import read_metrics
from covey.data.dataset import Dataset, Samples
from covey.fleet.site import RUN, prepared
from covey.fleet.site import protection as site_protection
from covey.flower import Protection, Strategy, client_app
from covey.flower.node_memory import Memory
from covey.flower.node_work import Client
from covey.flower.wire import EVALUATE, REPLY, Missing, digest, fields_of, pack_answer, unpack_answer
from covey.probe.class_query import ClassQuery, Privacy, clipped
from covey.probe.insight import Insight
from covey.probe.losses import Losses, Utility
from covey.probe.simhash import SimHash
from covey.randomness import system_normal
from tests.flower.test_protection import CLASSES, CLIENTS, FEATURES, Watched, a_learner, a_task, net, points

NOISY = Protection(update="1,1e-5", update_clip=1.0, budget="unlimited")
INSIGHT = Protection(insight="1,1e-5", budget="unlimited")


def overflowing() -> tuple[Learner, Samples, Samples, Tensor]:
    """Return a learner, samples without and with one that overflows, and the model at which it does."""
    learner, samples = a_learner()
    x = samples.x.clone()
    x[7] = 1e38
    return learner, samples, Samples(x, samples.y), 1e3 * learner.layout.read(learner.module)


def state_of(answer: RecordDict) -> Tensor:
    return torch.from_numpy(answer.array_records[f"{REPLY}.arrays"]["state"].numpy().copy())


def asked(client: Client, **changes: Any) -> RecordDict:
    return client.answer(a_task(client.learner, **changes), Memory(RecordDict(), "a"))


# Nothing that is not finite


def test_a_sample_that_overflows_leaves_no_trace_in_what_a_protected_client_sends():
    learner, without, with_, start = overflowing()
    assert not torch.isfinite(state_of(asked(Client(learner, with_), start=start))).all()
    for samples in (without, with_):
        client = Client(learner, samples, protection=NOISY)
        for _ in range(200):
            answer = asked(client, start=start)
            assert torch.isfinite(state_of(answer)).all()
            assert dict(answer.metric_records[REPLY]) == {"samples": 1}
            assert fields_of(answer) == {"samples", "state"}


def test_loss_and_number_of_samples_are_told_where_the_operator_says_so():
    learner, samples = a_learner()
    open_ = replace(NOISY, unprotected=("loss", "samples"))
    told = asked(Client(learner, samples, protection=open_)).metric_records[REPLY]
    assert told["samples"] == len(samples)
    assert math.isfinite(float(str(told["loss"])))
    learner, _, with_, start = overflowing()
    assert "loss" not in asked(Client(learner, with_, protection=open_), start=start).metric_records[REPLY]


@pytest.mark.parametrize(
    "update",
    [
        [math.nan, 1.0],
        [math.inf, 1.0],
        [-math.inf, math.inf],
        [1e300, -1e300],
        [1.7e308, 1.7e308],
        [0.0, 0.0],
        [3.0, 4.0],
        [1e-310, 0.0],
    ],
)
def test_a_clipped_update_is_finite_and_within_its_bound(update):
    result = clipped(torch.tensor(update, dtype=torch.float64), 2.0)
    assert torch.isfinite(result).all()
    assert float(result.norm()) <= 2.0 * (1 + 1e-9)
    if not np.isfinite(update).all():
        assert not result.any()
    elif max(update) > 2:
        assert float(result.norm()) == pytest.approx(2.0)


def test_a_sum_beyond_the_largest_number_is_cut_to_it():
    received = torch.full((4,), 3.4e38)
    assert torch.isfinite(Protection(update_clip=1e38).of_update(received, torch.full((4,), 3.4e38) * 1.0, 0)).all()
    huge = Protection(update="0.01,1e-9", update_clip=1e38, budget="unlimited")
    assert torch.isfinite(huge.of_update(received, received, 0)).all()


def test_a_model_that_is_not_finite_is_declined_whatever_the_samples_are():
    learner, samples = a_learner()
    start = torch.full_like(learner.layout.read(learner.module), math.nan)
    with pytest.raises(Refusal, match="The server's model holds NaN"):
        asked(Client(learner, samples, protection=NOISY), start=start)


def test_training_that_fails_on_one_sample_gives_an_update_of_zero_and_no_error():
    learner, samples, with_, _ = overflowing()

    def fit(task: Any, received: Tensor, part: Samples) -> tuple[Tensor, float]:
        if float(part.x.max()) > 1e30:
            raise ValueError("a sample is out of range")
        return received + 1, 0.5

    for part in (samples, with_):
        answer = asked(Client(learner, part, fit, replace(NOISY, update="1e6,1e-5")))
        assert fields_of(answer) == {"samples", "state"}
    moved = state_of(answer) - learner.layout.read(learner.module)
    assert float(moved.norm()) < 0.1


class Picky(nn.Module):
    """A model that raises an error for one kind of sample, as an embedding does for a token that it lacks."""

    head = "head"

    def __init__(self) -> None:
        super().__init__()
        self.head_ = nn.Linear(FEATURES, CLASSES)
        self.head = "head_"

    def forward(self, x: Tensor) -> Tensor:
        if float(x.max()) > 1e30:
            raise IndexError("index out of range in self")
        out: Tensor = self.head_(x)
        return out


@pytest.mark.parametrize("probe", [Insight(0.1), ClassQuery("bias")], ids=lambda probe: probe.name)
def test_a_sample_that_a_model_cannot_process_is_left_out_of_a_noisy_measurement(probe):
    _, samples, with_, _ = overflowing()
    x, y = samples.x, samples.y
    learner = Learner(Picky(), Dataset("points", x, y, x[:1], y[:1], ("a", "b", "c")))
    with pytest.raises(IndexError):
        asked(Client(learner, with_), train=False, probes=(probe,))
    near = replace(INSIGHT, insight="1e6,1e-5", insight_clip=100.0)
    one, two = (
        asked(Client(learner, part, protection=near), train=False, probes=(probe,)).array_records[f"{REPLY}.arrays"]
        for part in (samples, with_)
    )
    for name in one:
        assert not np.array_equal(one[name].numpy(), two[name].numpy())
        np.testing.assert_allclose(one[name].numpy(), two[name].numpy(), atol=10 / len(samples))


# Nothing without noise


def over_a_grid(protection: Protection, tmp_path: Path, method: str = "fedavg", **options: Any) -> Strategy:
    app = client_app(
        net, lambda context: points(int(context.node_config["partition-id"])), threads=1, protection=protection
    )
    grid = Watched(app, CLIENTS)
    strategy = Strategy(
        method, model=net(), clients=CLIENTS, cohort=CLIENTS, local={"epochs": 1}, folder=tmp_path / "run", **options
    )
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=2)
    for answer in grid.seen:
        if answer.metadata.message_type == EVALUATE:
            assert answer.has_error() != protection.tells("evaluation")
    return strategy


def test_a_protected_client_declines_to_evaluate_and_the_server_records_why(tmp_path):
    """At models of its choice, a server would read class shares from accuracies."""
    strategy = over_a_grid(NOISY, tmp_path)
    for entry in strategy.history:
        assert not entry["faults"]
        assert len(entry["unscored"]) == CLIENTS
        assert "sends nothing without noise, and has none for this: evaluation" in entry["unscored"][0]["reason"]
    rows = read_metrics(tmp_path / "run")
    assert [len(row["unscored"]) for row in rows] == [CLIENTS, CLIENTS]
    assert all("accuracy" not in row for row in rows)


def test_a_loss_that_is_not_told_is_left_out_of_the_mean(tmp_path):
    over_a_grid(NOISY, tmp_path / "none")
    assert [row["train_loss"] for row in read_metrics(tmp_path / "none" / "run")] == [None, None]

    def of_one(context: Any) -> Protection:
        return NOISY if context.node_config["partition-id"] else Protection()

    def train(model: nn.Module, data: Any, settings: dict[str, Any]) -> float:
        return 0.5

    app = client_app(
        net,
        lambda context: points(int(context.node_config["partition-id"])),
        train=train,
        threads=1,
        protection=of_one,
    )
    strategy = Strategy("fedavg", model=net(), clients=CLIENTS, cohort=CLIENTS, folder=tmp_path / "one")
    result = strategy.start(Watched(app, CLIENTS), ArrayRecord(net().state_dict()), num_rounds=1)
    assert read_metrics(tmp_path / "one")[0]["train_loss"] == 0.5
    assert result.train_metrics_clientapp[1]["train_loss"] == 0.5


def test_a_client_cannot_state_the_mark_of_a_loss_that_is_not_told():
    content = pack_answer(3, UNTOLD, {})
    assert math.isnan(unpack_answer(content, {}).loss)
    assert unpack_answer(pack_answer(3, None, {}), {}).loss == UNTOLD


def test_a_protected_client_evaluates_where_its_operator_says_so(tmp_path):
    strategy = over_a_grid(replace(NOISY, unprotected=("evaluation",)), tmp_path)
    assert not any("unscored" in entry for entry in strategy.history)
    assert all("accuracy" in row for row in read_metrics(tmp_path / "run"))


def test_a_method_that_asks_for_losses_gets_none_and_the_record_says_why(tmp_path):
    strategy = over_a_grid(NOISY, tmp_path, "loss-softmax")
    first = strategy.history[0]
    assert not first["answered"]
    assert "none for this: losses" in first["faults"][0]["reason"]


@pytest.mark.parametrize(
    "probe",
    [Losses(), Utility(), SimHash(8), ClassQuery("bias"), ClassQuery("bias", Privacy(1e6, 0.5)), Insight(0.1)],
    ids=lambda probe: probe.name,
)
def test_a_measurement_without_the_clients_own_noise_is_declined_unless_named(probe):
    learner, samples = a_learner()
    for protection in (NOISY, INSIGHT):
        covered = protection is INSIGHT and not isinstance(probe, (Losses, Utility, SimHash))
        client = Client(learner, samples, protection=protection)
        if covered:
            assert asked(client, train=False, probes=(probe,)).array_records
            continue
        with pytest.raises(Refusal, match=f"none for this: {probe.name}"):
            asked(client, train=False, probes=(probe,))
        open_ = replace(client, protection=replace(protection, unprotected=(probe.name,)))
        assert asked(open_, train=False, probes=(probe,)).array_records


def test_noise_on_insights_alone_covers_no_model():
    learner, samples = a_learner()
    with pytest.raises(Refusal, match="none for this: update"):
        asked(Client(learner, samples, protection=INSIGHT))
    open_ = replace(INSIGHT, unprotected=("update",))
    assert fields_of(asked(Client(learner, samples, protection=open_))) == {"samples", "state"}


def test_no_order_can_ask_whether_a_client_holds_a_certain_model():
    """Training is deterministic: a server that knows all samples but one would compute the candidates."""
    learner, samples = a_learner()
    memory = Memory(RecordDict(), "a")
    client = Client(learner, samples, protection=NOISY)
    client.answer(a_task(learner, returns=False, holds=True), memory)
    own = memory.own()
    assert own is not None
    assert memory.find(digest(own)) is None
    client.answer(a_task(learner, start=None, own=True, round=2, returns=False, holds=True), memory)
    latest = memory.own()
    assert latest is not None
    assert not torch.equal(own, latest)
    assert memory.find(digest(own)) is None
    assert memory.find(digest(latest)) is None


def test_nothing_is_measured_on_a_model_that_one_sample_may_have_changed():
    """Noise on a measurement is made for a model that is the same whatever the samples are."""
    learner, samples = a_learner()
    memory = Memory(RecordDict(), "a")
    client = Client(learner, samples, protection=INSIGHT)
    client.answer(a_task(learner, returns=False, holds=True), memory)
    task = a_task(learner, start=None, own=True, round=2, train=False, returns=False, probes=(Insight(0.1),))
    with pytest.raises(Refusal, match="on models that the server sends alone"):
        client.answer(task, memory)


@pytest.mark.parametrize("holdout", [-5, 1])
def test_a_senseless_share_of_samples_is_declined_whatever_their_number(holdout):
    learner, samples = a_learner()
    with pytest.raises(Refusal, match="holdout is 0, or at least 2"):
        asked(Client(learner, samples, protection=NOISY), holdout=holdout)


def test_a_client_whose_own_training_overflows_holds_a_model_all_the_same():
    learner, _, with_, start = overflowing()
    memory = Memory(RecordDict(), "a")
    client = Client(learner, with_, protection=NOISY)
    client.answer(a_task(learner, start=start, returns=False, holds=True), memory)
    own = memory.own()
    assert own is not None
    assert torch.equal(own, start)
    open_memory = Memory(RecordDict(), "a")
    Client(learner, with_).answer(a_task(learner, start=start, returns=False, holds=True), open_memory)
    with pytest.raises(Missing):
        Client(learner, with_).answer(a_task(learner, start=None, own=True, round=2, returns=False), open_memory)


# Noise from the system


def test_numbers_from_the_system_are_standard_normal():
    drawn = system_normal((400, 501))
    assert drawn.shape == (400, 501)
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(1.0, abs=0.01)
    assert (drawn**4).mean() == pytest.approx(3.0, abs=0.1)
    halves = drawn.reshape(-1)[:200_000].reshape(2, -1)
    assert abs((halves[0] * halves[1]).mean()) < 0.02
    assert system_normal(()).shape == ()
    assert system_normal((0,)).shape == (0,)


@pytest.mark.parametrize("probe", [None, ClassQuery("bias"), Insight(0.1)], ids=["update", "class query", "insight"])
def test_a_real_client_draws_noise_from_the_system_and_a_simulated_one_from_its_seed(probe, monkeypatch):
    learner, samples = a_learner()
    both = Protection(update="1,1e-5", update_clip=1.0, insight="1,1e-5", budget="unlimited")
    changes: dict[str, Any] = {"start": learner.layout.read(learner.module).clone()}
    changes |= {} if probe is None else {"train": False, "probes": (probe,)}

    def sent(simulated: bool) -> bytes:
        client = Client(learner, samples, protection=both, simulated=simulated)
        records = asked(client, **changes).array_records[f"{REPLY}.arrays"]
        return b"".join(array.data for array in records.values())

    assert sent(simulated=False) != sent(simulated=False)
    assert sent(simulated=True) == sent(simulated=True)
    repeatable = sent(simulated=True)
    monkeypatch.setattr("covey.randomness.os.urandom", lambda count: b"\x5a" * count)
    assert sent(simulated=False) == sent(simulated=False)
    assert sent(simulated=True) == repeatable


# Sites of a fleet

SITE: dict[str, Any] = {"insight-privacy": "1,1e-5", "budget": "10,1e-5", "classes": "a,b", "memory": "/site/memory"}


def test_a_site_keeps_its_budget_beside_its_memory():
    rules = site_protection({**SITE, "unprotected": "update, loss"})
    assert rules is not None
    assert rules.ledger == "/site/privacy.json"
    assert rules.unprotected == ("update", "loss")
    assert site_protection({}) is None


@pytest.mark.parametrize(("given", "place"), [("told.json", "/site/told.json"), ("/var/told.json", "/var/told.json")])
def test_a_sites_ledger_is_the_same_from_wherever_its_node_is_started(given, place):
    rules = site_protection({**SITE, "ledger": given})
    assert rules is not None
    assert rules.ledger == place


@pytest.mark.parametrize("labels", ["aab", "aaa"])
def test_a_site_with_noise_does_not_tell_by_an_error_which_classes_it_has(tmp_path, labels):
    """A server that leaves a class out of its list would learn whether the site's samples fit."""
    rows = "".join(f"{number}.0,{label}\n" for number, label in enumerate(labels))
    (tmp_path / "train.csv").write_text(f"x,label\n{rows}")
    node = {**SITE, "folder": str(tmp_path), "memory": str(tmp_path / "memory")}
    run = {"shape": [1], "mean": [0.0], "deviation": [1.0], "never": [], "model": "mlp", "options": {}, "seed": 0}

    def client(classes: tuple[str, ...], config: dict[str, Any]) -> Client:
        about = json.dumps({**run, "class_names": classes, "precision": "fp32"})
        return prepared(Context(1, 1, config, RecordDict(), {RUN: about}), "train")

    with pytest.raises(Refusal, match="other classes than this site's operator states"):
        client(("a", "c"), node)
    assert len(client(("a", "b"), node).samples) == 3
    open_ = {"folder": str(tmp_path)}
    if "b" in labels:
        with pytest.raises(Refusal, match="samples cannot be read"):
            client(("a", "c"), open_)
    else:
        assert len(client(("a", "c"), open_).samples) == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget": None}, "say what all answers together may tell"),
        ({"classes": None}, "A site with noise states the classes"),
        ({"memory": None}, "A budget is kept in a file"),
        ({"insight-privacy": None}, "A budget counts noisy answers"),
    ],
)
def test_a_site_with_noise_states_budget_and_classes(change, sentence):
    given = {name: value for name, value in {**SITE, **change}.items() if value is not None}
    with pytest.raises(Refusal, match=sentence):
        site_protection(given)
