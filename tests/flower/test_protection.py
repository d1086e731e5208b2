"""Clients send what docs/privacy.md says, field by field, and protect it where they ask for it."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import nn

import covey
from covey import Refusal
from covey.client.learner import Learner
from covey.core.interfaces import Probe
from covey.data.dataset import Dataset, Samples
from covey.fleet.site import protection as site_protection
from covey.flower import InProcessGrid, Protection, Strategy, client_app
from covey.flower.node_kinds import IDENTITY
from covey.flower.node_memory import Memory
from covey.flower.node_work import Client
from covey.flower.protection import clipped_head_gradient
from covey.flower.wire import EVALUATE, QUERY, TRAIN, WHO, NodeTask, fields_of
from covey.model import build_model
from covey.probe.class_query import ClassQuery, Privacy, clipped_gradient, shares_at_zero_head, zero_head
from covey.probe.insight import Insight, head_gradients
from covey.probe.predictor import PredictorProbe, PrivatePredictorProbe, Sends, initial_predictor
from covey.registries import methods

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
CLIENTS, CLASSES, FEATURES = 12, 3, 6
SMALL_COHORT = ("fedacs", "rexp3", "nccb", "k-linucb", "oort", "oort-simple", "power-of-choice")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def net_with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, CLASSES))


def flat() -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net().parameters()])


def points(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(client)
    y = torch.randint(CLASSES, (40 + client,), generator=draw)
    return torch.randn(len(y), FEATURES, generator=draw) + torch.eye(CLASSES)[y].repeat(1, 2), y


class Watched(InProcessGrid):
    """A grid that records what each client sends."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[Message] = []

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        self.seen.append(answer)
        return answer


def watched(method: str, rounds: int = 4, **options: Any) -> Watched:
    model = net_with_norm if method == "fedbn" else net
    app = client_app(model, lambda context: points(int(context.node_config["partition-id"])), threads=1, **options)
    grid = Watched(app, CLIENTS)
    cohort = 4 if method in SMALL_COHORT else CLIENTS
    epochs = 2 if method == "fedrep" else 1
    strategy = Strategy(method, model=model(), clients=CLIENTS, cohort=cohort, local={"epochs": epochs})
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds)
    assert not any(entry["faults"] for entry in strategy.history)
    return grid


def documented(heading: str) -> dict[str, set[str]]:
    """A table of the page: first column → names in the second."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", section, re.MULTILINE)
    return {
        name.strip("`"): set(re.findall(r"`([^`]+)`", fields))
        for names, fields in rows
        if "`" in fields
        for name in names.split(", ")
    }


def test_the_page_speaks_of_every_method():
    assert set(methods.names()) <= set(documented("Replies, by method"))


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in ("central", "iid")])
def test_a_reply_contains_exactly_what_the_page_says(method):
    sent: set[str] = set()
    for answer in watched(method).seen:
        if answer.metadata.message_type in (TRAIN, QUERY):
            sent |= fields_of(answer.content)
    assert sent == documented("Replies, by method")[method]


@pytest.mark.parametrize("method", ["fedavg", "local-only", "mocha"])
def test_other_answers_contain_exactly_what_the_page_says(method):
    grid = watched(method)
    table = documented("Other answers")
    for kind, name in ((WHO, "who"), (EVALUATE, "evaluate")):
        answers = [answer.content for answer in grid.seen if answer.metadata.message_type == kind]
        assert answers
        for content in answers:
            fields = set(content.config_records[IDENTITY]) if kind == WHO else fields_of(content)
            assert fields == table[name]


def test_cmfl_keeps_irrelevant_updates_at_home():
    app = client_app(net, lambda context: points(int(context.node_config["partition-id"])), threads=1)
    grid = Watched(app, CLIENTS)
    aggregator = {"threshold": 0.85, "decay": "none"}
    strategy = Strategy("cmfl", model=net(), clients=CLIENTS, cohort=CLIENTS, aggregator=aggregator)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=3)
    trained = [fields_of(answer.content) for answer in grid.seen if answer.metadata.message_type == TRAIN]
    assert {"samples", "loss", "relevance.share"} in trained
    assert {"samples", "loss", "relevance.share", "state"} in trained


def test_what_stays_on_clients_is_in_no_message():
    """MOCHA's dual variables `[samples, classes]` and local-only's models are in no reply of a real client."""
    for method, shape in (("mocha", None), ("local-only", tuple(flat().shape))):
        for answer in watched(method).seen:
            for record in answer.content.array_records.values():
                shapes = [tuple(array.shape) for array in record.values()]
                assert shape not in shapes
                assert not any(len(one) == 2 and one[0] >= 40 for one in shapes)


def a_learner(client: int = 0) -> tuple[Learner, Samples]:
    x, y = points(client)
    module = build_model("mlp", {"hidden": (5,)}, (FEATURES,), CLASSES, 0)
    return Learner(module, Dataset("points", x, y, x[:1], y[:1], ("a", "b", "c"))), Samples(x, y)


def a_task(learner: Learner, **changes: Any) -> NodeTask:
    given: dict[str, Any] = {
        "run": "a",
        "job": "",
        "seed": 0,
        "round": 1,
        "client": 0,
        "start": learner.layout.read(learner.module).clone(),
        "own": False,
        "anchor": None,
        "work": covey.Local(epochs=3),
        "probes": (),
        "train": True,
        "gate": None,
        "holdout": 0,
        "returns": True,
        "holds": False,
    }
    return NodeTask(**{**given, **changes})


def test_a_model_that_stays_on_a_client_is_not_sent_whatever_an_order_says():
    learner, samples = a_learner()
    memory = Memory(RecordDict(), "a")
    memory.hold(learner.layout.read(learner.module).clone(), own=0)
    client = Client(learner, samples)
    answer = client.answer(a_task(learner, start=None, own=True, returns=False), memory)
    assert fields_of(answer) == {"samples", "loss"}
    with pytest.raises(Refusal, match="stays with this client"):
        client.answer(a_task(learner, start=None, own=True, returns=True), memory)


def sent_update(protection: Protection | None, *, simulated: bool = True) -> torch.Tensor:
    learner, samples = a_learner()
    task = a_task(learner)
    client = Client(learner, samples, protection=protection, simulated=simulated)
    content = client.answer(task, Memory(RecordDict(), "a"))
    assert task.start is not None
    return torch.from_numpy(content.array_records["covey.reply.arrays"]["state"].numpy()).double() - task.start.double()


def open_but_for_insights(insight: str, **options: Any) -> Protection:
    """Return noise on insights, and everything else as it is."""
    return Protection(insight=insight, budget="unlimited", unprotected=("update", "loss", "evaluation"), **options)


def test_an_update_is_cut_to_its_bound_and_no_further():
    whole = sent_update(None)
    length = float(whole.norm())
    cut = sent_update(Protection(update_clip=length / 4))
    assert float(cut.norm()) == pytest.approx(length / 4, rel=1e-4)
    assert float(torch.dot(cut, whole)) == pytest.approx(float(cut.norm()) * length, rel=1e-4)
    assert torch.allclose(sent_update(Protection(update_clip=2 * length)), whole, atol=1e-6)


def test_noise_on_updates_is_as_large_as_the_mechanism_needs():
    clip = 0.01
    protection = Protection(update="4,1e-5", update_clip=clip, budget="unlimited")
    noisy = torch.cat([sent_update(protection, simulated=False) for _ in range(30)])
    assert float(noisy.std()) == pytest.approx(2 * clip * Privacy(4, 1e-5).deviation, rel=0.1)


def test_a_real_client_draws_noise_that_a_seed_does_not_tell():
    protection = Protection(update="4,1e-5", update_clip=0.1, budget="unlimited")
    assert torch.equal(sent_update(protection), sent_update(protection))
    one, two = sent_update(protection, simulated=False), sent_update(protection, simulated=False)
    assert not torch.equal(one, two)
    assert not torch.equal(one, sent_update(protection))


def test_one_other_sample_moves_a_clipped_insight_by_no_more_than_its_sensitivity():
    learner, samples = a_learner()
    state = learner.layout.read(learner.module).clone()
    clip = 0.3
    before = clipped_head_gradient(learner, state, samples, clip)
    x, y = samples.x.clone(), samples.y.clone()
    x[7], y[7] = 100.0, (y[7] + 1) % CLASSES
    after = clipped_head_gradient(learner, state, Samples(x, y), clip)
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
    assert 0 < float(moved) <= 2 * clip / len(samples) + 1e-9
    exact = head_gradients(learner, state, samples, [len(samples)])
    loose = clipped_head_gradient(learner, state, samples, 1e6)
    assert all(torch.allclose(loose[name], exact[name][0].double(), atol=1e-6) for name in loose)


def test_fedacs_runs_with_noise_on_insights_and_the_fields_stay_the_same():
    grid = watched("fedacs", protection=open_but_for_insights("8,1e-5"))
    sent = {name for answer in grid.seen if answer.metadata.message_type == TRAIN for name in fields_of(answer.content)}
    assert sent == documented("Replies, by method")["fedacs"]


def test_insights_that_noise_is_not_known_for_are_not_sent():
    learner, samples = a_learner()
    client = Client(learner, samples, protection=open_but_for_insights("8,1e-5"))
    with pytest.raises(Refusal, match="not for full"):
        client.answer(a_task(learner, probes=(Insight(0.1, "full"),)), Memory(RecordDict(), "a"))


def told(
    probe: Probe,
    protection: Protection | None = None,
    *,
    samples: Samples | None = None,
    head: float = 0.0,
    simulated: bool = False,
) -> dict[str, torch.Tensor]:
    """Return what a client sends for a probe at a model whose last layer is multiplied by `head`."""
    learner, held = a_learner()
    model = learner.layout.read(learner.module).clone()
    body = zero_head(learner.layout, model)
    start = body + head * (model - body)
    client = Client(learner, samples or held, protection=protection, simulated=simulated)
    task = a_task(learner, start=start, probes=(probe,), train=False)
    arrays = client.answer(task, Memory(RecordDict(), "a")).array_records["covey.reply.arrays"]
    return {name.partition(".")[2]: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def a_predictor_probe(sends: Sends = "gradient", epochs: int = 2) -> PredictorProbe:
    learner, _ = a_learner()
    weight = learner.layout.head[0].size
    return PredictorProbe(initial_predictor(weight, CLASSES, 4, 0), 4, 5, epochs, 2, 0.1, 0.5, sends, 3)


OWN = open_but_for_insights("1,1e-5", insight_clip=0.5)


def test_a_plain_query_for_class_shares_gets_noise_from_a_client_that_protects_insights():
    _, samples = a_learner()
    truth = np.bincount(samples.y, minlength=CLASSES) / len(samples)
    open_, guarded = told(ClassQuery("bias")), [told(ClassQuery("bias"), OWN) for _ in range(200)]
    np.testing.assert_allclose(shares_at_zero_head({"gradient": open_["gradient"][None]})[0], truth, atol=1e-6)
    noise = torch.stack([one["gradient"] - open_["gradient"] for one in guarded])
    assert float(noise.std()) == pytest.approx(math.sqrt(2) / len(samples) * Privacy(1, 1e-5).deviation, rel=0.1)


def test_of_the_servers_budget_and_the_clients_own_the_one_with_more_noise_holds():
    own = Privacy(1, 1e-5)
    assert OWN.of_probe(ClassQuery("bias")) == ClassQuery("bias", own)
    for asked, holds in (
        (Privacy(8, 1e-5), own),
        (Privacy(0.1, 1e-5), Privacy(0.1, 1e-5)),
        (Privacy(0.9, 0.1), own),
    ):
        assert OWN.of_probe(ClassQuery("bias", asked)) == ClassQuery("bias", holds)
        guarded = OWN.of_probe(PrivatePredictorProbe(a_predictor_probe(), asked, 2.0))
        assert getattr(guarded, "privacy", None) == holds
        assert getattr(guarded, "clip", None) == 0.5
    assert Protection(update_clip=1.0).of_probe(ClassQuery("bias")) == ClassQuery("bias")


def test_class_shares_that_noise_is_not_known_for_are_not_told():
    with pytest.raises(Refusal, match="known for the gradient of a bias, not of a weight; none are sent"):
        told(ClassQuery("weight"), OWN)
    assert set(told(ClassQuery("weight"))) == {"gradient", "reference"}


@pytest.mark.parametrize("asks_for_noise", [False, True])
def test_a_client_that_protects_insights_tells_a_predictor_nothing_without_noise(asks_for_noise):
    open_ = a_predictor_probe()
    probe = PrivatePredictorProbe(open_, Privacy(50, 1e-5), 0.5) if asks_for_noise else open_
    learner, samples = a_learner()
    start = learner.layout.read(learner.module).clone()
    clipped = clipped_gradient(learner, start, samples, 0.5)
    answers = [told(probe, OWN, head=1) for _ in range(200)]
    # With the error there are two answers of one budget.
    share = 1.0 if asks_for_noise else math.sqrt(2)
    noise = torch.stack([one["gradient"].double() - clipped for one in answers])
    sigma = share * Privacy(1, 1e-5).deviation
    assert float(noise.std()) == pytest.approx(2 * 0.5 / len(samples) * sigma, rel=0.1)
    for one in answers:
        assert torch.equal(one["predictor"], open_.predictor)
        assert int(one["gradients"]) == 0
    assert ("error" in answers[0]) != asks_for_noise
    assert told(probe, head=1)["gradients"] > 0


def test_one_other_sample_moves_what_a_predictor_is_told_by_no_more_than_its_noise_is_made_for():
    """Noise from the seed cancels out; a predictor of zeros estimates the same for every gradient."""
    _, samples = a_learner()
    probe = replace(a_predictor_probe(), predictor=torch.zeros_like(a_predictor_probe().predictor))
    answers = []
    for label in range(CLASSES):
        x, y = samples.x.clone(), torch.zeros_like(samples.y)
        x[7], y[7] = (label - 1) * x[7], label
        answers.append(told(probe, OWN, samples=Samples(x, y), head=1, simulated=True))
    apart = [torch.stack([one[name].double().flatten() for one in answers]) for name in ("gradient", "error")]
    moved, off = (float(torch.cdist(values, values).max()) for values in apart)
    assert 0 < moved <= 2 * OWN.insight_clip / len(samples) + 1e-6
    assert 0 < off <= 2 / len(samples) + 1e-6


def test_how_far_off_an_estimate_is_has_the_noise_that_it_needs():
    _, samples = a_learner()
    probe = replace(a_predictor_probe(), predictor=torch.zeros_like(a_predictor_probe().predictor))
    one_class = Samples(samples.x, torch.zeros_like(samples.y))
    errors = torch.stack([told(probe, OWN, samples=one_class, head=1)["error"] for _ in range(300)])
    needed = math.sqrt(2) * 2 / len(samples) * Privacy(1, 1e-5).deviation
    assert float(errors.mean()) == pytest.approx(4 / 3, abs=0.1)
    assert float(errors.std()) == pytest.approx(needed, rel=0.15)


def test_a_client_that_protects_insights_applies_the_predictor_to_what_has_noise():
    """With sends=shares; a loose budget tells them nearly, and the fields are those of an open answer."""
    probe = a_predictor_probe("shares")
    loose = open_but_for_insights("1e6,1e-5", insight_clip=100.0)
    open_, guarded = told(probe, head=1), told(probe, loose, head=1)
    assert set(open_) == set(guarded) == {"shares", "error", "predictor", "gradients"}
    torch.testing.assert_close(guarded["shares"], open_["shares"], atol=0.05, rtol=0)
    assert not torch.equal(told(probe, OWN, head=1)["shares"], told(probe, OWN, head=1)["shares"])


def test_a_client_that_protects_insights_does_not_train_the_predictor_on_its_own_steps_either():
    learner, samples = a_learner()
    probe = replace(a_predictor_probe("shares"), work=covey.Local(batch=5), infers_at_received=True)
    assert probe.wants_steps()
    task = a_task(learner, start=learner.layout.read(learner.module).clone(), probes=(probe,), train=True)
    sent = [
        Client(learner, samples, protection=protection).answer(task, Memory(RecordDict(), "a")).array_records
        for protection in (None, OWN)
    ]
    open_, guarded = (
        {name: torch.from_numpy(array.numpy().copy()) for name, array in records["covey.reply.arrays"].items()}
        for records in sent
    )
    assert int(open_["predictor.gradients"]) > 0
    assert not torch.equal(open_["predictor.predictor"], probe.predictor)
    assert int(guarded["predictor.gradients"]) == 0
    assert torch.equal(guarded["predictor.predictor"], probe.predictor)


def test_ondemand_runs_with_noise_on_what_predictors_are_told_and_the_fields_stay_the_same():
    grid = watched("ondemand", protection=open_but_for_insights("8,1e-5"))
    sent = {name for answer in grid.seen if answer.metadata.message_type == TRAIN for name in fields_of(answer.content)}
    assert sent == documented("Replies, by method")["ondemand"]


@pytest.mark.parametrize(
    "probe",
    [ClassQuery("bias", Privacy(1, 1e-5)), PrivatePredictorProbe(a_predictor_probe(), Privacy(1, 1e-5), 1.0)],
    ids=["class query", "predictor"],
)
def test_noise_that_a_server_asks_for_is_not_told_by_its_seed_either(probe):
    one, two = told(probe, head=1), told(probe, head=1)
    assert not torch.equal(one["gradient"], two["gradient"])
    repeated = told(probe, head=1, simulated=True)
    assert torch.equal(repeated["gradient"], told(probe, head=1, simulated=True)["gradient"])
    assert not torch.equal(repeated["gradient"], one["gradient"])


@pytest.mark.parametrize("probe", [ClassQuery("bias"), a_predictor_probe(), Insight(0.1)], ids=lambda probe: probe.name)
def test_a_server_that_makes_one_sample_overflow_does_not_see_that_it_did(probe):
    _, samples = a_learner()
    x = samples.x.clone()
    x[7] = 1e38
    assert not all(
        torch.isfinite(value).all() for value in told(probe, samples=Samples(x, samples.y), head=1e3).values()
    )
    for value in told(probe, OWN, samples=Samples(x, samples.y), head=1e3).values():
        assert bool(torch.isfinite(value).all())
    # The other samples still count, and the noise is still there: an answer of zeros would tell as well.
    near = open_but_for_insights("1e6,1e-5", insight_clip=0.5)
    without, with_ = (told(probe, near, samples=Samples(one, samples.y), head=1e3) for one in (samples.x, x))
    for name, value in without.items():
        assert bool(with_[name].any()) == bool(value.any())
        np.testing.assert_allclose(with_[name], value, atol=4 / len(x))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_server_cannot_ask_for_noise_without_a_bound(clip):
    with pytest.raises(Refusal, match="clip must be above 0 and finite"):
        PrivatePredictorProbe(a_predictor_probe(), Privacy(1, 1e-5), clip)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"update": "1,1e-5"}, "needs a bound"),
        ({"update_clip": -1.0}, "update_clip must be above 0"),
        ({"update_clip": math.inf}, "update_clip must be above 0 and finite"),
        ({"insight": "1"}, r"^insight is epsilon and delta, such as 1,1e-5, not '1'\."),
        ({"update": "1", "update_clip": 1.0}, r"^update is epsilon and delta, such as 1,1e-5, not '1'\."),
        ({"update": "0,1e-5", "update_clip": 1.0}, r"^update: epsilon must be above 0"),
        ({"insight": "1,1e-5", "insight_clip": 0.0}, "insight_clip must be above 0"),
        ({"insight": "1,1e-5"}, "say what all answers together may tell"),
        ({"insight": "1,1e-5", "budget": "much"}, "A budget is kept in a file"),
        ({"insight": "1,1e-5", "budget": "much", "ledger": "x"}, r"^budget is epsilon and delta"),
        ({"budget": "1,1e-5", "ledger": "x"}, "A budget counts noisy answers"),
        ({"insight": "1,1e-5", "budget": "unlimited", "unprotected": "loss"}, "unprotected lists names"),
    ],
)
def test_impossible_protection_is_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        Protection(**options)


def test_a_site_is_told_which_of_its_settings_is_wrong():
    with pytest.raises(Refusal, match=r"^update-privacy: delta must be between 0 and 1"):
        site_protection({"update-clip": 1.0, "update-privacy": "1,2"})
    with pytest.raises(Refusal, match=r"^insight-privacy is epsilon and delta"):
        site_protection({"insight-privacy": "much"})
