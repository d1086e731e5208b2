"""Trainers compute what their papers say: each is compared with a plain loop over whole client data sets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey import Refusal
from covey.client.length import length_of_steps
from covey.client.local_work import key_of_client
from covey.config.sections import Local
from covey.core.build import build_federation, build_module, initial_model
from covey.core.checkpoint import read_checkpoint
from covey.model.dropout import Dropout
from covey.model.layout import Layout
from tests.equal_runs import ends_the_same

STEPS, RATE = 3, 0.2
GIVEN: dict[str, Any] = {
    "clients": 5,
    "cohort": 2,
    "rounds": 4,
    "workers": 1,
    "precision": "fp64",
    "environment": {"name": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": (6,)},
    # One batch of all samples a step: there is no order to draw.
    "local": {"epochs": STEPS, "batch": 0, "rate": RATE},
}
TRAINERS = ("fedcm", "feddyn", "fedlc", "fednova", "fedprox", "fedsam", "moon", "scaffold")


OwnLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits, features and labels → the mean loss."""


@dataclass
class Plain:
    """A federation trained by a plain loop, on vectors of all parameters."""

    config: covey.Config
    kept: dict[int, Tensor] = field(default_factory=dict)
    server: Tensor | None = None

    def __post_init__(self) -> None:
        self.federation = build_federation(self.config)
        self.module = build_module(self.config, self.federation.dataset).double()
        self.layout = Layout.of(self.module)
        self.model = initial_model(self.config, self.module)
        dataset = self.federation.dataset
        self.scale = torch.tensor(dataset.deviation, dtype=torch.float64)
        self.shift = torch.tensor(dataset.mean, dtype=torch.float64)

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        one = self.federation.samples(client)
        return (one.x.double() - self.shift.view(-1, 1, 1)) / self.scale.view(-1, 1, 1), one.y

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the inputs of the last layer."""
        named = {slot.name: slot.of(w) for slot in self.layout.parameters}
        (name1, name2) = ("layers.hidden0", "layers.head")
        hidden = F.relu(F.linear(x.flatten(1), named[f"{name1}.weight"], named[f"{name1}.bias"]))
        return F.linear(hidden, named[f"{name2}.weight"], named[f"{name2}.bias"]), hidden

    def gradient(
        self, w: Tensor, client: int, loss: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        x, y = self.samples(client)
        leaf = w.detach().clone().requires_grad_()
        logits, hidden = self.outputs(leaf, x)
        value = F.cross_entropy(logits, y) if loss is None else loss(logits, hidden, y)
        return torch.autograd.grad(value, leaf)[0]

    def trained(self, client: int, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        w = self.model.clone()
        for _ in range(STEPS):
            w = w - RATE * gradient(w)
        return w

    def shares(self, cohort: list[int]) -> Tensor:
        counts = torch.tensor([float(self.federation.sizes[client]) for client in cohort], dtype=torch.float64)
        return counts / counts.sum()


A = STEPS * RATE


def scaffold(plain: Plain, cohort: list[int]) -> None:
    c = torch.zeros_like(plain.model) if not plain.kept else torch.stack(list(plain.kept.values())).mean(dim=0)
    ends, fresh = [], {}
    for client in cohort:
        change = c - plain.kept[client] if client in plain.kept else torch.zeros_like(c)
        end = plain.trained(client, lambda w, client=client, change=change: plain.gradient(w, client) + change)  # type: ignore[misc]
        fresh[client] = (plain.model - end) / A - change
        ends.append(end)
    plain.kept |= fresh
    plain.model = torch.stack(ends).mean(dim=0)


def feddyn(plain: Plain, cohort: list[int]) -> None:
    alpha, start = 0.3, plain.model
    ends = []
    for client in cohort:
        own = plain.kept.get(client, torch.zeros_like(start))
        end = plain.trained(
            client,
            lambda w, client=client, own=own: plain.gradient(w, client) - own + alpha * (w - start),  # type: ignore[misc]
        )
        plain.kept[client] = own - alpha * (end - start)
        ends.append(end)
    h = torch.zeros_like(start) if plain.server is None else plain.server
    plain.server = h - alpha * sum(end - start for end in ends) / GIVEN["clients"]
    plain.model = torch.stack(ends).mean(dim=0) - plain.server / alpha


def fedcm(plain: Plain, cohort: list[int]) -> None:
    direction = torch.zeros_like(plain.model) if plain.server is None else plain.server
    ends = [
        plain.trained(client, lambda w, client=client: 0.4 * plain.gradient(w, client) + 0.6 * direction)  # type: ignore[misc]
        for client in cohort
    ]
    plain.server = torch.stack([(plain.model - end) / A for end in ends]).mean(dim=0)
    plain.model = torch.stack([share * end for share, end in zip(plain.shares(cohort), ends, strict=True)]).sum(dim=0)


def moon(plain: Plain, cohort: list[int]) -> None:
    start, ends = plain.model, []
    for client in cohort:
        x, _ = plain.samples(client)
        shared = plain.outputs(start, x)[1]
        last = plain.outputs(plain.kept[client], x)[1] if client in plain.kept else None

        def loss(logits: Tensor, hidden: Tensor, y: Tensor, shared: Tensor = shared, last: Any = last) -> Tensor:
            value = F.cross_entropy(logits, y)
            if last is None:
                return value
            alike, unlike = (torch.exp(F.cosine_similarity(hidden, one, dim=1) / 0.7) for one in (shared, last))
            return value + 2.0 * (-torch.log(alike / (alike + unlike))).mean()

        end = plain.trained(client, lambda w, client=client, loss=loss: plain.gradient(w, client, loss))  # type: ignore[misc]
        plain.kept[client] = end
        ends.append(end)
    plain.model = torch.stack([share * end for share, end in zip(plain.shares(cohort), ends, strict=True)]).sum(dim=0)


def fedlc(plain: Plain, cohort: list[int]) -> None:
    ends = []
    for client in cohort:
        _, y = plain.samples(client)
        counts = torch.bincount(y, minlength=10).double()

        def loss(logits: Tensor, hidden: Tensor, y: Tensor, counts: Tensor = counts) -> Tensor:
            raised = torch.exp(logits - 0.8 * counts.pow(-0.25)) * (counts > 0)
            return -torch.log(raised[torch.arange(len(y)), y] / raised.sum(dim=1)).mean()

        ends.append(plain.trained(client, lambda w, client=client, loss=loss: plain.gradient(w, client, loss)))  # type: ignore[misc]
    plain.model = torch.stack([share * end for share, end in zip(plain.shares(cohort), ends, strict=True)]).sum(dim=0)


def fedsam(plain: Plain, cohort: list[int]) -> None:
    def gradient(w: Tensor, client: int) -> Tensor:
        first = plain.gradient(w, client)
        return plain.gradient(w + 0.1 * first / first.norm(), client)

    ends = [plain.trained(client, lambda w, client=client: gradient(w, client)) for client in cohort]  # type: ignore[misc]
    plain.model = torch.stack([share * end for share, end in zip(plain.shares(cohort), ends, strict=True)]).sum(dim=0)


def fedprox(plain: Plain, cohort: list[int]) -> None:
    start = plain.model
    ends = [
        plain.trained(client, lambda w, client=client: plain.gradient(w, client) + 0.5 * (w - start))  # type: ignore[misc]
        for client in cohort
    ]
    plain.model = torch.stack([share * end for share, end in zip(plain.shares(cohort), ends, strict=True)]).sum(dim=0)


PLAIN: dict[str, tuple[Callable[[Plain, list[int]], None], dict[str, Any]]] = {
    "scaffold": (scaffold, {}),
    "feddyn": (feddyn, {"alpha": 0.3}),
    "fedcm": (fedcm, {"alpha": 0.4}),
    "moon": (moon, {"mu": 2.0, "temperature": 0.7}),
    "fedlc": (fedlc, {"tau": 0.8}),
    "fedsam": (fedsam, {"rho": 0.1}),
    "fedprox": (fedprox, {"mu": 0.5}),
}


def vector(run: covey.Run) -> Tensor:
    """All parameters, and batch-norm statistics after them."""
    module = run.model()
    return Layout.of(module).read(module).double()


@pytest.mark.parametrize("name", list(PLAIN))
def test_a_trainer_computes_what_a_plain_loop_computes(name: str, tmp_path: Path) -> None:
    step, options = PLAIN[name]
    given = {**GIVEN, "trainer": {"name": name, **options}}
    if name in ("scaffold", "feddyn"):
        given["aggregator"] = {"name": "average", "weighted": False}
    run = covey.run(given, out=tmp_path / "run")
    plain = Plain(run.config)
    cohorts = [row["clients"] for row in run.metrics]
    again = {client for cohort in cohorts for client in cohort if sum(client in one for one in cohorts) > 1}
    assert again, "a client must be visited twice, or what it keeps is not tested"
    for cohort in cohorts:
        step(plain, cohort)
    assert torch.allclose(vector(run), plain.model, rtol=0, atol=1e-12)
    assert not torch.allclose(vector(run), vector(covey.run(GIVEN, out=tmp_path / "plain")), rtol=0, atol=1e-4)


def test_fednova_averages_updates_per_length_of_their_steps(tmp_path: Path) -> None:
    local = {"epochs": 2, "batch": 8, "rate": 0.05, "momentum": 0.6}
    given = {**GIVEN, "rounds": 1, "local": local}
    nova = covey.run(given, trainer="fednova", out=tmp_path / "nova")
    plain = Plain(nova.config)
    clients = nova.metrics[0]["clients"]
    ends = []
    for client in clients:
        learner = covey.Learner(plain.module, plain.federation.dataset, "fp64")
        samples = plain.federation.samples(client)
        ends.append(learner.fit(plain.model, samples, nova.config.local, 1, key_of_client(0, 1, client))[0])
    shares = plain.shares(clients)
    lengths = torch.tensor(
        [length_of_steps(nova.config.local, 1, -(-int(plain.federation.sizes[client]) // 8)) for client in clients],
        dtype=torch.float64,
    )
    assert len(set(lengths.tolist())) == 2
    moves = [(plain.model - end) / length for end, length in zip(ends, lengths, strict=True)]
    expected = plain.model - (shares * lengths).sum() * sum(s * move for s, move in zip(shares, moves, strict=True))
    assert torch.allclose(vector(nova), expected, rtol=0, atol=1e-12)


def test_the_length_of_steps_is_how_far_a_constant_gradient_moves_a_model() -> None:
    work = Local(epochs=3, rate=0.1, decay=0.9, momentum=0.7)
    moved, velocity = 0.0, 0.0
    for epoch in range(3):
        for _ in range(4):
            velocity = 0.7 * velocity + 1.0
            moved += work.rate_at(2, epoch) * velocity
    assert length_of_steps(work, 2, 4) == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_ends_the_same_on_any_workers_on_the_stack_and_after_a_resume(name: str, tmp_path: Path) -> None:
    local = {"epochs": 2, "batch": 8, "rate": 0.05, "momentum": 0.5, "weight_decay": 1e-3}
    aggregator = {"name": "average", "weighted": name not in ("scaffold", "feddyn")}
    given = {**GIVEN, "rounds": 6, "local": local, "trainer": name, "aggregator": aggregator, "cohort": 3}
    ends_the_same({**given, "devices": {"dropout": 0.3}}, tmp_path)


class Normed(nn.Module):
    """A convolution with batch norm and dropout."""

    head = "last"

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.below = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), Dropout(0.25), nn.Flatten()
        )
        self.last = nn.Linear(4 * 2 * 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.below(x))
        return found


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make the network for images of 8 by 8."""
    return Normed(classes)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_the_same_on_the_stack_for_a_network_with_batch_norm_and_dropout(
    name: str, tmp_path: Path
) -> None:
    given = {
        **GIVEN,
        "rounds": 2,
        "cohort": 3,
        "trainer": name,
        "dataset": {"name": "synthetic", "shape": (3, 8, 8), "train": 60, "test": 20},
        "environment": {"name": "iid"},
        "model": "tests.training.test_trainers:normed",
        "local": {"epochs": 2, "batch": 5, "rate": 0.02, "crop": 2, "flip": True},
    }
    local = covey.run(given, out=tmp_path / "local")
    stacked = covey.run(given, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    assert torch.allclose(vector(local), vector(stacked), rtol=0, atol=1e-10)


def test_what_clients_keep_survives_a_round_that_they_miss(tmp_path: Path) -> None:
    run = covey.run({**GIVEN, "rounds": 8}, method="moon", out=tmp_path / "run")
    state = read_checkpoint(tmp_path / "run")[1]
    assert state is not None
    kept = state["trainer"]["kept"]
    seen = {client for row in run.metrics for client in row["clients"]}
    last = {client: max(row["round"] for row in run.metrics if client in row["clients"]) for client in seen}
    assert dict(zip(kept["clients"].tolist(), kept["rounds"].tolist(), strict=True)) == last


class Widest(covey.Trainer):
    """Has every kind of field."""

    sent = {"model": covey.MODEL, "number": ()}
    kept = {"visits": (), "sum": (2,)}
    replied = {"visits": (), "gradient": covey.MODEL}

    def client_init(self, client: covey.LocalClient) -> covey.Values:
        return {"steps": client.samples * 0, "tree": covey.map_tree(torch.zeros_like, client.received)}

    def client_step(self, w, batch, client, carry, net):
        gradient = net.gradient(w, batch)
        carry = {"steps": carry["steps"] + 1, "tree": covey.map_tree(torch.add, carry["tree"], gradient)}
        return gradient, carry

    def client_final(self, w, client, carry):
        visits = client.kept["visits"] + client.sent["number"]
        total = client.kept["sum"] + torch.stack([carry["steps"], client.steps])
        return {"visits": visits, "gradient": carry["tree"]}, {"visits": visits, "sum": total}

    def send(self, t, model):
        return {"model": model[: self.setting.layout.trainable] * 2, "number": torch.tensor(1.0)}

    def finish(self, t, model, found, replies):
        self.seen = {**getattr(self, "seen", {}), t: covey.answers(replies)}
        return found

    def figures(self) -> dict[str, object]:
        if not hasattr(self, "seen"):
            return {}
        last = self.seen[max(self.seen)]
        return {"visits": [int(value) for value in last["visits"]], "width": last["gradient"].shape[1]}


class NoTrainer:
    """Is something else."""


class Askew(covey.Trainer):
    """Sends what it does not declare."""

    sent = {"one": ()}

    def send(self, t, model):
        return {"two": torch.tensor(1.0)}


class Careless(covey.Trainer):
    """Does one thing that a trainer must not do."""

    def __init__(self, *, what: str = "") -> None:
        self.what = what

    def client_init(self, client):
        return {"sum": client.samples * 0}

    def client_step(self, w, batch, client, carry, net):
        if self.what == "branch" and client.samples > 3:
            return net.gradient(w, batch), carry
        if self.what == "mean":
            return net.gradient(w, batch, lambda output, y: F.cross_entropy(output.logits, y)), carry
        gradient = net.gradient(w, batch)
        if self.what == "random":
            gradient = covey.map_tree(lambda g: g + torch.randn_like(g), gradient)
        if self.what == "shape":
            gradient = covey.map_tree(lambda g: g.sum(), gradient)
        if self.what == "single":
            return gradient
        if self.what == "carry":
            return gradient, {}
        if self.what == "name":
            return client.kept["nothing"], carry
        if self.what == "in place":
            for value in w.values():
                value.mul_(0.5)
        if self.what == "self":
            self.last = gradient
        if self.what == "term":

            def pulled(output, y):
                return net.losses(output, y) + sum((w[one] - client.received[one]).square().sum() for one in w)

            return net.gradient(w, batch, pulled), carry
        if self.what == "no gradient":

            def near(output, y):
                fixed = sum((w[one].detach() - client.received[one]).square().sum() for one in w)
                return net.losses(output, y) + fixed + net.features(w, batch).square().sum(dim=1)

            return net.gradient(w, batch, near), carry
        if self.what == "output":
            return net.gradient(w, batch, lambda output, y: F.cross_entropy(output, y, reduction="none")), carry
        if self.what == "mixed":
            other = batch._replace(x=(batch.x + batch.x.flip(0)) / 2)
            return net.gradient(w, other), carry
        if self.what == "count":
            return gradient, {"sum": carry["sum"] + len(batch.y)}
        if self.what == "length":
            return covey.map_tree(lambda g: g * client.length, gradient), carry
        return gradient, carry


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("branch", "branches on a tensor's value"),
        ("random", "draws from torch's generator"),
        ("mean", "one number for each sample"),
        ("shape", "a gradient of every parameter, in its shape; that of"),
        ("single", "must return a pair"),
        ("carry", "must carry on what client_init begins with"),
        ("name", "uses 'nothing', which is not there"),
        ("in place", "in place"),
        ("length", "say needs_length = True"),
        ("self", "stores 'last' in self on the client"),
        ("term", "The loss of the trainer .* uses w"),
        ("output", "output.logits"),
        ("mixed", "mix none with those of weight 0"),
        ("count", "samples of weight 0"),
    ],
)
@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_a_trainer_that_breaks_a_rule_is_refused_before_the_first_round(
    what: str, sentence: str, runtime: str, tmp_path: Path
) -> None:
    careless = {"name": "tests.training.test_trainers:Careless", "what": what}
    with pytest.raises(Refusal, match=sentence):
        covey.run({**GIVEN, "trainer": careless, "runtime": runtime, "device": "cpu"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["", "no gradient"])
def test_a_careful_trainer_is_not_refused(what: str, tmp_path: Path) -> None:
    trainer = {"name": "tests.training.test_trainers:Careless", "what": what}
    covey.run({**GIVEN, "rounds": 1}, trainer=trainer, out=tmp_path / "run")


class Misspelt(covey.Trainer):
    """Has a function that nothing calls."""

    def client_steps(self, w, batch, client, carry, net):
        return net.gradient(w, batch), carry


class Unbegun(covey.Trainer):
    """Begins without its base."""

    def begin(self, setting):
        self.count = 0


class UnbegunSelector(covey.Selector):
    """Begins without its base."""

    def begin(self, setting):
        self.count = 0

    def select(self, t, candidates):
        return candidates[: self.setting.cohort]


@pytest.mark.parametrize("runtime", [{}, {"runtime": "stacked", "device": "cpu"}])
def test_a_trainer_of_ones_own_has_fields_of_every_kind(runtime: dict[str, Any], tmp_path: Path) -> None:
    name = "tests.training.test_trainers:Widest"
    run = covey.run({**GIVEN, "rounds": 6}, trainer=name, **runtime, out=tmp_path / "run")
    visits: dict[int, int] = {}
    for row in run.metrics:
        for client in row["clients"]:
            visits[client] = visits.get(client, 0) + 1
        figures: Any = row["figures"]
        assert figures["visits"] == [visits[client] for client in row["clients"]]
        assert figures["width"] == Layout.of(run.model()).trainable
        assert row["probe_bytes"]["trainer"] == len(row["clients"]) * 8 * (1 + figures["width"])
    assert max(visits.values()) > 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"trainer": "scaffold", "aggregator": "median"}, "needs the aggregator 'average'"),
        ({"trainer": "feddyn", "aggregator": "median"}, "needs the aggregator 'average'"),
        ({"trainer": "scaffold", "local": {"optimizer": "adam", "rate": 0.01}}, "local.optimizer=sgd"),
        ({"trainer": "fednova", "local": {"clip": 1.0}}, "local.clip=0"),
        ({"trainer": "feddin"}, "Did you mean 'feddyn'?"),
        ({"trainer": {"name": "feddyn", "alpha": 0}}, "trainer.alpha must be above 0"),
        ({"trainer": {"name": "feddyn", "leak": 2}}, "trainer.leak is a share"),
        ({"trainer": {"name": "moon", "temprature": 1}}, "Did you mean 'temperature'?"),
        ({"method": "cfl", "trainer": "moon"}, "has a training of its own"),
        ({"method": "central", "trainer": "moon"}, "has a training of its own"),
        ({"method": "scaffold", "trainer": "moon"}, "has the trainer 'scaffold'"),
        ({"trainer": "tests.training.test_trainers:NoTrainer"}, "NoTrainer is no trainer"),
        ({"trainer": "tests.training.test_trainers:Askew"}, "declares"),
        ({"trainer": "tests.training.test_trainers:Misspelt"}, "Misspelt has 'client_steps', which nothing calls"),
        ({"trainer": "tests.training.test_trainers:Unbegun"}, "begin of Unbegun must call super"),
        ({"selector": "tests.training.test_trainers:UnbegunSelector"}, "begin of UnbegunSelector must call super"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_sentence(
    given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match=sentence.replace("(", r"\(").replace("?", r"\?")):
        covey.run({**{key: value for key, value in GIVEN.items() if key != "local"}, **given}, out=tmp_path / "run")


def test_a_method_has_its_trainer_and_takes_another_selector_and_aggregator(tmp_path: Path) -> None:
    config = covey.Config.of(selector="oort-simple", aggregator="norm-bound", trainer="moon")
    assert (config.method, config.trainer and config.trainer.name) == ("oort-simple+norm-bound+moon", "moon")
    assert covey.Config.of(config.as_mapping()) == config
    assert covey.Config.of(method="oort-simple+norm-bound+moon") == config
    plain = covey.Config.of(method="fedavg")
    assert plain.trainer is not None and plain.trainer.name == "sgd"
    comparison = covey.compare(
        ["fedavg", "uniform+average+fedlc"], seeds=1, given={**GIVEN, "rounds": 1}, out=tmp_path / "comparison"
    )
    assert set(comparison.runs) == {"fedavg", "uniform+average+fedlc"}
