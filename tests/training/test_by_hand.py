"""SCAFFOLD, FedDyn and MOON on cases small enough for pencil and paper.

Client k has the objective (w - a_k)²/2 of one number w, whose gradient is w - a_k, and takes two steps of rate 1/2. So
A = 1, and without a correction w moves to (w + a_k)/2 twice.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.replies import TRAINER, Replies
from covey.core.trainer import Batch, LocalClient, Output, Trainer
from covey.model.layout import Layout, Slot
from covey.training.feddyn import FedDyn
from covey.training.moon import Moon
from covey.training.scaffold import Scaffold

SLOT = (Slot("w", (1,), 0),)
SETTING = Setting(4, 2, 2, 10, 0, Layout(SLOT, (), SLOT), Local(epochs=2, batch=0, rate=0.5))
CENTRES = (0.0, 4.0, 2.0)
BATCH = Batch(*(torch.zeros(1, dtype=torch.float64) for _ in Batch._fields))


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


class Quadratic:
    """The objective of one client."""

    def __init__(self, centre: float) -> None:
        self.centre = centre

    def gradient(self, w: dict[str, Tensor], batch: Batch, loss: Any = None) -> dict[str, Tensor]:
        return {"w": w["w"] - self.centre}


class Rounds:
    """A server and its clients, which visit by turns."""

    def __init__(self, trainer: Trainer, setting: Setting = SETTING) -> None:
        self.trainer = trainer
        self.trainer.begin(setting)
        self.model = number(8.0)
        self.kept: dict[int, tuple[int, dict[str, Any]]] = {}

    def visit(self, t: int, client: int, sent: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        last, kept = self.kept.get(client, (t, {name: {"w": number(0.0)} for name in self.trainer.kept}))
        told = LocalClient(
            {"w": self.model},
            sent,
            kept,
            age=torch.tensor(t - last),
            samples=number(1.0),
            steps=number(2.0),
            length=number(1.0),
            class_counts=torch.ones(10),
        )
        w, carry = {"w": self.model}, self.trainer.client_init(told)
        for _ in range(2):
            gradient, carry = self.trainer.client_step(w, BATCH, told, carry, Quadratic(CENTRES[client]))  # type: ignore[arg-type]
            w = {"w": w["w"] - 0.5 * gradient["w"]}
        replied, kept = self.trainer.client_final(w, told, carry)
        self.kept[client] = (t, kept)
        return w["w"], replied

    def round(self, t: int, *cohort: int) -> list[float]:
        """Have clients train and the server aggregate; return the models that they trained."""
        sent: dict[str, Any] = {name: {"w": value} for name, value in self.trainer.send(t, self.model).items()}
        found = [self.visit(t, client, sent) for client in cohort]
        states = torch.stack([w for w, _ in found])
        answered = {name: torch.stack([reply[name] for _, reply in found])[:, 0] for name in self.trainer.replied}
        ones = torch.ones(len(cohort), dtype=torch.float64)
        replies = Replies(np.array(cohort), states, ones.long(), ones, {TRAINER: answered} if answered else {})
        self.model = self.trainer.finish(t, self.model, states.mean(dim=0), replies)
        return [float(w) for w in states]

    def values(self, name: str) -> dict[int, float]:
        return {client: float(kept[name]["w"]) for client, (_, kept) in sorted(self.kept.items())}


@pytest.mark.parametrize(
    ("mean", "c1", "second", "own", "c2"),
    [
        # c = (6 + 3)/2. Client 0 is corrected by 4.5 - 6, client 2 on its first visit by nothing.
        ("seen", 4.5, [2.0, 2.375], {0: 3.0, 1: 3.0, 2: 1.125}, 7.125 / 3),
        # c = (6 + 3 + 0 + 0)/4. Client 0 is corrected by 2.25 - 6, client 2 by 2.25.
        ("all", 2.25, [3.6875, 0.6875], {0: 3.5625, 1: 3.0, 2: 0.5625}, 7.125 / 4),
    ],
)
def test_scaffold_by_hand(mean: Any, c1: float, second: list[float], own: dict[int, float], c2: float) -> None:
    rounds = Rounds(Scaffold(mean=mean))
    # From 8: 4, 2 and 6, 5. The gradients' means are 6 = (8 - 2)/1 and 3 = (8 - 5)/1.
    assert rounds.round(1, 0, 1) == [2.0, 5.0]
    assert rounds.values("c") == {0: 6.0, 1: 3.0}
    assert float(rounds.model) == 3.5
    assert float(rounds.trainer.send(2, rounds.model)["c"]) == c1
    assert rounds.round(2, 0, 2) == second
    assert rounds.values("c") == own
    assert float(rounds.model) == sum(second) / 2
    assert float(rounds.trainer.send(3, rounds.model)["c"]) == pytest.approx(c2, rel=1e-14)


@pytest.mark.parametrize(
    ("leak", "uniform", "stays"), [(0.0, False, 1.0), (None, True, 1.0), (None, False, 0.5), (0.25, True, 0.75)]
)
def test_feddyn_by_hand(leak: float | None, uniform: bool, stays: float) -> None:
    """By default h loses the cohort's share of the clients, here a half, unless all are invited alike."""
    rounds = Rounds(FedDyn(alpha=0.5, leak=leak), replace(SETTING, uniform_selection=uniform))
    # From 8 with a pull of 1/2: 4, then 4 - (4 - 2)/2; and 6, then 6 - (2 - 1)/2.
    assert rounds.round(1, 0, 1) == [3.0, 5.5]
    assert rounds.values("gradient") == {0: 2.5, 1: 1.25}
    # h = (5 + 2.5)/2/4, over all four clients; the model is 4.25 - 2h.
    assert float(rounds.model) == 4.25 - 2 * 0.9375
    # Client 0 from 2.375, its own gradient 2.5 taken off: steps along -0.125 and -0.0625 + 0.03125.
    assert rounds.round(2, 0, 2) == [2.453125, 2.140625]
    assert rounds.values("gradient") == {0: 2.5 - 0.5 * 0.078125, 1: 1.25, 2: 0.5 * 0.234375}
    h = stays * 0.9375 - 0.5 * (0.078125 - 0.234375) / 4
    assert float(rounds.model) == 2.296875 - 2 * h


def test_feddyn_leaves_buffers_to_the_aggregator() -> None:
    trainer, buffer = FedDyn(alpha=0.5), Slot("running_mean", (1,), 1)
    trainer.begin(replace(SETTING, layout=Layout(SLOT, (buffer,), (*SLOT, buffer)), uniform_selection=True))
    model = torch.tensor([8.0, 1.0], dtype=torch.float64)
    states = torch.tensor([[3.0, 5.0], [5.5, 9.0]], dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    found = trainer.finish(1, model, states.mean(dim=0), Replies(np.array([0, 1]), states, ones.long(), ones))
    # As above, and the mean of the buffers.
    assert found.tolist() == [4.25 - 2 * 0.9375, 7.0]


class Told:
    """A net with features that are given, which notes the loss that it is asked to differentiate."""

    def __init__(self, features: dict[str, Tensor]) -> None:
        self.of_model = features
        self.loss: Any = None

    def features(self, w: dict[str, Tensor], batch: Batch) -> Tensor:
        return self.of_model[next(name for name in self.of_model if name in w)]

    def losses(self, output: Output, y: Tensor) -> Tensor:
        return F.cross_entropy(output.logits, y, reduction="none")

    def gradient(self, w: Any, batch: Batch, loss: Any) -> Any:
        self.loss = loss
        return w


@pytest.mark.parametrize(("age", "contrast"), [(3, 2.0 * math.log(1 + math.exp(-2.0))), (0, 0.0)])
def test_moon_by_hand(age: int, contrast: float) -> None:
    """Features like the received model's and unlike the last one's: similarities of 1 and 0, over τ = 1/2."""
    received, last = {"received": number(1.0)}, {"last": number(2.0)}
    net = Told({"received": torch.tensor([[3.0, 0.0]]), "last": torch.tensor([[0.0, 5.0]])})
    moon = Moon(mu=2.0, temperature=0.5)
    told: Any = LocalClient(received, {}, {"model": last}, torch.tensor(age), *(torch.ones(1) for _ in range(4)))
    moon.client_step(received, BATCH, told, {}, net)  # type: ignore[arg-type]
    found = net.loss(Output(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]])), torch.tensor([0]))
    # The cross-entropy of two equal logits is log 2.
    assert float(found) == pytest.approx(math.log(2) + contrast, rel=1e-6)
    assert moon.client_final({"w": number(7.0)}, told, {}) == ({}, {"model": {"w": number(7.0)}})
