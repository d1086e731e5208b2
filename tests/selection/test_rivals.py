"""Fed-CBS, HiCS-FL, FedCor and FedEntOpt against cases computed by hand, and how they behave."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from covey import Refusal, resume, run
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.model.layout import Layout, Slot
from covey.selection.fed_cbs import FedCBS
from covey.selection.fedcor import FedCor, most_helpful
from covey.selection.fedentopt import FedEntOpt, entropy
from covey.selection.hics_fl import PAPER_LENGTH, PAPER_TEMPERATURE, HiCSFL
from covey.selection.loss_process import LossProcess
from tests.conftest import SMALL, without_timings
from tests.equal_runs import ends_the_same
from tests.selection.test_balanced import answers, one_class_each

CLASSES = 4
RIVALS = {
    "fed-cbs": {},
    "hics-fl": {},
    "fedcor": {"warmup": 2, "interval": 3},
    "fedentopt": {"buffer": 0.3},
}
FEW = {**SMALL, "clients": 12, "cohort": 3, "rounds": 8, "environment": {"name": "few-class", "samples": 20}}


def begun(selector, clients=12, cohort=4, seed=0, rounds=100, classes=CLASSES, work=None):
    bias = Slot("head.bias", (classes,), 0)
    layout = Layout((bias,), (), (bias,))
    selector.begin(Setting(clients, cohort, rounds, classes, seed, layout, work or Local()))
    return selector


def told(selector, shares):
    asked, _ = selector.survey(1, np.arange(len(shares)))
    assert len(asked) == len(shares), "everyone is asked before the first round"
    selector.surveyed(1, answers(asked, shares[asked]))
    return selector


# Fed-CBS


def test_fed_cbs_draws_the_first_by_its_own_balance_and_how_rarely_it_was_selected():
    shares = np.array([[1.0, 0], [0.75, 0.25], [0.75, 0.25]])
    selector = told(begun(FedCBS(), 3, 1, classes=2), shares)
    selector.uses[:] = [9, 1, 4]
    t = 50
    # QCID: 0.5, 0.125, 0.125; the bonus λ√(3 ln t / 2T).
    weights = np.array([2.0, 8, 8]) + 10 * np.sqrt(3 * math.log(t) / (2 * np.array([9.0, 1, 4])))
    found = np.zeros(3)
    for seed in range(3000):
        selector.setting = SimpleNamespace(seed=seed, cohort=1)
        selector.uses[:] = [9, 1, 4]
        found[selector.select(t, np.arange(3))[0]] += 1
    assert found / 3000 == pytest.approx(weights / weights.sum(), abs=0.03)


def test_fed_cbs_draws_the_second_by_the_square_of_the_balance():
    # With client 0 first: QCID with 1 is 0 → always; with the floor 1e-6 nothing else has a chance.
    shares = np.array([[1.0, 0], [0, 1.0], [1.0, 0]])
    selector = told(begun(FedCBS(exploration=0), 3, 2, classes=2), shares)
    for t in range(1, 50):
        assert 1 in selector.select(t, np.arange(3))


def test_fed_cbs_selects_nobody_for_ever():
    shares = np.vstack([np.full((3, CLASSES), 0.25), one_class_each(9)])
    selector = told(begun(FedCBS()), shares)
    for t in range(1, 200):
        selector.select(t, np.arange(12))
    assert selector.uses.min() > 0


# FedEntOpt


def test_entropy_is_in_bits():
    assert entropy(np.array([[2.0, 2, 0, 0], [1, 1, 1, 1], [5, 0, 0, 0]])).tolist() == [1.0, 2.0, 0.0]


def test_fedentopt_adds_the_client_with_the_highest_joint_entropy():
    # After a client of one class, the other classes come before a repetition.
    shares = one_class_each(12)
    selector = told(begun(FedEntOpt(buffer=0)), shares)
    for t in range(1, 10):
        assert shares[selector.select(t, np.arange(12))].sum(axis=0).tolist() == [1] * CLASSES


def test_fedentopt_invites_nobody_of_the_buffer():
    shares = one_class_each(12)
    selector = told(begun(FedEntOpt(buffer=1.0)), shares)
    assert selector.most == 8
    chosen = [set(selector.select(t, np.arange(12)).tolist()) for t in range(1, 4)]
    assert not chosen[0] & chosen[1] and not (chosen[0] | chosen[1]) & chosen[2]
    assert set.union(*chosen) == set(range(12))
    assert len(selector.select(4, np.array(sorted(chosen[2])))) == 4, "a buffer leaves no round empty"


# HiCS-FL


def updated(selector, changes, samples=100, t=1):
    """The selector, after clients 0, 1, … have moved the bias by these changes."""
    changes = torch.as_tensor(np.asarray(changes, dtype=np.float64))
    selector.sent(t, torch.zeros(changes.shape[1], dtype=torch.float64))
    count = len(changes)
    replies = Replies(np.arange(count), changes, torch.full((count,), samples), torch.zeros(count, dtype=torch.float64))
    selector.observe(t, replies)
    return selector


def test_hics_fl_visits_everyone_once_first():
    selector = begun(HiCSFL(), 10, 4)
    chosen = [selector.select(t, np.arange(10)).tolist() for t in range(1, 4)]
    assert sorted([*chosen[0], *chosen[1], *chosen[2][:2]]) == list(range(10))
    assert len(chosen[2]) == 4


def test_hics_fl_estimates_heterogeneity_by_the_entropy_of_the_softmax():
    selector = updated(begun(HiCSFL(temperature=0.5), 2, 1, classes=2), [[0.0, 0.0], [0.5, 0.0]])
    share = math.e / (1 + math.e)
    expected = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert selector.entropies(np.arange(2)).tolist() == pytest.approx([math.log(2), expected])


def test_hics_fl_scales_the_papers_temperature_with_the_length_of_training():
    work = Local(epochs=2, batch=50, rate=0.1, momentum=0.5)
    selector = updated(begun(HiCSFL(), 3, 1, work=work), np.zeros((3, CLASSES)), samples=100)
    # 4 steps of 0.1, doubled by momentum: 0.8.
    assert selector._temperature() == pytest.approx(PAPER_TEMPERATURE * 0.8 / PAPER_LENGTH)


def test_hics_fl_puts_clients_with_alike_updates_into_one_cluster():
    one, other, even = [1.0, -1, 0, 0], [0.0, 0, 1, -1], [0.01, 0, 0, -0.01]
    selector = updated(begun(HiCSFL(temperature=1.0), 6, 3), [one, one, other, other, even, even])
    groups = selector.grouped(np.arange(6), selector.entropies(np.arange(6)))
    assert groups[0] == groups[1] and groups[2] == groups[3] and groups[4] == groups[5]
    assert len(set(groups.tolist())) == 3


def test_hics_fl_prefers_clusters_with_balanced_clients_early_and_none_at_the_end():
    one, even = [1.0, -1, 0, 0], [0.0, 0, 0, 0]
    selector = updated(begun(HiCSFL(temperature=0.2), 4, 2, rounds=100), [one, one, one, even])
    early, late = selector.chances(1, np.arange(4)), selector.chances(100, np.arange(4))
    # Equation 10: π ∝ exp(γ·mean Ĥ); the cluster of three shares its chance.
    entropies = selector.entropies(np.arange(4))
    ratio = math.exp(4 * 0.99 * (entropies[3] - entropies[0]))
    assert early[3] / early[:3].sum() == pytest.approx(ratio)
    assert late.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_hics_fl_refuses_more_clients_than_it_can_compare():
    with pytest.raises(Refusal, match="at most 5,000 clients"):
        begun(HiCSFL(), 6000)


# FedCor


def test_fedcor_chooses_by_the_covariance_with_everyone():
    # Σ_i p_i Σ_ik/√Σ_kk: (1 + 0.9)/3 = 0.63 for the first two, 1/3 for the third, with equal p.
    covariance = np.array([[1.0, 0.9, 0], [0.9, 1, 0], [0, 0, 1]])
    equal = np.full(3, 1 / 3)
    # Once the first is chosen, the second has little left to tell: 0.19/√0.19 = 0.44 against 1.
    assert most_helpful(covariance, equal, np.ones(3), 2) == [0, 2]
    assert most_helpful(covariance, equal, np.array([0.9, 1, 1]), 1) == [1]
    assert most_helpful(covariance, np.array([0.1, 0.1, 0.8]), np.ones(3), 1) == [2]


def test_fedcors_fit_finds_who_changes_together():
    rng = np.random.default_rng(0)
    process = LossProcess(np.random.default_rng(1), 6, 6, 1.0)
    for t in range(1, 41):
        group, other = rng.standard_normal(2)
        noise = 0.1 * rng.standard_normal(6)
        process.learn(t, np.array([group] * 3 + [other] * 3) + noise)
    process.fit(40, 1000)
    covariance = process.covariance(np.arange(6))
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    assert correlation[:3, :3].min() > 0.9 and correlation[3:, 3:].min() > 0.9
    assert np.abs(correlation[:3, 3:]).max() < 0.5


def test_fedcors_slope_is_that_of_the_likelihood():
    rng = np.random.default_rng(0)
    process = LossProcess(rng, 4, 2, 1.0)
    apart = rng.standard_normal((5, 4))

    def cost(columns):
        covariance = columns.T @ columns + 0.01**2 * np.eye(4)
        _, logarithm = np.linalg.slogdet(covariance)
        return 0.5 * (np.trace(apart @ np.linalg.inv(covariance) @ apart.T) + 5 * logarithm)

    process.columns = rng.standard_normal((4, 4))
    slope, step = process._slope(apart, 5.0), 1e-6
    for place in ((0, 0), (1, 2), (3, 3)):
        nudge = np.zeros((4, 4))
        nudge[place] = step
        measured = (cost(process.columns + nudge) - cost(process.columns - nudge)) / (2 * step)
        assert slope[place] == pytest.approx(measured, rel=1e-3)


def test_fedcor_asks_all_for_their_loss_in_the_warm_up_and_around_fits():
    selector = begun(FedCor(warmup=3, interval=10), 8, 2)
    asking = [t for t in range(1, 24) if selector.survey(t, np.arange(8))]
    assert asking == [1, 2, 3, 4, 10, 11, 20, 21]


def test_fedcor_turns_away_from_clients_it_has_chosen():
    selector = begun(FedCor(warmup=1, interval=50, discount=0.5), 4, 1)
    selector.process.fitted = True
    selector.process.columns = np.array([[1.0, 1, 1, 0.9]])
    first = selector.select(3, np.arange(4))[0]
    assert selector.chosen.tolist() == np.eye(4, dtype=int)[first].tolist()
    assert selector.select(4, np.arange(4))[0] != first


# Runs


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
def test_a_run_ends_the_same_however_it_is_executed(name, tmp_path):
    ends_the_same({**FEW, "method": name, "selector": RIVALS[name], "precision": "fp64"}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
def test_with_absences_and_drop_outs_a_run_goes_on_and_resumes_the_same(name, tmp_path):
    devices = {"availability": 0.5, "dropout": 0.3}
    given = {**FEW, "method": name, "selector": RIVALS[name], "devices": devices}
    whole = run(given, out=tmp_path / "whole")

    def stop(record):
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, out=tmp_path / "cut", on_round=stop)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
