"""The FedACS paper's claims about its own mechanism, on real runs: figures 4, 8, 9 and 10 and the overhead."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import covey
from covey.core.build import build_federation
from covey.probe.insight import vectors
from covey.registries import selectors
from covey.selection import FedACS
from covey.selection.fedacs import skewness_scores

ROUNDS = 120
GIVEN = {
    "clients": 200,
    "cohort": 10,
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "environment": {"name": "uniform", "samples": 60},
    "local": {"epochs": 1, "batch": 20, "rate": 0.05},
}
SEEDS = (0, 1, 2)


@selectors.add("test-watching-fedacs")
class Watching(FedACS):
    """FedACS that records its observations."""

    seen: list[tuple[np.ndarray, np.ndarray]] = []  # noqa: RUF012

    def observe(self, t, replies):
        rewards = -skewness_scores(vectors(replies.probes["insight"]), replies.samples)
        self.seen.append((replies.clients, rewards))
        super().observe(t, replies)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fedacs")
    return [covey.run(GIVEN, method="fedacs", seed=seed, out=folder / str(seed)) for seed in SEEDS]


def skew(run, begin, end=ROUNDS):
    return np.mean([row["cohort_skew"] for row in run.metrics[begin:end]])


@pytest.mark.slow
def test_rewards_fall_with_the_true_skew_under_uniform_selection(tmp_path):
    """Figure 4(b): within a round, more skewed clients have lower rewards."""
    Watching.seen.clear()
    given = {**GIVEN, "rounds": 40}
    covey.run(given, selector={"name": "test-watching-fedacs", "pool": 1.0}, out=tmp_path / "run", workers=1)
    alpha = build_federation(covey.Config.of(given)).truth.skew
    within = [spearmanr(rewards, alpha[clients]).statistic for clients, rewards in Watching.seen]
    assert len(within) == 40
    assert np.mean(within) < -0.6


@pytest.mark.slow
def test_participants_become_less_skewed_and_stay_so(runs):
    """Figure 8: from the federation's mean of about a half to near the pool's 0.2."""
    assert np.mean([skew(run, 0, 10) for run in runs]) == pytest.approx(0.5, abs=0.06)
    assert np.mean([skew(run, 40, 80) for run in runs]) < 0.32
    assert np.mean([skew(run, 80) for run in runs]) < 0.32


def test_participation_concentrates_on_the_least_skewed(runs):
    """Figure 9: the λN clients of least skew take most places; under uniform selection they would take λ."""
    for run in runs:
        alpha = build_federation(run.config).truth.skew
        least = set(np.argsort(alpha)[:80].tolist())
        invited = [client for row in run.metrics[40:] for client in row["clients"]]
        assert np.mean([client in least for client in invited]) > 0.65


def stops_early(whole, folder):
    """Figure 10: the bandit has learned enough in the first rounds."""
    given = {**GIVEN, "method": "fedacs", "seed": whole.config.seed, "selector": {"early_stop": 60}}
    stopped = covey.run(given, out=folder)
    before = [[row["clients"] for row in run.metrics[:60]] for run in (whole, stopped)]
    assert before[0] == before[1]
    assert all(row["probe_bytes"] for row in stopped.metrics[:60])
    assert not any(row["probe_bytes"] for row in stopped.metrics[60:])
    assert skew(stopped, 60) == pytest.approx(skew(whole, 60), abs=0.05)


@pytest.mark.slow
def test_an_early_stop_changes_nothing_before_it_and_little_after(runs, tmp_path):
    stops_early(runs[0], tmp_path / "stopped")


@pytest.mark.proof
def test_an_early_stop_does_so_on_other_seeds_too(runs, tmp_path):
    for number, whole in enumerate(runs[1:]):
        stops_early(whole, tmp_path / str(number))


@pytest.mark.slow
def test_the_insight_is_850_of_124012_floats_and_a_fifth_of_that_with_early_stop(tmp_path):
    """Section VII-D with the true numbers of the tutorial CNN: 0.69 % and 0.14 % of a round's traffic."""
    given = {
        "method": "fedacs",
        "dataset": {"name": "synthetic", "shape": (3, 32, 32), "train": 200, "test": 20},
        "environment": {"name": "uniform", "samples": 10},
        "model": "tutorial-cnn",
        "clients": 20,
        "cohort": 4,
        "rounds": 10,
        "local": {"epochs": 1, "batch": 10},
    }
    for early_stop, share in ((None, 850 / (2 * 62_006)), (2, 850 / (2 * 62_006) / 5)):
        run = covey.run(given, selector={"early_stop": early_stop}, out=tmp_path / str(early_stop))
        plain = covey.run({**given, "method": "fedavg"}, out=tmp_path / f"plain-{early_stop}")
        insight = sum(row["probe_bytes"].get("insight", 0) for row in run.metrics)
        models = sum(row["bytes_up"] + row["bytes_down"] for row in plain.metrics)
        assert insight == 850 * 4 * 4 * (early_stop or 10)
        assert insight / models == pytest.approx(share, rel=0.01)
        extra = sum(row["bytes_up"] for row in run.metrics) - sum(row["bytes_up"] for row in plain.metrics)
        # The bytes on the wire are the insight and its two entries in the header of each reply.
        assert insight < extra < 1.06 * insight


@pytest.mark.slow
def test_fedacs_leaves_poisoned_clients_out_where_loss_driven_selection_invites_them(tmp_path):
    given = {**GIVEN, "rounds": 120, "altered": {"poison": 0.2}, "environment": {"name": "uniform", "samples": 60}}
    shares = {}
    methods: dict[str, dict[str, Any]] = {
        "fedacs": {"method": "fedacs"},
        "oort": {"method": "oort-simple", "selector": {"ban": 0}},
    }
    for name, more in methods.items():
        run = covey.run({**given, **more}, out=tmp_path / name)
        altered = build_federation(run.config).altered
        assert altered is not None
        invited = [client for row in run.metrics[80:] for client in row["clients"]]
        shares[name] = np.mean([altered.poisoned[client] for client in invited])
    assert shares["fedacs"] < 0.1
    assert shares["oort"] > 0.3
