"""Places in a cohort carry nothing that FedDRL's agent could use: other places at inference change nothing.

Forty clients, ten of them in a round; most hold the same classes. If agents knew the group by the place, the difference
in weight between the groups would be gone, or another, once the places of a round are drawn anew.
"""

import numpy as np
import pytest

import covey
from covey.aggregation import impact_factors
from covey.environment.partition import client_order
from covey.job.agent_training import Offline, train_agent
from covey.job.comparison.statistics import Estimate
from covey.randomness import generator

SEEDS, CLIENTS, MAIN = range(6), 40, 24
GIVEN = {
    "dataset": "digits",
    "environment": {"name": "clustered-equal", "delta": MAIN / CLIENTS, "groups": "overlapping"},
    "clients": CLIENTS,
    "cohort": 10,
    "rounds": 40,
    "workers": 1,
    "evaluate_every": 40,
    "local": {"epochs": 1, "batch": 10, "rate": 0.05},
}
AGENT = {"name": "feddrl", "order": "paper", "hidden": 64, "discount": 0.0, "noise": 0.5, "reversion": 1.0}


def preference(run: covey.Run) -> float:
    """By how much a client outside the main group weighs more than one inside it, in shares of the mean."""
    main = client_order(CLIENTS, run.config.seed, run.config.numbering) < MAIN
    inside: list[float] = []
    outside: list[float] = []
    for row in run.metrics:
        for client, factor in row["figures"]["impact_factors"].items():
            (inside if main[int(client)] else outside).append(factor * 10)
    return float(np.mean(outside) - np.mean(inside))


def test_other_places_at_inference_leave_the_weights_of_the_groups_as_they_are(tmp_path, monkeypatch):
    usual, reshuffled = [], []
    for seed in SEEDS:
        given = {**GIVEN, "seed": seed, "aggregator": AGENT}
        path = train_agent(given, rounds=60, out=tmp_path / f"{seed}.safetensors", offline=Offline(epochs=20))
        decided = {**given, "aggregator": {**AGENT, "agent": str(path), "learn": False}}
        usual.append(preference(covey.run(decided, out=tmp_path / f"usual{seed}")))
        with monkeypatch.context() as patch:
            patch.setattr(impact_factors, "generator", lambda *key: generator(*key, "drawn anew"))
            reshuffled.append(preference(covey.run(decided, out=tmp_path / f"reshuffled{seed}")))
    change = Estimate.of([mine - theirs for mine, theirs in zip(reshuffled, usual, strict=True)])
    assert change.low is not None
    assert change.high is not None
    assert change.low < 0 < change.high
    assert abs(change.mean) < 0.05


@pytest.mark.parametrize("numbering", ["shuffled", "environment"])
def test_the_measure_sees_agents_that_know_the_group_by_its_place(numbering, tmp_path, monkeypatch):
    """With clients in the environment's order, and places by number, weights by place are weights by group."""

    def by_place(self, t, reports, device):
        weights = np.where(np.arange(10) < 5, 0.05, 0.15) * reports.usable
        return weights / weights.sum()

    monkeypatch.setattr("covey.aggregation.feddrl.FedDRL.impact_factors", by_place)
    found = [
        preference(covey.run(GIVEN, seed=seed, numbering=numbering, aggregator=AGENT, out=tmp_path / f"{seed}"))
        for seed in SEEDS
    ]
    assert (np.mean(found) > 0.5) == (numbering == "environment")
