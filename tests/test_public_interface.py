"""Algorithms, measurements and runtimes written with `import covey` alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import covey

SMALL = {
    "clients": 6,
    "cohort": 3,
    "rounds": 2,
    "workers": 1,
    "device": "cpu",
    "environment.samples": 20,
    "local.epochs": 1,
}


@covey.probes.add("test-spread")
@dataclass(frozen=True)
class Spread(covey.Probe):
    """The spread of a client's inputs around `centre`: field `value`."""

    centre: float = 0.0

    name = "spread"

    def shapes(self):
        return {"value": ()}

    def measure(self, learner, received, trained, samples, key):
        return {"value": (learner.inputs(samples.x) - self.centre).square().mean()}


@dataclass(frozen=True)
class LabelCounts(covey.CohortProbe):
    """The number of different labels of a client: field `count`."""

    name = "label counts"

    def measure_cohort(self, learner, received, trained, samples, counts):
        return {"count": torch.tensor([len(part.y.unique()) for part in samples.split(counts)])}


@covey.selectors.add("test-widest")
class Widest(covey.Selector):
    """Invites the clients with the largest spread, of which it asks all in the first round."""

    def __init__(self, *, centre: float = 0.0) -> None:
        self.centre = centre

    def begin(self, setting: covey.Setting) -> None:
        super().begin(setting)
        self.spread = np.zeros(setting.clients)

    def survey(self, t, candidates):
        return (candidates, (Spread(self.centre),)) if t == 1 else None

    def surveyed(self, t: int, replies: covey.Replies) -> None:
        at = replies.observed("spread")
        self.spread[replies.clients[at]] = replies.probes["spread"]["value"][at].numpy()

    def select(self, t, candidates):
        return candidates[np.argsort(-self.spread[candidates], kind="stable")[: self.setting.cohort]]

    def state_dict(self) -> covey.State:
        return {"spread": self.spread}

    def load_state_dict(self, state: covey.State) -> None:
        self.spread = np.array(state["spread"])


@covey.aggregators.add("test-by labels")
class ByLabels(covey.Aggregator):
    """Weighs models by the number of different labels of their clients."""

    def probes(self, t):
        return (LabelCounts(),)

    def combine(self, t: int, model: torch.Tensor, replies: covey.Replies) -> torch.Tensor:
        weights = replies.probes["label counts"]["count"].to(model.dtype)
        self.weights = weights
        return (weights / weights.sum()).to(replies.states) @ replies.states

    def figures(self):
        return {"weights": self.weights.tolist()}


OWN: dict[str, Any] = {"selector": "test-widest", "aggregator": "test-by labels"}


@covey.runtimes.add("test-tiny")
class TinyRuntime(covey.Runtime):
    """Clients take one full-batch gradient step; they measure nothing."""

    def __init__(self, federation: covey.Federation, module: torch.nn.Module, config: covey.Config) -> None:
        self.federation, self.module = federation, module
        self.layout = covey.Layout.of(module)

    def available(self, t):
        return np.arange(self.federation.clients)

    def execute(self, order: covey.Order) -> covey.Replies:
        states, losses = [], []
        for position, client in enumerate(order.clients.tolist()):
            samples = self.federation.samples(client)
            state = order.start_of(position).clone()
            loss = self.loss(state, samples)
            gradients = torch.autograd.grad(loss, list(self.module.parameters()))
            for slot, gradient in zip(self.layout.parameters, gradients, strict=True):
                slot.of(state).sub_(order.work.rate * gradient)
            states.append(state)
            losses.append(loss.item())
        return covey.Replies(
            clients=order.clients,
            states=torch.stack(states),
            samples=torch.from_numpy(self.federation.sizes[order.clients]),
            losses=torch.tensor(losses, dtype=torch.float64),
        )

    def evaluate(self, states: torch.Tensor) -> covey.Scores:
        dataset = self.federation.dataset
        test = covey.Samples(dataset.test_x, dataset.test_y)
        losses = [self.loss(state, test).item() for state in states]
        correct = np.stack([self.correct(state, test) for state in states])
        return covey.Scores(np.array(losses), correct, np.bincount(test.y.numpy(), minlength=dataset.classes))

    def loss(self, state: torch.Tensor, samples: covey.Samples) -> torch.Tensor:
        return F.cross_entropy(self.logits(state, samples), samples.y)

    def correct(self, state: torch.Tensor, samples: covey.Samples) -> np.ndarray:
        right = samples.y[self.logits(state, samples).argmax(dim=1) == samples.y]
        return np.bincount(right.numpy(), minlength=self.federation.dataset.classes)

    def logits(self, state: torch.Tensor, samples: covey.Samples) -> torch.Tensor:
        dataset = self.federation.dataset
        self.layout.bind(self.module, state)
        logits: torch.Tensor = self.module((samples.x.float() - dataset.mean[0]) / dataset.deviation[0])
        return logits


def test_the_package_lists_its_public_names():
    assert dir(covey) == sorted([*covey.__all__, "__version__"])
    assert all(getattr(covey, name) is not None for name in dir(covey))


@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_a_users_selector_aggregator_and_probes_run_on_every_runtime(tmp_path, runtime):
    run = covey.run({**SMALL, **OWN}, runtime=runtime, out=tmp_path / "run")
    first, second = run.metrics
    assert first["clients"] == second["clients"]
    assert len(first["clients"]) == 3
    assert set(first["probe_bytes"]) == {"spread", "label counts"}
    assert set(second["probe_bytes"]) == {"label counts"}
    assert all(1 <= count <= 10 for count in first["figures"]["weights"])
    assert not first["dropped"]


def test_a_users_parts_do_the_same_on_both_runtimes(tmp_path):
    local, stacked = (covey.run({**SMALL, **OWN}, runtime=name, out=tmp_path / name) for name in ("local", "stacked"))
    for mine, theirs in zip(local.metrics, stacked.metrics, strict=True):
        for name in ("clients", "figures", "bytes_up", "bytes_down", "probe_bytes"):
            assert mine[name] == theirs[name]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_a_users_runtime_executes_covey_methods(tmp_path):
    run = covey.run(
        {**SMALL, "rounds": 10, "local.rate": 0.5}, method="fedavg", runtime="test-tiny", out=tmp_path / "run"
    )
    losses = [row["loss"] for row in run.metrics]
    assert losses[-1] < losses[0]
    assert [len(row["clients"]) for row in run.metrics] == [3] * 10


def test_a_users_recipe_is_a_method(tmp_path, monkeypatch):
    assert "fedavg" in covey.methods.names()
    # Other tests go through all methods, which this one must not be among.
    monkeypatch.setattr(covey.methods, "_entries", dict(covey.methods._entries))
    covey.methods.add("test-own")(covey.Recipe("Widest clients, weighed by labels.", **OWN))
    named = covey.run(SMALL, method="test-own", out=tmp_path / "named")
    spelled = covey.run({**SMALL, **OWN}, out=tmp_path / "spelled")
    assert [row["loss"] for row in named.metrics] == [row["loss"] for row in spelled.metrics]
