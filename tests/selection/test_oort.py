"""Oort, in full and as FedACS and NCCB compared themselves with it."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import Refusal, resume, run
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Setting
from covey.core.replies import Replies, Timing
from covey.model.layout import Layout
from covey.randomness import generator
from covey.selection import Uniform
from covey.selection.oort import Oort, weighted_draw
from covey.selection.oort_simple import OortSimple
from tests.conftest import SMALL, saved_state, without_timings


def setting(clients: int, cohort: int, seed: int = 0) -> Setting:
    return Setting(clients, cohort, 100, 10, seed, Layout((), (), ()), Local())


def begun(clients=10, cohort=4, seed=0, **options) -> Oort:
    selector = Oort(**options)
    selector.begin(setting(clients, cohort, seed))
    return selector


def simple(clients=10, cohort=2, seed=0, **options) -> OortSimple:
    selector = OortSimple(**options)
    selector.begin(setting(clients, cohort, seed))
    return selector


def replies(clients, squares=None, samples=None, seconds=None, waited=0.0, losses=None, withheld=()) -> Replies:
    """Replies of clients with mean squared losses `squares` (NaN: the measurement was lost)."""
    count = len(clients)
    values = torch.tensor([1.0] * count if squares is None else squares, dtype=torch.float32)
    return Replies(
        np.array(clients, dtype=np.int64),
        torch.zeros(count, 1),
        torch.tensor([1] * count if samples is None else samples, dtype=torch.int64),
        torch.tensor([0.0] * count if losses is None else losses, dtype=torch.float64),
        {"utility": {"loss": values.sqrt(), "square": values}},
        withheld=np.array(withheld, dtype=np.int64),
        seconds=torch.tensor([] if seconds is None else seconds, dtype=torch.float64),
        timing=Timing(round_seconds=waited),
    )


def explored(utilities, last=None, seconds=None, cohort=4, seed=0, **options) -> Oort:
    """A selector that has seen all clients, with these utilities, at these rounds."""
    selector = begun(len(utilities), cohort, seed, **options)
    selector.utilities[:] = utilities
    selector.last[:] = 1 if last is None else last
    if seconds is not None:
        selector.durations[:] = seconds
    return selector


def frequencies(selector, clients: int, rounds=range(2, 402)) -> np.ndarray:
    """Invitations of each client while nothing new is learned."""
    counts = Counter(int(client) for t in rounds for client in selector.select(t, np.arange(clients)))
    return np.array([counts[client] for client in range(clients)]) / len(rounds)


# --- utility and score


def test_utility_is_the_number_of_samples_times_the_root_of_the_mean_squared_loss():
    selector = begun()
    selector.observe(1, replies([2, 5], squares=[4.0, 0.25], samples=[10, 30]))
    assert selector.utilities[[2, 5]].tolist() == [20.0, 15.0]
    assert np.isnan(np.delete(selector.utilities, [2, 5])).all()
    assert selector.last[[2, 5]].tolist() == [1, 1]


def test_score_is_the_scaled_utility_with_a_bonus_for_clients_not_invited_for_long():
    selector = explored([10.0, 20.0, 40.0], last=[1, 4, 8])
    low = 9.99
    bonus = [math.sqrt(0.1 * math.log(9) / last) for last in (1, 4, 8)]
    expected = [(utility - low) / (40 - low) + extra for utility, extra in zip((10, 20, 40), bonus, strict=True)]
    assert selector.scores(9, np.arange(3)) == pytest.approx(expected, rel=1e-12)


def test_an_outlier_is_clipped_to_the_98th_percentile_and_does_not_flatten_the_others():
    utilities = np.arange(1.0, 101.0)
    utilities[40] = 1e9
    selector = explored(utilities, staleness=0.0)
    scores = selector.scores(5, np.arange(100))
    low, clip = 0.999, 100.0
    assert scores[40] == scores[99] == pytest.approx(1.0)
    assert scores[10] == pytest.approx((11 - low) / (clip - low))


def test_slow_clients_are_penalised_by_the_square_of_how_much_longer_they_take():
    # The 10th percentile of ten durations is the second shortest.
    selector = explored(np.ones(10), seconds=[1, 2, 4, 8, 2, 2, 2, 2, 2, np.nan])
    assert selector.preferred_duration() == 1.0
    selector.durations[9] = 3
    assert selector.preferred_duration() == 2.0
    assert selector.speed_factors(np.arange(4)).tolist() == [1, 1, 0.25, 0.0625]
    plain = explored(np.ones(10)).scores(5, np.arange(10))
    assert selector.scores(5, np.arange(4)) == pytest.approx(plain[:4] * [1, 1, 0.25, 0.0625])


def test_no_client_is_slow_where_no_time_is_kept():
    selector = explored(np.ones(10))
    assert selector.preferred_duration() == math.inf
    assert selector.speed_factors(np.arange(10)).tolist() == [1.0] * 10
    assert explored(np.ones(3), seconds=[1, 2, 9], percentile=100).speed_factors(np.arange(3)).tolist() == [1.0] * 3


# --- cohorts


def test_the_first_cohort_is_the_uniform_one():
    selector, uniform = begun(seed=3), Uniform()
    uniform.begin(setting(10, 4, 3))
    selector.register(np.arange(10), sizes=np.array([1e6] + [1.0] * 9))
    assert selector.select(1, np.arange(10)).tolist() == uniform.select(1, np.arange(10)).tolist()


def test_the_share_of_explored_clients_decays_from_nine_tenths_to_a_fifth():
    selector = begun(100, 10)
    selector.utilities[:50] = 1.0
    selector.last[:50] = 1
    new = {t: int((selector.select(t, np.arange(100)) >= 50).sum()) for t in (2, 10, 20, 60)}
    shares = {t: max(0.9 * 0.95 ** (t - 1), 0.2) for t in new}
    assert new == {t: 10 - math.floor(10 * (1 - share)) for t, share in shares.items()}
    assert new[2] == 9 and new[60] == 2


def test_nothing_is_explored_once_everybody_is_known():
    selector = explored(np.ones(10), cohort=4)
    cohort = selector.select(2, np.arange(10))
    assert len(cohort) == 4
    selector.observe(2, replies(cohort.tolist()))
    assert selector.history == [1.0]


def test_high_utility_is_preferred_in_proportion_to_the_score_above_the_cut_off():
    utilities = [100.0, 90.0, 80.0, 70.0, 20.0, 10.0]
    selector = explored(utilities, cohort=1, staleness=0.0)
    rounds = range(2, 4002)
    found = frequencies(selector, 6, rounds)
    scores = selector.scores(2, np.arange(6))
    # One client is wanted, so those with at least 0.7 of the best score are drawn from: (u - 9.99) / 90.01.
    assert np.flatnonzero(found).tolist() == [0, 1, 2]
    assert found[:3] == pytest.approx(scores[:3] / scores[:3].sum(), abs=0.03)


def test_fast_clients_are_preferred_when_speed_counts():
    utilities, seconds = np.full(10, 5.0), [1.0] * 5 + [10.0] * 5
    careful = frequencies(explored(utilities, seconds=seconds, cohort=3), 10)
    careless = frequencies(explored(utilities, seconds=seconds, cohort=3, penalty=0.0), 10)
    assert careful[5:].sum() == 0
    assert careless[5:].sum() == pytest.approx(1.5, abs=0.2)


def test_unexplored_clients_are_drawn_uniformly_where_nothing_is_known_of_them():
    found = frequencies(begun(20, 4), 20, range(2, 1002))
    assert found == pytest.approx(np.full(20, 0.2), abs=0.05)


def test_unexplored_clients_are_drawn_by_size_and_speed_where_these_are_known():
    selector = begun(4, 1)
    selector.register(np.arange(4), sizes=np.array([60.0, 30.0, 10.0, 60.0]), seconds=np.array([1.0, 1.0, 1.0, 2.0]))
    found = frequencies(selector, 4, range(2, 4002))
    assert found == pytest.approx(np.array([60, 30, 10, 15]) / 115, abs=0.03)


def test_exploration_looks_at_the_window_of_the_highest_prior_only():
    selector = begun(100, 2)
    selector.register(np.arange(100), sizes=np.arange(1, 101).astype(np.float64))
    assert np.flatnonzero(frequencies(selector, 100)).min() >= 90


def test_weighted_draws_have_no_doubles_and_take_clients_of_weight_zero_last():
    rng = generator(0, "draws")
    clients = np.arange(6)
    for _ in range(50):
        chosen = weighted_draw(rng, clients, np.array([0.0, 1.0, 0.0, 2.0, 1e-200, 0.0]), 4)
        assert len(set(chosen.tolist())) == 4
        assert set(chosen[:3].tolist()) == {1, 3, 4}


def test_weighted_draws_follow_the_law_of_drawing_one_after_another():
    rng = generator(1, "draws")
    weights = np.array([0.5, 0.3, 0.2])
    pairs = Counter(tuple(weighted_draw(rng, np.arange(3), weights, 2).tolist()) for _ in range(6000))
    for (first, second), times in pairs.items():
        expected = weights[first] * weights[second] / (1 - weights[first])
        assert times / 6000 == pytest.approx(expected, abs=0.025)


# --- pacer


def paced(before: float, now: float, seconds=(1.0,), **options) -> list[float]:
    """The percentile after each of 40 rounds whose exploited utility is `before`, and from round 21 on `now`."""
    selector = begun(1, 1, **options)
    found = []
    for t in range(1, 41):
        selector._cohort = selector._exploited = np.array([0])
        utility = before if t <= 20 else now
        selector.observe(t, replies([0], squares=[utility**2], seconds=list(seconds)))
        found.append(selector.percentile)
    return found


def test_the_pacer_relaxes_the_preferred_duration_when_utility_is_flat():
    assert paced(4.0, 4.3) == [10.0] * 39 + [15.0]


def test_the_pacer_tightens_it_when_utility_jumps_fivefold():
    assert paced(1.0, 6.5) == [10.0] * 39 + [5.0]
    assert paced(1.0, 6.5, percentile=7.0)[-1] == 5.0


def test_the_pacer_leaves_it_when_utility_moves_in_between():
    assert paced(4.0, 6.0) == paced(4.0, 2.0) == [10.0] * 40


def test_the_pacer_never_passes_a_hundred_and_rests_where_no_time_is_kept():
    assert paced(4.0, 4.0, percentile=98.0)[-1] == 100.0
    assert paced(4.0, 4.0, seconds=()) == [10.0] * 40


# --- blacklist


def test_nobody_is_blacklisted_by_default():
    selector = explored(np.ones(10))
    selector.invitations[:] = 10_000
    assert selector.blacklisted().tolist() == []


def test_clients_invited_too_often_are_left_out_most_often_first_and_at_most_three_tenths():
    selector = explored(np.ones(10), cohort=10, blacklist=5)
    selector.invitations[:] = [5, 6, 0, 0, 0, 0, 0, 0, 0, 0]
    assert selector.blacklisted().tolist() == [1]
    assert sorted(selector.select(2, np.arange(10)).tolist()) == [0, *range(2, 10)]
    selector.invitations[:] = [6, 9, 6, 8, 7, 6, 6, 6, 6, 6]
    assert selector.blacklisted().tolist() == [1, 3, 4]


def test_the_blacklist_gives_way_where_nobody_else_can_be_reached():
    selector = explored(np.ones(10), cohort=4, blacklist=1)
    selector.invitations[:3] = 9
    assert sorted(selector.select(2, np.array([0, 1, 2])).tolist()) == [0, 1, 2]
    assert sorted(selector.select(2, np.array([0, 1, 2, 7])).tolist()) == [7]


# --- clients that report nothing


def test_a_client_whose_utility_did_not_arrive_gets_the_mean_of_its_cohort():
    selector = begun(6, 4)
    selector._cohort = np.array([0, 1, 2, 3])
    selector.utilities[3] = 1000.0
    selector.observe(2, replies([0, 1, 2], [4.0, 16.0, math.nan], samples=[5, 5, 5], seconds=[1, 2, 3], waited=7.0))
    assert selector.utilities[:4].tolist() == [10.0, 20.0, 15.0, 15.0]
    assert selector.durations[:4].tolist() == [1, 2, 3, 7]
    assert selector.invitations.tolist() == [1, 1, 1, 1, 0, 0]


def test_a_client_that_withheld_its_model_is_not_taken_for_silent():
    selector = begun(6, 3)
    selector._cohort = np.array([0, 1, 2])
    selector.observe(2, replies([0], [4.0], seconds=[1], waited=7.0, withheld=[1]))
    assert np.isnan(selector.durations[1]) and selector.durations[2] == 7
    assert selector.utilities[:3].tolist() == [2.0, 2.0, 2.0]


def test_clients_stay_unexplored_where_nobody_ever_answers():
    selector = begun(6, 2)
    met = set()
    for t in range(1, 40):
        cohort = selector.select(t, np.arange(6))
        assert len(set(cohort.tolist())) == 2
        met |= set(cohort.tolist())
        selector.observe(t, replies([], waited=3.0))
    assert met == set(range(6))
    assert np.isnan(selector.utilities).all()


def test_a_client_that_never_answers_does_not_keep_exploration_alive():
    selector = begun(8, 4)
    for t in range(1, 12):
        cohort = np.sort(selector.select(t, np.arange(8)))
        selector.observe(t, replies([client for client in cohort.tolist() if client != 3]))
    assert np.isfinite(selector.utilities).all()


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 9),
    cohort=st.integers(1, 9),
    blacklist=st.integers(0, 2),
    seed=st.integers(0, 1000),
    answer=st.sampled_from([0.0, 0.5, 1.0]),
    timed=st.booleans(),
)
def test_every_cohort_is_sound_whoever_can_be_reached_and_answers(clients, cohort, blacklist, seed, answer, timed):
    cohort = min(cohort, clients)
    rng = np.random.default_rng(seed)
    for selector in (begun(clients, cohort, seed, blacklist=blacklist), simple(clients, cohort, seed, ban=blacklist)):
        for t in range(1, 25):
            reachable = np.sort(rng.choice(clients, size=rng.integers(1, clients + 1), replace=False))
            chosen = selector.select(t, reachable)
            assert len(set(chosen.tolist())) == len(chosen) >= 1
            assert set(chosen.tolist()) <= set(reachable.tolist())
            if not blacklist:
                assert len(chosen) == min(cohort, len(reachable))
            heard = np.sort(chosen)[rng.random(len(chosen)) < answer]
            squares = np.where(rng.random(len(heard)) < 0.2, np.nan, rng.exponential(size=len(heard)))
            times = rng.integers(0, 3, len(heard)).tolist() if timed else None
            selector.observe(t, replies(heard.tolist(), squares.tolist(), seconds=times, waited=3.0 * timed))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"exploration": 1.2}, r"selector.exploration is a fraction in \[0, 1\], not 1.2."),
        ({"exploration_decay": 0}, r"selector.exploration_decay is a fraction in \(0, 1\], not 0."),
        ({"exploration_floor": -1}, r"selector.exploration_floor is a fraction in \[0, 1\], not -1."),
        ({"clip": 0}, r"selector.clip is a quantile in \(0, 1\], not 0."),
        ({"cut_off": 2}, r"selector.cut_off is a fraction in \[0, 1\], not 2."),
        ({"staleness": -1}, "selector.staleness must not be negative, not -1."),
        ({"penalty": -2}, "selector.penalty must not be negative, not -2."),
        ({"percentile": 101}, r"selector.percentile must be in \(0, 100\], not 101."),
        ({"pacer_step": 0}, "selector.pacer_step must be at least 1, not 0."),
        ({"pacer_delta": -1}, "selector.pacer_delta must not be negative, not -1."),
        ({"window": 0.5}, "selector.window must be at least 1, not 0.5."),
        ({"blacklist": -1}, "selector.blacklist must be at least 1, or 0 for never, not -1."),
        ({"blacklist_share": 3}, r"selector.blacklist_share is a fraction in \[0, 1\], not 3."),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        Oort(**options)


# --- the plain form


def test_the_plain_form_invites_everybody_once_before_anybody_twice():
    selector = simple(10, 4, seed=5)
    met: list[int] = []
    for t in (1, 2, 3):
        cohort = selector.select(t, np.arange(10))
        met += cohort.tolist()
        selector.observe(t, replies(sorted(cohort.tolist())))
    assert sorted(set(met)) == list(range(10)) and len(met) == 12
    assert len(set(met[:10])) == 10


def test_the_plain_form_visits_clients_that_do_not_answer_once_too():
    selector = simple(6, 3)
    for t in (1, 2):
        selector.select(t, np.arange(6))
        selector.observe(t, replies([]))
    assert selector.visited.all()
    # Loss 0 and the bonus of round 1.
    assert selector.utilities(3, np.arange(6)) == pytest.approx([math.sqrt(0.1 * math.log(3))] * 6)


def visited(losses, last=1, **options) -> OortSimple:
    selector = simple(len(losses), **options)
    selector.losses[:] = losses
    selector.last[:] = last
    selector.visited[:] = True
    return selector


def test_the_plain_utility_is_the_training_loss_with_the_bonus():
    selector = simple(3, 3)
    selector.observe(4, replies([0, 2], losses=[1.5, 0.25]))
    bonus = [math.sqrt(0.1 * math.log(9) / last) for last in (4, 1, 4)]
    assert selector.utilities(9, np.arange(3)) == pytest.approx([1.5 + bonus[0], bonus[1], 0.25 + bonus[2]])


def test_the_plain_form_draws_from_the_highest_fifth_in_proportion_to_utility():
    selector = visited([3.0, 1.0, *[0.1] * 8], last=10**9, cohort=1)
    found = frequencies(selector, 10, range(2, 3002))
    assert np.flatnonzero(found).tolist() == [0, 1]
    assert found[:2] == pytest.approx([0.75, 0.25], abs=0.03)
    assert len(visited(np.arange(10.0), cohort=4).select(2, np.arange(10))) == 4


def answering(selector: OortSimple, client: int, times: int) -> None:
    for _ in range(times):
        selector.observe(2, replies([client]))


def test_the_plain_form_bans_after_a_hundred_answers():
    selector = visited([9.0, *[1.0] * 11], cohort=1)
    answering(selector, 0, 99)
    assert not selector.banned.any()
    answering(selector, 0, 1)
    assert np.flatnonzero(selector.banned).tolist() == [0]
    assert frequencies(selector, 12)[0] == 0
    assert selector.select(2, np.array([0])).tolist() == [0]


def test_bans_end_when_ten_clients_or_a_cohort_are_left():
    selector = visited(np.ones(12), ban=1)
    selector.observe(2, replies(list(range(12))))
    assert np.flatnonzero(selector.banned).tolist() == [0, 1]
    large = visited(np.ones(12), cohort=11, ban=1)
    large.observe(2, replies(list(range(12))))
    assert np.flatnonzero(large.banned).tolist() == [0]


def test_bans_can_be_switched_off():
    selector = visited([9.0, *[1.0] * 11], cohort=1, ban=0)
    answering(selector, 0, 300)
    assert not selector.banned.any()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pool": 0}, r"selector.pool is a share of the clients in \(0, 1\], not 0."),
        ({"staleness": -1}, "selector.staleness must not be negative, not -1."),
        ({"ban": -1}, "selector.ban must be at least 1, or 0 for never, not -1."),
        ({"keep": 0}, "selector.keep must be at least 1, not 0."),
    ],
    ids=str,
)
def test_impossible_options_of_the_plain_form_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        OortSimple(**options)


# --- in runs


@pytest.mark.parametrize("made", [lambda: begun(12, 4, pacer_step=3), lambda: simple(12, 4, ban=4, keep=6)])
def test_a_selector_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(made, tmp_path):
    def play(selector, rounds) -> list[list[int]]:
        cohorts = []
        for t in rounds:
            rng = generator(7, t)
            cohort = np.sort(selector.select(t, np.arange(12)))
            heard = cohort[rng.random(4) < 0.8]
            drawn_squares, times = rng.exponential(size=len(heard)), rng.exponential(size=len(heard))
            answers = replies(heard.tolist(), drawn_squares.tolist(), seconds=times.tolist(), losses=drawn_squares)
            selector.observe(t, answers)
            cohorts.append(cohort.tolist())
        return cohorts

    whole = play(made(), range(1, 31))
    first, second = made(), made()
    begin = play(first, range(1, 14))
    write_checkpoint(tmp_path, 13, first.state_dict())
    second.load_state_dict(saved_state(tmp_path))
    assert begin + play(second, range(14, 31)) == whole


def test_a_checkpoint_keeps_the_pacers_percentile(tmp_path):
    selector = explored(np.ones(10), seconds=np.arange(10.0))
    selector.percentile = 35.0
    write_checkpoint(tmp_path, 1, selector.state_dict())
    again = begun()
    again.load_state_dict(saved_state(tmp_path))
    assert again.preferred_duration() == selector.preferred_duration() == 3.0


@pytest.mark.parametrize("name", ["oort", "oort-simple"])
def test_a_run_that_is_cut_off_and_resumed_is_the_whole_run(name, tmp_path):
    given_settings = {"selector": name, "devices": {"spread": 1.0, "dropout": 0.2, "availability": 0.8}}
    whole = run(SMALL, rounds=8, out=tmp_path / "whole", **given_settings)

    def stop(record):
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SMALL, rounds=8, out=tmp_path / "cut", on_round=stop, **given_settings)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    assert {client for row in whole.metrics for client in row["clients"]} == set(range(8))
