"""FedACS's bandit: scores, duels and cohorts."""

import time
import tracemalloc
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import trapezoid

import covey.selection.fedacs
from covey import Refusal, run
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.model.layout import Layout, Slot
from covey.probe.insight import Insight
from covey.registries import selectors
from covey.selection import Uniform
from covey.selection.fedacs import FedACS, literal_pool, quick_pool, skewness_scores
from tests.conftest import SMALL, saved_state

LAYOUT = Layout((Slot("body", (2,), 0), Slot("head", (1,), 2)), (), (Slot("head", (1,), 2),))


def begun(clients=6, cohort=3, seed=0, **options) -> FedACS:
    selector = FedACS(**{"pool": 1.0, **options})
    selector.begin(Setting(clients, cohort, 100, 10, seed, LAYOUT, Local(rate=0.25)))
    return selector


def replies(clients, insights, samples=None, bias=None) -> Replies:
    """Replies of clients `[k]` with insights `[k, h]` (and `[k, b]` for the bias)."""
    count = len(clients)
    fields = {"weight": torch.tensor(insights, dtype=torch.float32)}
    if bias is not None:
        fields["bias"] = torch.tensor(bias, dtype=torch.float32)
    counts = torch.tensor(samples or [1] * count)
    losses = torch.zeros(count, dtype=torch.float64)
    return Replies(np.array(clients), torch.zeros(count, 3), counts, losses, {"insight": fields})


def duels(selector: FedACS) -> tuple[list[float], list[float]]:
    """Wins and losses in duels: A/η and B/η."""
    return (selector.wins / selector.step).round(9).tolist(), (selector.losses / selector.step).round(9).tolist()


def frequencies(choose, clients: int, times: int) -> np.ndarray:
    """Frequency with which each client is chosen."""
    found = np.zeros(clients)
    for _ in range(times):
        found[choose()] += 1
    return found / times


# --- scores


def test_scores_are_the_distance_to_the_weighted_mean_times_the_root_of_the_samples():
    insights = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0]])
    # The mean weighs 1 : 1 : 2 and is (0, 1.5).
    expected = [np.hypot(1, 1.5), np.hypot(1, 1.5), np.sqrt(2) * 1.5]
    assert skewness_scores(insights, torch.tensor([10, 10, 20])) == pytest.approx(np.sqrt(10) * np.array(expected))
    # The plain mean is (0, 1).
    plain = skewness_scores(insights, torch.tensor([1, 1, 2]), weighted=False)
    assert plain == pytest.approx([np.hypot(1, 1), np.hypot(1, 1), np.sqrt(2) * 2])


def test_scores_of_whole_models_are_added_up_over_blocks_of_columns(monkeypatch):
    insights, samples = torch.randn(5, 23), torch.tensor([3, 1, 4, 1, 5])
    whole = skewness_scores(insights, samples)
    monkeypatch.setattr(covey.selection.fedacs, "_COLUMNS", 4)
    assert skewness_scores(insights, samples) == pytest.approx(whole, rel=1e-12)


def rewards_of(selector: FedACS, sent: Replies) -> np.ndarray:
    selector.observe(1, sent)
    return selector.record_rewards


def test_the_reward_is_the_negative_score_of_weight_and_bias_together_or_summed_over_tensors():
    sent = replies([0, 1, 4], [[3.0, 0], [-3, 0], [0, 0]], bias=[[4.0], [-4], [0]])
    assert rewards_of(begun(), sent) == pytest.approx([-5, -5, 0])
    assert rewards_of(begun(norm="per-tensor"), sent) == pytest.approx([-7, -7, 0])


def test_the_mean_weighs_clients_by_samples_if_weighted():
    sent = replies([0, 1], [[0.0], [4.0]], samples=[1, 3])
    assert rewards_of(begun(), sent) == pytest.approx([-3, -np.sqrt(3)])
    assert rewards_of(begun(weighted=False), sent) == pytest.approx([-2, -2 * np.sqrt(3)])


def test_summing_over_tensors_takes_a_whole_models_insight_apart():
    change = torch.tensor([[3.0, 4.0, 1.0], [-3.0, -4.0, -1.0]])
    sent = replace(replies([0, 1], [[0.0]] * 2), probes={"insight": {"change": change}})
    assert rewards_of(begun(norm="per-tensor", insight="full"), sent) == pytest.approx([-6, -6])


# --- duels


def test_a_round_of_duels_by_hand():
    selector = begun()
    selector.duel(1, np.array([0, 2, 5]), np.array([-1.0, -3.0, -2.0]))
    assert duels(selector) == ([2, 0, 0, 0, 0, 1], [0, 0, 2, 0, 0, 1])


def test_later_clients_duel_with_the_records_of_earlier_rounds_which_gain_and_lose_nothing():
    selector = begun()
    selector.duel(1, np.array([0, 1]), np.array([-1.0, -4.0]))
    before = duels(selector)
    selector.duel(2, np.array([2, 3]), np.array([-2.0, -3.0]))
    wins, losses = duels(selector)
    assert (wins[:2], losses[:2]) == (before[0][:2], before[1][:2])
    # 2 loses to 0 and beats 1 and 3; 3 loses to 0 and 2 and beats 1.
    assert (wins[2:4], losses[2:4]) == ([2, 1], [1, 2])


def test_the_latest_record_of_a_client_is_the_one_that_counts():
    selector = begun()
    selector.duel(1, np.array([0, 1]), np.array([-9.0, -9.0]))
    selector.duel(2, np.array([0, 1]), np.array([-1.0, -9.0]))
    selector.duel(3, np.array([2]), np.array([-5.0]))
    # Against -1 of round 2 (not -9 of round 1) and -9.
    assert (selector.wins[2] / selector.step, selector.losses[2] / selector.step) == (1, 1)
    # A client of this round is met with this round's record.
    selector.duel(4, np.array([0, 3]), np.array([-20.0, -10.0]))
    assert selector.wins[3] / selector.step == 1  # against 0 at -20, and not at -1
    assert selector.losses[3] / selector.step == 2


def test_many_rounds_of_duels_are_algorithm_3_line_by_line():
    clients, history, step = 15, 3, 0.4
    rng = np.random.default_rng(3)
    selector = begun(clients=clients, history=history, step=step)
    wins, losses = np.zeros(clients), np.zeros(clients)
    records: dict[int, dict[int, float]] = {}
    for t in range(1, 41):
        chosen = np.sort(rng.choice(clients, size=rng.integers(1, 6), replace=False))
        rewards = dict(zip(chosen.tolist(), rng.integers(-8, 0, size=len(chosen)).astype(float), strict=True))
        against: dict[int, float] = {}
        for earlier in range(t - history, t):
            against |= records.get(earlier, {})
        against |= rewards
        for i, mine in rewards.items():
            for theirs in against.values():
                wins[i] += step * (mine > theirs)
                losses[i] += step * (mine < theirs)
        records[t] = rewards
        selector.duel(t, chosen, np.array(list(rewards.values())))
        assert selector.wins == pytest.approx(wins) and selector.losses == pytest.approx(losses)


def test_records_are_met_for_as_many_rounds_as_the_history_holds():
    for later, met in ((3, 1), (4, 0)):
        selector = begun(history=2)
        selector.duel(1, np.array([0]), np.array([-9.0]))
        selector.duel(later, np.array([1]), np.array([-1.0]))
        assert selector.wins[1] / selector.step == met
    alone = begun(history=0)
    alone.duel(1, np.array([0]), np.array([-9.0]))
    alone.duel(2, np.array([1, 2]), np.array([-1.0, -2.0]))
    assert duels(alone) == ([0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0])


def test_ties_change_nothing_even_where_rounding_breaks_them():
    selector = begun()
    selector.duel(1, np.array([0, 1, 2]), np.array([-1.0, -1.0, -1.0 - 1e-13]))
    assert not selector.wins.any() and not selector.losses.any()
    # Two clients with as many samples lie equally far from their mean.
    selector.observe(2, replies([3, 4], [[0.1, 0.7], [0.3, -0.2]]))
    assert selector.wins[3] == selector.wins[4] and selector.losses[3] == selector.losses[4]


def test_a_duel_adds_one_share_of_the_history():
    assert (begun().step, begun(history=4).step, begun(history=0).step, begun(step=0.7).step) == (0.2, 0.25, 1, 0.7)
    selector = begun()
    selector.duel(1, np.array([0, 1, 2]), np.array([-1.0, -2.0, -3.0]))
    assert selector.wins[0] == pytest.approx(0.4) and selector.losses[2] == pytest.approx(0.4)


# --- clients that are not observed


def test_clients_without_a_usable_insight_neither_duel_nor_move_the_mean():
    selector, without = begun(), begun()
    selector.observe(1, replies([0, 1, 2, 3], [[0.0], [float("nan")], [1.0], [5.0]]))
    without.observe(1, replies([0, 2, 3], [[0.0], [1.0], [5.0]]))
    assert duels(selector) == duels(without)
    assert selector.wins[1] == selector.losses[1] == 0
    assert selector.record_clients.tolist() == [0, 2, 3]


def test_an_earlier_record_stays_while_a_client_is_not_observed():
    selector = begun()
    selector.duel(1, np.array([0]), np.array([-1.0]))
    selector.observe(2, replies([0, 1, 2], [[float("inf")], [0.0], [8.0]]))
    # Client 1 and 2 both lie 4 from their mean: a tie with each other, both lose against client 0's record.
    assert duels(selector) == ([0] * 6, [0, 1, 1, 0, 0, 0])


@pytest.mark.parametrize(
    "sent", [replies([3], [[1.0]]), replies([3, 4], [[1.0], [float("nan")]]), replies([], np.empty((0, 1)))]
)
def test_a_single_insight_says_nothing(sent):
    selector = begun()
    selector.duel(1, np.array([0, 1]), np.array([-1.0, -2.0]))
    before = selector.state_dict()
    selector.observe(2, sent)
    for name, value in selector.state_dict().items():
        assert np.array_equal(value, before[name])


def test_replies_without_insights_are_no_news():
    selector = begun()
    sent = replies([0, 1], [[1.0], [2.0]])
    selector.observe(1, Replies(sent.clients, sent.states, sent.samples, sent.losses))
    assert not len(selector.record_clients) and not selector.losses.any()


def test_a_client_that_does_not_answer_counts_as_beaten_by_everyone():
    selector = begun(clients=6, cohort=6)
    selector.duel(1, np.array([0, 1]), np.array([-1.0, -1.0]))
    selector.select(2, np.arange(6))
    sent = replies([2, 3, 4], [[0.0], [0.0], [0.0]])
    selector.observe(2, replace(sent, withheld=np.array([5])))
    # Five records: of round 1 and of round 2. Client 5 has answered that it keeps its update.
    assert duels(selector)[1] == [5, 5, 0, 0, 0, 0]
    before = selector.losses.copy()
    selector.select(3, np.arange(6))
    selector.observe(3, replies([], np.empty((0, 1))))
    assert np.array_equal(selector.losses, before), "where nobody answers, it is nobody's fault"


@pytest.mark.parametrize("draws", ["literal", "once"])
def test_clients_that_never_answer_are_not_invited_for_ever(draws):
    clients, cohort, rng = 100, 10, np.random.default_rng(5)
    selector = begun(clients=clients, cohort=cohort, pool=0.4, draws=draws)
    silent = np.arange(20)
    lost = []
    for t in range(1, 121):
        chosen = np.sort(selector.select(t, np.arange(clients)))
        there = np.setdiff1d(chosen, silent)
        lost.append(cohort - len(there))
        selector.observe(t, replies(there, rng.normal(size=(len(there), 3))))
    assert np.mean(lost[:10]) > 1
    assert np.mean(lost[60:]) < 0.5


def test_the_bandit_prefers_low_skew_clients_where_only_some_can_be_reached():
    clients, cohort, rng = 100, 10, np.random.default_rng(6)
    selector = begun(clients=clients, cohort=cohort, pool=0.4)
    skew = rng.permutation(np.linspace(0, 1, clients))
    invited = []
    for t in range(1, 201):
        chosen = selector.select(t, np.sort(rng.choice(clients, size=40, replace=False)))
        selector.duel(t, np.sort(chosen), -(skew[np.sort(chosen)] + 0.1 * rng.normal(size=cohort)))
        invited.append(chosen)
    assert skew[np.concatenate(invited[100:])].mean() < 0.3  # 0.5 without selection


# --- early stop


def test_the_insight_is_taken_at_the_initial_rate():
    assert begun().probes(1) == (Insight(rate=0.25, kind="head"),)
    assert begun(insight="full").probes(1) == (Insight(rate=0.25, kind="full"),)


def test_early_stop_changes_nothing_before_and_freezes_all_after():
    stopping, going = begun(early_stop=3), begun()
    rng = np.random.default_rng(1)
    for t in range(1, 4):
        sent = replies([0, 3, 5], rng.normal(size=(3, 4)))
        assert stopping.probes(t) == going.probes(t) != ()
        stopping.observe(t, sent)
        going.observe(t, sent)
        assert duels(stopping) == duels(going)
    before = stopping.state_dict()
    assert stopping.probes(4) == () and going.probes(4) != ()
    stopping.observe(4, replies([0, 3, 5], rng.normal(size=(3, 4))))
    for name, value in stopping.state_dict().items():
        assert np.array_equal(value, before[name])


# --- the pool


def chances_of_the_highest(wins, losses) -> np.ndarray:
    """P(a client's Beta(A + 1, B + 1) is the highest of all), by integration."""
    x = np.linspace(0, 1, 4001)
    density = stats.beta(wins[:, None] + 1, losses[:, None] + 1).pdf(x)
    below = stats.beta(wins[:, None] + 1, losses[:, None] + 1).cdf(x)
    return np.array([trapezoid(density[i] * np.delete(below, i, 0).prod(0), x) for i in range(len(wins))])


def literal_chances(wins, losses, places) -> np.ndarray:
    """P(a client is in the pool) where all remaining clients draw anew for each place."""
    clients = len(wins)
    found = np.zeros(clients)
    for order in permutations(range(clients), places):
        remaining, chance = list(range(clients)), 1.0
        for client in order:
            chance *= chances_of_the_highest(wins[remaining], losses[remaining])[remaining.index(client)]
            remaining.remove(client)
        found[list(order)] += chance
    return found


def chances_of_the_upper_two(wins, losses) -> np.ndarray:
    """P(a client's only draw is among the two highest): it is the highest, or exactly one other is higher."""
    x = np.linspace(0, 1, 4001)
    density = stats.beta(wins[:, None] + 1, losses[:, None] + 1).pdf(x)
    below = stats.beta(wins[:, None] + 1, losses[:, None] + 1).cdf(x)
    found = chances_of_the_highest(wins, losses)
    for i in range(len(wins)):
        for higher in set(range(len(wins))) - {i}:
            others = np.delete(below, [i, higher], 0).prod(0)
            found[i] += trapezoid(density[i] * (1 - below[higher]) * others, x)
    return found


WINS, LOSSES = np.array([0.0, 3.0, 9.0, 1.4, 6.0]), np.array([0.0, 3.0, 6.0, 3.0, 7.0])
"""A client without a duel, three with some, and one with many."""


@pytest.mark.parametrize("pool", [literal_pool, quick_pool])
def test_a_pool_of_one_holds_whoever_is_the_best_with_that_probability(pool):
    rng = np.random.default_rng(0)
    found = frequencies(lambda: pool(rng, WINS, LOSSES, 1), 5, 20_000)
    # Four standard deviations of a frequency are at most 0.0142.
    assert found == pytest.approx(chances_of_the_highest(WINS, LOSSES), abs=0.0142)


def test_both_forms_follow_their_own_law_and_fresh_draws_favour_the_unknown():
    rng = np.random.default_rng(1)
    literal, once = literal_chances(WINS, LOSSES, 2), chances_of_the_upper_two(WINS, LOSSES)
    assert literal.sum() == pytest.approx(2, abs=1e-3) and once.sum() == pytest.approx(2, abs=1e-3)
    assert frequencies(lambda: literal_pool(rng, WINS, LOSSES, 2), 5, 20_000) == pytest.approx(literal, abs=0.0142)
    assert frequencies(lambda: quick_pool(rng, WINS, LOSSES, 2), 5, 20_000) == pytest.approx(once, abs=0.0142)
    # So these frequencies distinguish the two: the client without a duel gains most from fresh draws.
    assert (literal - once).argmax() == 0 and literal[0] - once[0] > 0.08


@pytest.mark.parametrize("pool", [literal_pool, quick_pool])
def test_clients_with_equal_records_are_in_the_pool_equally_often(pool):
    rng = np.random.default_rng(2)
    for evidence in (0.0, 2.5):
        found = frequencies(lambda evidence=evidence: pool(rng, *np.full((2, 12), evidence), 5), 12, 2000)
        assert found == pytest.approx(np.full(12, 5 / 12), abs=0.044)


@pytest.mark.parametrize("draws", ["literal", "once"])
@pytest.mark.parametrize(("candidates", "size"), [(40, 16), (20, 8), (16, 6), (9, 5), (5, 5)])
def test_the_pool_is_a_share_of_the_clients_in_reach_and_at_least_a_cohort(draws, candidates, size):
    selector = begun(clients=40, cohort=5, pool=0.4, draws=draws)
    selector.wins[::3] = 2.0
    reached = np.sort(np.random.default_rng(0).permutation(40)[:candidates])
    pool = selector.pool_of(1, reached)
    assert len(pool) == size == len(set(pool.tolist())) and set(pool.tolist()) <= set(reached.tolist())
    cohort = selector.select(1, reached)
    assert len(cohort) == 5 == len(set(cohort.tolist())) and set(cohort.tolist()) <= set(pool.tolist())


def test_fewer_reachable_clients_than_the_cohort_are_all_invited():
    assert sorted(begun(cohort=5).select(1, np.array([1, 4]))) == [1, 4]


def test_a_pool_of_everybody_is_uniform_selection():
    uniform = Uniform()
    everybody = begun(clients=30, cohort=7, seed=5)
    uniform.begin(everybody.setting)
    everybody.wins[:3] = 50
    for t in range(1, 6):
        assert np.array_equal(everybody.select(t, np.arange(30)), uniform.select(t, np.arange(30)))


def test_the_cohort_is_drawn_uniformly_from_the_pool():
    selector = begun(clients=40, cohort=4, pool=0.25)
    selector.wins[:10], selector.losses[10:] = 1e6, 1e6
    rounds = iter(range(1, 1501))
    found = frequencies(lambda: selector.select(next(rounds), np.arange(40)), 40, 1500)
    assert found == pytest.approx(np.repeat([0.4, 0.0], [10, 30]), abs=0.051)


def test_auto_draws_afresh_for_each_place_up_to_500_clients_only():
    for clients, same in ((500, "literal"), (501, "once")):
        pools = {}
        for draws in ("auto", "literal", "once"):
            selector = begun(clients=clients, cohort=5, pool=0.1, draws=draws)
            selector.wins[::2] = 3.0
            pools[draws] = selector.pool_of(1, np.arange(clients)).tolist()
        assert pools["literal"] != pools["once"]
        assert pools["auto"] == pools[same]


def test_a_million_clients_with_records_cost_a_moment_and_little_memory():
    million = 1_000_000
    selector = begun(clients=million, cohort=10, pool=0.4)
    rng = np.random.default_rng(0)
    selector.wins, selector.losses = rng.uniform(0, 30, (2, million))
    candidates = np.arange(million)
    begin = time.process_time()
    cohort = selector.select(1, candidates)
    assert time.process_time() - begin < 1.0  # 0.07 s on an idle core
    tracemalloc.start()
    selector.select(2, candidates)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    assert len(set(cohort.tolist())) == 10
    # Those who won most: 0.5 of the duels are won on average.
    pool = selector.pool_of(3, candidates)
    assert len(pool) == 400_000
    assert (selector.wins[pool] / (selector.wins + selector.losses)[pool]).mean() > 0.7


# --- behaviour


@pytest.mark.parametrize("draws", ["literal", "once"])
def test_bandit_prefers_low_skew_clients(draws):
    clients, cohort = 60, 6
    selector = begun(clients=clients, cohort=cohort, pool=0.4, draws=draws)
    rng = np.random.default_rng(4)
    skew = rng.permutation(np.linspace(0, 1, clients))
    invited = []
    for t in range(1, 151):
        chosen = np.sort(selector.select(t, np.arange(clients)))
        # Noisy rewards with a level that drifts, as in the paper's figure 4.
        selector.duel(t, chosen, -(skew[chosen] + 0.2 * rng.normal(size=cohort) + 0.3 * np.sin(t / 20)))
        invited.append(chosen)
    late = np.concatenate(invited[100:])
    assert skew[np.concatenate(invited[:5])].mean() > 0.4
    assert skew[late].mean() < 0.27  # 0.5 without selection, 0.2 at best
    assert np.mean(skew[late] < 0.4) > 0.8


def test_a_stopped_selector_continues_as_if_never_stopped(tmp_path):
    def play(selector: FedACS, rounds: range) -> list[list[int]]:
        cohorts = []
        for t in rounds:
            cohort = np.sort(selector.select(t, np.arange(20)))
            selector.observe(t, replies(cohort, np.random.default_rng(t).normal(size=(len(cohort), 3))))
            cohorts.append(cohort.tolist())
        return cohorts

    options = {"clients": 20, "cohort": 5, "pool": 0.5, "history": 3}
    straight, stopped, resumed = begun(**options), begun(**options), begun(**options)
    expected = play(straight, range(1, 13))
    play(stopped, range(1, 7))
    write_checkpoint(tmp_path, 6, stopped.state_dict())
    state = saved_state(tmp_path)
    resumed.load_state_dict(state)
    assert play(resumed, range(7, 13)) == expected[6:]
    assert duels(resumed) == duels(straight)
    # A state that was handed out does not change any more.
    kept = stopped.state_dict()
    play(stopped, range(7, 8))
    assert np.array_equal(kept["wins"], state["wins"])


def test_a_run_pays_for_insights_until_the_early_stop(tmp_path):
    given = {**SMALL, "selector": {"name": "fedacs", "pool": 0.5, "early_stop": 2}}
    metrics = run(given, out=tmp_path / "run").metrics
    asked, last, after = (row["bytes_up"] for row in metrics)
    assert asked == last > after


# --- refusals


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pool": 0.0}, "above 0 and at most 1"),
        ({"pool": 1.2}, "above 0 and at most 1"),
        ({"pool": 0.2}, "a pool of 1, too few for a cohort of 3: give at least 0.5"),
        ({"history": -1}, "history is a number of rounds"),
        ({"step": 0.0}, "step must be above 0"),
        ({"step": -0.1}, "step must be above 0"),
        ({"early_stop": -1}, "early_stop is a number of rounds"),
        ({"draws": "twice"}, "auto, literal or once"),
        ({"norm": "l1"}, "joint or per-tensor"),
        ({"insight": "tail"}, "head, full, or a function"),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        begun(**options)


def test_the_smallest_pool_is_the_cohort():
    assert len(begun(pool=0.5).pool_of(1, np.arange(6))) == 3


def test_it_is_registered_with_the_papers_values():
    options = selectors["fedacs"].options
    assert (options["pool"].default, options["history"].default, options["early_stop"].default) == (0.4, 5, None)
    assert selectors.options("fedacs", {"early_stop": "200", "step": "none", "draws": "once"})["early_stop"] == 200
