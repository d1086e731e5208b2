"""Rexp3 on FedACS's rewards."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from covey import Refusal, resume, run
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.model.layout import Layout, Slot
from covey.probe.insight import Insight
from covey.selection.fedacs import skewness_scores
from covey.selection.rexp3 import Rexp3, tuned
from tests.conftest import SMALL, saved_state, without_timings

LAYOUT = Layout((Slot("head", (1,), 0),), (), (Slot("head", (1,), 0),))


def begun(clients=10, cohort=2, rounds=1000, seed=0, **options) -> Rexp3:
    selector = Rexp3(**options)
    selector.begin(Setting(clients, cohort, rounds, 10, seed, LAYOUT, Local(rate=0.25)))
    return selector


def replies(clients, insights, samples=None) -> Replies:
    count = len(clients)
    return Replies(
        np.array(clients),
        torch.zeros(count, 1),
        torch.tensor(samples or [1] * count),
        torch.zeros(count, dtype=torch.float64),
        {"insight": {"weight": torch.tensor(insights, dtype=torch.float32)}},
    )


def invitation_rates(selector: Rexp3, rounds, best) -> np.ndarray:
    """Return the share of rounds that each client is invited to, if clients in `best(t)` have reward 1, others 0."""
    clients = selector.setting.clients
    counts = np.zeros(clients)
    for t in rounds:
        chosen = selector.select(t, np.arange(clients))
        counts[chosen] += 1
        selector.learn(t, chosen, np.isin(chosen, best(t)).astype(float))
    return counts / len(rounds)


# --- formulas


def test_everybody_is_as_likely_at_the_start():
    assert begun(8).probabilities() == pytest.approx([1 / 8] * 8)


def test_probabilities_mix_the_weights_with_the_uniform_law():
    selector = begun(4, exploration=0.2)
    selector.log_weights[:] = np.log([1.0, 2.0, 3.0, 4.0])
    assert selector.probabilities() == pytest.approx([0.05 + 0.8 * share for share in (0.1, 0.2, 0.3, 0.4)])


def test_a_reward_raises_the_weight_by_its_estimate():
    selector = begun(4, exploration=0.2)
    selector.log_weights[:] = np.log([1.0, 2.0, 3.0, 4.0])
    before = selector.log_weights.copy()
    selector.learn(1, np.array([0, 2, 3]), np.array([-3.0, -1.0, -2.0]))
    # Scaled to 0, 1 and 1/2, and divided by p = 0.13, 0.29, 0.37.
    expected = [0.0, 0.0, 0.2 * 1 / 0.29 / 4, 0.2 * 0.5 / 0.37 / 4]
    assert selector.log_weights - before == pytest.approx(expected, rel=1e-12)


def test_a_reward_is_divided_by_the_chance_among_those_in_reach():
    everyone, some = begun(exploration=0.4), begun(exploration=0.4)
    everyone.select(1, np.arange(10))
    some.select(1, np.array([2, 5, 7, 9]))
    for selector in (everyone, some):
        selector.learn(1, np.array([2, 5]), np.array([0.0, 1.0]))
    # With all weights 1, each of the four is drawn with 1/4, and each of all ten with 1/10.
    assert everyone.log_weights[5] == pytest.approx(0.4 / (0.1 * 10))
    assert some.log_weights[5] == pytest.approx(0.4 / (0.25 * 10))


def test_rewards_are_scaled_by_the_least_and_the_greatest_of_the_batch_so_far():
    selector = begun(4)
    selector.learn(1, np.array([0, 1]), np.array([-10.0, 0.0]))
    selector.learn(2, np.array([2, 3]), np.array([-5.0, -2.5]))
    # Clients 2 and 3 had the same chance, and rewards of 1/2 and 3/4.
    assert selector.log_weights[3] == pytest.approx(1.5 * selector.log_weights[2])
    assert (selector.least, selector.greatest) == (-10.0, 0.0)


def test_equal_rewards_say_that_nobody_is_better():
    selector = begun(4)
    selector.learn(1, np.array([0, 1]), np.array([-2.0, -2.0]))
    assert selector.log_weights == pytest.approx([0.2 * 0.5 * 4 / 4] * 2 + [0.0] * 2)


def test_rewards_are_fedacs_rewards():
    insights, samples = [[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]], [10, 20, 30]
    selector, by_hand = begun(6, 3), begun(6, 3)
    selector.observe(1, replies([0, 3, 5], insights, samples))
    scores = skewness_scores(torch.tensor(insights), torch.tensor(samples))
    by_hand.learn(1, np.array([0, 3, 5]), -scores)
    assert selector.log_weights.tolist() == by_hand.log_weights.tolist()
    assert selector.log_weights.argmax() == [0, 3, 5][int(scores.argmin())]
    (probe,) = selector.probes(1)
    assert isinstance(probe, Insight) and probe.rate == 0.25


def test_clients_without_an_insight_are_left_as_they_were():
    selector = begun(6, 3)
    selector.observe(1, replies([0, 3, 5], [[1.0], [math.nan], [2.0]]))
    # One insight alone lies on its own mean.
    selector.observe(2, replies([1, 2], [[1.0], [math.nan]]))
    assert np.flatnonzero(selector.log_weights).tolist() == [0, 5]
    selector.observe(3, replies([], np.empty((0, 1))))


def test_the_theory_sets_batch_and_exploration():
    assert tuned(200, 1000, 1.0)[0] == 1020
    assert tuned(200, 1000, 1.0)[1] == pytest.approx(0.78, abs=0.005)
    assert tuned(200, 1000, 10.0) == (220, 1.0)
    selector = begun(10, rounds=400, variation=2.0)
    arms = 10 * math.log(10)
    assert selector.batch == math.ceil(arms ** (1 / 3) * 200 ** (2 / 3))
    assert selector.exploration == pytest.approx(math.sqrt(arms / ((math.e - 1) * selector.batch)))
    assert begun(1, 1, variation=1.0).select(1, np.array([0])).tolist() == [0]


# --- behaviour


def test_it_concentrates_on_the_best_clients_of_a_game_that_stays_the_same():
    selector = begun(10, 2)
    early = invitation_rates(selector, range(1, 201), lambda t: [4])
    late = invitation_rates(selector, range(201, 251), lambda t: [4])
    assert early[4] > 2 * np.delete(early, 4).max()
    assert late[4] > 0.8
    assert selector.probabilities().argmax() == 4


def test_it_recovers_from_a_change_because_it_restarts():
    def best(t: int) -> list[int]:
        return [4] if t <= 500 else [7]

    restarting, persistent = begun(10, 1, batch=500), begun(10, 1, batch=10_000)
    for selector in (restarting, persistent):
        invitation_rates(selector, range(1, 501), best)
        assert selector.probabilities()[4] > 0.7
    adapted, stuck = (invitation_rates(one, range(501, 651), best)[7] for one in (restarting, persistent))
    assert adapted > 2 * stuck
    assert restarting.probabilities().argmax() == 7
    assert persistent.probabilities().argmax() == 4


def test_weights_are_forgotten_at_the_start_of_every_batch():
    selector = begun(6, 2, batch=5)
    uniform = []
    for t in range(1, 17):
        selector.select(t, np.arange(6))
        uniform.append(bool(np.ptp(selector.probabilities()) == 0))
        selector.learn(t, np.array([0, 1]), np.array([0.0, 1.0]))
    assert [t for t, flat in enumerate(uniform, start=1) if flat] == [1, 6, 11, 16]


def test_probabilities_stay_a_law_however_long_a_batch_lasts():
    selector = begun(5, 1)
    for t in range(1, 251):
        selector.learn(t, np.array([0, 1]), np.array([0.0, 1.0]))
        selector.log_weights[1] += 50
    chances = selector.probabilities()
    assert chances.sum() == pytest.approx(1)
    assert chances.min() == pytest.approx(0.2 / 5)
    assert chances[1] == pytest.approx(0.8 + 0.04)


def test_cohorts_are_different_clients_of_those_in_reach():
    selector = begun(10, 4)
    selector.log_weights[3] = 1e6
    for t in range(1, 50):
        reachable = np.array([1, 3, 5, 7, 8])
        chosen = selector.select(t, reachable).tolist()
        assert len(set(chosen)) == 4 and set(chosen) <= set(reachable.tolist())
    assert sorted(selector.select(50, np.array([2, 9])).tolist()) == [2, 9]


def test_clients_are_drawn_first_by_their_probability():
    selector = begun(4, 1, batch=10_000)
    selector.log_weights[:] = np.log([1.0, 2.0, 3.0, 4.0])
    found = np.bincount([int(selector.select(t, np.arange(4))[0]) for t in range(1, 4001)], minlength=4) / 4000
    assert found == pytest.approx(selector.probabilities(), abs=0.03)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch": 0}, "selector.batch must be at least 1 round, not 0."),
        ({"exploration": 0}, r"selector.exploration is a fraction in \(0, 1\], not 0."),
        ({"variation": -1}, "selector.variation must be above 0, not -1."),
        ({"variation": 1001}, "selector.variation = 1001 is more than rewards .* give at most 1000."),
        ({"insight": "tail"}, "insight is head, full, or a function of yours"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        begun(**options)


# --- in runs


def test_a_selector_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(tmp_path):
    def play(selector, rounds):
        for t in rounds:
            chosen = selector.select(t, np.arange(10))
            # The least and the greatest reward come early.
            selector.learn(t, chosen, -(chosen + 1.0) / t)
        return selector.log_weights.tolist()

    whole, first, second = begun(batch=30), begun(batch=30), begun(batch=30)
    play(first, range(1, 48))
    write_checkpoint(tmp_path, 47, first.state_dict())
    second.load_state_dict(saved_state(tmp_path))
    assert play(second, range(48, 58)) == play(whole, range(1, 58))


def test_a_run_that_is_cut_off_and_resumed_is_the_whole_run(tmp_path):
    settings: dict[str, Any] = {
        "selector": {"name": "rexp3", "batch": 5},
        "devices": {"dropout": 0.2, "availability": 0.8},
    }
    whole = run(SMALL, rounds=8, out=tmp_path / "whole", **settings)

    def stop(record):
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SMALL, rounds=8, out=tmp_path / "cut", on_round=stop, **settings)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    assert all(row["probe_bytes"]["insight"] > 0 for row in whole.metrics)
