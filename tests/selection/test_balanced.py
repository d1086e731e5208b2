"""Balanced cohorts: mixes near a target, a turn for everyone, and what is asked of whom."""

from typing import Any

import numpy as np
import pytest
import torch

from covey import Config, Refusal, resume, run
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.job.experiment import Experiment
from covey.model.layout import Layout, Slot
from covey.selection.balanced import Balanced
from covey.selection.cohort_mix import greedy_cohort, imbalance, sampled_cohort
from covey.selection.share_sources import UpdateShares
from tests.conftest import SMALL, saved_state, without_timings
from tests.equal_runs import ends_the_same

FEW = {**SMALL, "clients": 20, "cohort": 5, "rounds": 6, "environment": {"name": "few-class", "samples": 20}}
CLASSES = 4
BIAS = Slot("head.bias", (CLASSES,), 0)


def setting(clients: int = 12, cohort: int = 4, classes: int = CLASSES, seed: int = 0) -> Setting:
    bias = Slot("head.bias", (classes,), 0)
    return Setting(clients, cohort, 100, classes, seed, Layout((bias,), (), (bias,)), Local())


def begun(clients: int = 12, cohort: int = 4, seed: int = 0, classes: int = CLASSES, **options) -> Balanced:
    selector = Balanced(**{"candidates": clients, **options})
    selector.begin(setting(clients, cohort, classes, seed))
    return selector


def asked_by(selector, t: int, clients) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Whom a selector asks before round `t`, and what."""
    survey = selector.survey(t, np.asarray(clients))
    return survey if survey else (np.empty(0, dtype=np.int64), ())


def answers(clients, shares, samples=None) -> Replies:
    """What clients with these class shares answer to the query at a zero head."""
    shares = np.asarray(shares, dtype=np.float64)
    gradient = torch.from_numpy(1 / shares.shape[1] - shares)
    count = len(clients)
    return Replies(
        np.asarray(clients, dtype=np.int64),
        torch.zeros(count, 0),
        torch.tensor(samples or [100] * count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.float64),
        {"class query": {"gradient": gradient}},
    )


def told(selector: Balanced, shares: np.ndarray, t: int = 1, **more) -> Balanced:
    """The selector, after all clients have answered."""
    everyone = np.arange(len(shares))
    asked, _ = asked_by(selector, t, everyone)
    selector.surveyed(t, answers(asked, shares[asked], **more))
    return selector


def one_class_each(clients: int, classes: int = CLASSES) -> np.ndarray:
    return np.eye(classes)[np.arange(clients) % classes]


# Choosing


def test_imbalance_is_the_quadratic_degree():
    even = np.full(2, 0.5)
    # Shares (0.75, 0.25): 2·0.25² = 0.125.
    assert imbalance(np.array([[3.0, 1.0], [2.0, 2.0], [4.0, 0.0]]), even).tolist() == [0.125, 0.0, 0.5]


def test_greedy_choice_takes_the_client_that_brings_the_mix_nearest_the_target():
    counts = np.array([[4.0, 0, 0], [0, 4, 0], [0, 0, 4], [4, 0, 0], [2, 2, 0]])
    assert greedy_cohort(counts, 3, np.full(3, 1 / 3), first=[0]) == [0, 1, 2]
    # A target of classes 0 and 1 alone: (4, 2·…) then client 1 makes it exact.
    assert greedy_cohort(counts, 2, np.array([0.5, 0.5, 0.0]), first=[0]) == [0, 1]


def test_of_clients_equally_near_the_least_invited_is_taken():
    counts = np.array([[4.0, 0], [0, 4], [0, 4], [0, 3.8]])
    even, uses = np.full(2, 0.5), np.array([0.0, 3, 1, 0])
    assert greedy_cohort(counts, 2, even, [0], uses) == [0, 2]
    # (4, 3.8) is 2·(0.2/15.6)² = 0.0003 away.
    assert greedy_cohort(counts, 2, even, [0], uses, tolerance=0.001) == [0, 3]


def test_clients_with_all_classes_do_not_come_again_and_again():
    """Twelve have all classes, the others two each: with a tolerance the former are not invited in every round."""
    pairs = np.zeros((36, CLASSES))
    for client in range(36):
        pairs[client, [client % 4, (client + 1) % 4]] = 0.5
    shares = np.vstack([np.full((12, CLASSES), 0.25), pairs])
    most = []
    for tolerance in (0.0, 0.8):
        selector = told(begun(48, 6, tolerance=tolerance), shares)
        mixes = [shares[selector.select(t, np.arange(48))].mean(axis=0) for t in range(1, 81)]
        most.append(selector.uses.max() / selector.uses.mean())
    assert most[1] < 1.2 < 2.5 < most[0]
    assert np.square(np.array(mixes) - 0.25).sum(axis=1).max() < 0.03


SIX = np.array([[5.0] * 6, [6, 6, 6, 6, 6, 0], [0, 0, 0, 10, 10, 10], [10, 10, 10, 0, 0, 0]])
"""Figure 3 of Fed-CBS: greedy choice from the first client ends with the second, and the best cohort has it not."""


def test_sampling_finds_a_cohort_that_greedy_choice_never_makes():
    even = np.full(6, 1 / 6)
    for first in ([], [0], [1], [2], [3]):
        assert sorted(greedy_cohort(SIX, 3, even, first=first)) != [0, 2, 3] or first in ([2], [3])
    drawn = [sorted(sampled_cohort(np.random.default_rng(s), SIX, 3, even, first=[0])) for s in range(300)]
    assert drawn.count([0, 2, 3]) > 3
    assert drawn.count([0, 2, 3]) + drawn.count([0, 1, 2]) + drawn.count([0, 1, 3]) == 300


def test_cohorts_of_clients_with_one_class_each_hold_all_classes():
    shares = one_class_each(12)
    selector = told(begun(), shares)
    for t in range(1, 10):
        cohort = selector.select(t, np.arange(12))
        assert shares[cohort].sum(axis=0).tolist() == [1, 1, 1, 1]
        assert selector.figures()["cohort_imbalance"] == pytest.approx(0, abs=1e-12)


def test_the_target_may_be_any_mix():
    shares = one_class_each(40)
    selector = told(begun(40, 10, target="0.6,0.2,0.2,0"), shares)
    cohorts = [shares[selector.select(t, np.arange(40))].sum(axis=0) for t in range(1, 8)]
    # The first of each cohort is there for coverage, whatever its class.
    assert np.mean(cohorts, axis=0)[0] == pytest.approx(6, abs=0.5)
    assert np.mean(cohorts, axis=0)[3] <= 1


def test_the_federations_mix_is_a_target_too():
    shares = np.eye(CLASSES)[np.array([0] * 20 + [1] * 10 + [2] * 5 + [3] * 5)]
    selector = told(begun(40, 8, target="federation"), shares)
    mix = np.mean([shares[selector.select(t, np.arange(40))].mean(axis=0) for t in range(1, 20)], axis=0)
    assert mix == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.04)


def test_samples_weigh_the_mix():
    shares = np.array([[1.0, 0], [0, 1], [0, 1], [0, 1]])
    selector = told(begun(4, 2, classes=2, coverage=0), shares, samples=[100, 50, 100, 190])
    assert sorted(selector.select(1, np.arange(4)).tolist()) in ([0, 2], [1, 0], [0, 1])
    assert 2 in selector.select(2, np.array([0, 2, 3]))


# A turn for everyone


@pytest.mark.parametrize("choice", ["greedy", "sampled"])
def test_nobody_is_invited_less_than_once_in_as_many_rounds_as_there_are_clients(choice):
    # Client 0 has all classes: balance alone would invite it and its like for ever, and the last never.
    shares = np.vstack([np.full((6, CLASSES), 0.25), np.eye(CLASSES)[[0] * 14]])
    selector = told(begun(20, 3, choice=choice), shares)
    for t in range(1, 101):
        selector.select(t, np.arange(20))
        assert selector.uses.min() >= t // 20


def test_the_bound_holds_while_others_come_and_go():
    shares, rng = one_class_each(15), np.random.default_rng(3)
    selector = told(begun(15, 3), shares)
    for t in range(1, 121):
        there = np.union1d([14], np.flatnonzero(rng.random(15) < 0.3))
        cohort = selector.select(t, there)
        assert set(cohort.tolist()) <= set(there.tolist())
        assert len(cohort) == min(3, len(there))
        assert selector.uses[14] >= t // 15


def test_without_coverage_balance_decides_alone():
    shares = np.vstack([np.full((6, CLASSES), 0.25), np.eye(CLASSES)[[0] * 14]])
    selector = told(begun(20, 3, coverage=0), shares)
    for t in range(1, 30):
        selector.select(t, np.arange(20))
    assert selector.uses[6:].sum() == 0


# Asking


def test_only_new_candidates_are_asked_and_each_once():
    selector = begun(1000, 10, candidates=60)
    asked_before: set[int] = set()
    for t in range(1, 6):
        asked, probes = asked_by(selector, t, np.arange(1000))
        assert [probe.name for probe in probes] == ["class query"]
        assert len(asked) <= 60 and not set(asked.tolist()) & asked_before
        assert set(selector.select(t, np.arange(1000)).tolist()) <= set(selector.drawn(t, np.arange(1000))[0].tolist())
        selector.surveyed(t, answers(asked, one_class_each(1000)[asked]))
        asked_before |= set(asked.tolist())


def test_of_a_million_clients_sixty_are_asked():
    selector = begun(1_000_000, 10, candidates=60)
    asked, _ = asked_by(selector, 1, np.arange(1_000_000))
    assert len(asked) == 60
    selector.surveyed(1, answers(asked, one_class_each(1_000_000)[asked]))
    assert len(selector.select(1, np.arange(1_000_000))) == 10
    assert selector.state_dict()["source"]["shares"].shape == (60, CLASSES)


def test_silent_clients_are_asked_three_times_and_still_get_a_turn():
    shares = one_class_each(8)
    selector = begun(8, 2)
    times = np.zeros(8, dtype=int)
    for t in range(1, 20):
        survey = selector.survey(t, np.arange(8))
        if survey:
            times[survey[0]] += 1
            heard = survey[0][survey[0] != 5]
            selector.surveyed(t, answers(heard, shares[heard]))
        selector.select(t, np.arange(8))
    assert times.tolist() == [1, 1, 1, 1, 1, 3, 1, 1]
    assert selector.uses[5] >= 2


def test_with_noise_a_client_is_asked_once_only_and_epsilon_is_recorded():
    pytest.importorskip("dp_accounting")
    selector = begun(8, 2, insight_dp="1,1e-5")
    asked, (probe,) = asked_by(selector, 1, np.arange(8))
    assert probe.privacy.epsilon == 1
    selector.surveyed(1, answers(asked[:4], one_class_each(8)[asked[:4]]))
    selector.select(1, np.arange(8))
    assert selector.survey(2, np.arange(8)) is None
    assert selector.figures()["epsilon_spent"] == 1


def test_the_shares_asked_for_are_exact(tmp_path):
    run(FEW, method="covey", rounds=2, selector={"candidates": 20}, out=tmp_path / "run")
    source = saved_state(tmp_path / "run")["selector"]["source"]
    truth = Experiment.of(Config.of(FEW)).federation.truth.shares
    clients = np.array(source["clients"])
    assert len(clients) == 20
    assert np.abs(np.array(source["shares"]) - truth[clients]).max() < 1e-5


def test_by_updates_nobody_is_asked_and_estimates_are_better_than_a_guess(tmp_path):
    chosen = {"name": "balanced", "shares": "updates"}
    done = run(FEW, selector=chosen, rounds=10, out=tmp_path / "run")
    plain = run(FEW, rounds=10, out=tmp_path / "plain")
    assert [row["bytes_up"] for row in done.metrics] == [row["bytes_up"] for row in plain.metrics]
    source = saved_state(tmp_path / "run")["selector"]["source"]
    clients, truth = np.array(source["clients"]), Experiment.of(Config.of(FEW)).federation.truth.shares
    error = np.abs(np.array(source["shares"]) - truth[clients]).sum(axis=1).mean()
    guess = np.abs(0.1 - truth[clients]).sum(axis=1).mean()
    assert error < 0.8 * guess


def test_shares_follow_from_the_bias_where_wrong_confidences_are_equal():
    """Δb = ηR(D·ΣE - E), equation 6, for clients that lack a class: the estimate is exact, and then a mean."""
    source = UpdateShares()
    source.begin(setting(3, 3))
    truth = np.array([[1.0, 0, 0, 0], [0.5, 0.3, 0.2, 0], [0, 0, 0.5, 0.5]])
    changes = 0.3 * (truth * CLASSES - 1) * 0.2

    def seen(moved):
        source.sent(torch.ones(CLASSES))
        states = torch.from_numpy(1 + moved)
        source.observe(Replies(np.arange(3), states, torch.full((3,), 50), torch.zeros(3, dtype=torch.float64)))
        return source.rows(np.arange(3))

    assert seen(changes) == pytest.approx(truth, abs=1e-6)
    assert seen(changes[[1, 0, 2]])[0] == pytest.approx((truth[0] + truth[1]) / 2, abs=1e-6)


def test_without_a_bias_updates_tell_nothing_and_the_refusal_says_what_to_do():
    selector = Balanced(shares="updates")
    weight = Slot("head.weight", (CLASSES, 3), 0)
    with pytest.raises(Refusal, match=r"selector\.shares=asked"):
        selector.begin(Setting(5, 2, 10, CLASSES, 0, Layout((weight,), (), (weight,)), Local()))


def test_thousands_of_classes_are_balanced_over_groups_of_clients(tmp_path):
    selector = begun(30, 5, classes=2000)
    asked, probes = asked_by(selector, 1, np.arange(30))
    assert [probe.name for probe in probes] == ["simhash"] and len(asked) == 30
    chosen = {"name": "balanced", "shares": "groups", "groups": 4, "target": "uniform", "candidates": 20}
    done = run(FEW, selector=chosen, rounds=3, out=tmp_path / "run")
    group = np.array(saved_state(tmp_path / "run")["selector"]["source"]["group"])
    assert set(group.tolist()) == {0, 1, 2, 3}
    for row in done.metrics:
        assert len(set(group[row["clients"]].tolist())) == 4


# Runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"choice": "sampled"}, {"shares": "updates"}, {"shares": "groups", "groups": 3}]
)
def test_a_run_ends_the_same_however_it_is_executed(options, tmp_path):
    ends_the_same({**FEW, "method": "covey", "selector": options, "precision": "fp64"}, tmp_path)


@pytest.mark.slow
def test_with_absences_and_drop_outs_a_run_goes_on_and_resumes_the_same(tmp_path):
    given = {**FEW, "method": "covey", "devices": {"availability": 0.3, "dropout": 0.3}}
    whole = run(given, out=tmp_path / "whole")

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, out=tmp_path / "cut", on_round=stop)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)


def test_a_checkpoint_keeps_what_is_known(tmp_path):
    shares = one_class_each(12)
    selector, again = told(begun(coverage=2), shares), begun(coverage=2)
    for t in range(1, 4):
        selector.select(t, np.arange(12))
    write_checkpoint(tmp_path, 3, selector.state_dict())
    again.load_state_dict(saved_state(tmp_path))
    chosen = [[one.select(t, np.arange(12)).tolist() for t in range(4, 8)] for one in (selector, again)]
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "even"}, "selector.target is uniform, federation, or a share for each class"),
        ({"target": "0.5,0.5"}, "selector.target has 2 shares, and there are 4 classes."),
        ({"target": "0,0,0,0"}, "shares of 0 or more, and one above 0"),
        ({"candidates": 0}, "selector.candidates must be at least 1, not 0."),
        ({"coverage": 5}, "selector.coverage = 5 is more than the cohort, 4."),
        ({"shares": "updates", "insight_dp": "1,1e-5"}, "with selector.shares=updates none are."),
        ({"insight_dp": "1"}, "selector.insight_dp is epsilon and delta"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        begun(**options)
