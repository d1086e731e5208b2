"""Skew estimated from the directions of clients' updates."""

from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.model.layout import Layout, Slot
from covey.selection.fedacs import FedACS
from covey.selection.rexp3 import Rexp3
from covey.selection.update_insight import direction_scores, update_directions

HEAD = (Slot("head.weight", (2,), 1), Slot("head.bias", (1,), 3))
LAYOUT = Layout((Slot("body", (1,), 0), *HEAD), (), HEAD)
START = torch.tensor([5.0, 1.0, 1.0, 1.0])


def replies(updates: list[list[float]], samples: list[int] | None = None) -> Replies:
    """Replies of clients whose last layers have these updates; bodies are all different."""
    heads = torch.tensor(updates) + START[1:]
    bodies = torch.arange(len(updates), dtype=torch.float32)[:, None]
    counts = torch.tensor(samples or [1] * len(updates))
    losses = torch.zeros(len(updates), dtype=torch.float64)
    return Replies(np.arange(len(updates)), torch.cat([bodies, heads], dim=1), counts, losses)


def test_updates_count_by_their_direction_alone():
    clients, samples, fields = update_directions(replies([[3, 0, 4], [30, 0, 40], [0, 2, 0]], [1, 2, 3]), START, LAYOUT)
    assert clients.tolist() == [0, 1, 2]
    assert samples.tolist() == [1, 2, 3]
    directions = torch.cat(list(fields.values()), dim=1)
    assert directions.tolist() == [[0.6, 0.0, 0.8], [0.6, 0.0, 0.8], [0.0, 1.0, 0.0]]
    # The mean weighs 1 : 2 : 3 and is (0.3, 0.5, 0.4).
    near, far = np.sqrt(0.3**2 + 0.5**2 + 0.4**2), np.sqrt(0.3**2 + 0.5**2 + 0.4**2)
    assert direction_scores(directions, samples) == pytest.approx([near, near, far])
    plain = direction_scores(directions, samples, weighted=False)
    assert plain[0] == plain[1] < plain[2]


def test_a_client_that_kept_its_model_or_did_not_move_takes_no_part():
    nan = float("nan")
    clients, _, _ = update_directions(replies([[1, 0, 0], [nan, nan, nan], [0, 0, 0], [0, 1, 0]]), START, LAYOUT)
    assert clients.tolist() == [0, 3]
    assert not len(update_directions(replies([[1, 0, 0], [0, 0, 0]]), START, LAYOUT)[0])


@pytest.mark.parametrize("kind", [FedACS, Rexp3])
def test_nothing_is_asked_of_clients_and_those_near_the_mean_gain(kind):
    options = {"pool": 1.0} if kind is FedACS else {}
    selector = kind(insight="update", **options)
    selector.begin(Setting(4, 4, 10, 3, 0, LAYOUT, Local()))
    assert selector.probes(1) == ()
    selector.select(1, np.arange(4))
    selector.sent(1, START)
    selector.observe(1, replies([[1, 0, 0], [9, 0.1, 0], [1, -0.1, 0], [0, 0, 7]]))
    good = selector.wins - selector.losses if isinstance(selector, FedACS) else selector.log_weights
    assert good.argmin() == 3


SETTINGS: dict[str, Any] = {
    "clients": 30,
    "cohort": 6,
    "rounds": 24,
    "workers": 1,
    "seed": 2,
    "environment": {"name": "uniform", "samples": 60},
    "local": {"epochs": 3},
    "evaluate_every": 24,
}


def test_fedacs_finds_clients_with_little_skew_and_pays_nothing_for_it(tmp_path):
    chosen = {"name": "fedacs", "insight": "update"}
    runs = {
        str(name): covey.run({**SETTINGS, "selector": selector}, out=tmp_path / str(name)).metrics
        for name, selector in (("update", chosen), ("uniform", "uniform"))
    }
    skew = {name: np.mean([row["cohort_skew"] for row in rows[12:]]) for name, rows in runs.items()}
    assert skew["update"] < skew["uniform"] - 0.1
    assert {row["bytes_up"] for row in runs["update"]} == {row["bytes_up"] for row in runs["uniform"]}


def test_it_goes_with_clients_that_keep_their_models(tmp_path):
    settings = {
        **SETTINGS,
        "rounds": 6,
        "selector": {"name": "fedacs", "insight": "update"},
        "aggregator": {"name": "cmfl", "threshold": 0.9},
    }
    whole = covey.run(settings, out=tmp_path / "whole").metrics
    assert any(row["withheld"] for row in whole)
    assert all(row["clients"] for row in whole)
