"""DP-FedAvg: clipped updates, noise of the stated size, and the ε of its models."""

import math
import sys
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld, rdp
from flwr.app import ArrayRecord
from torch import Tensor

from covey import Config, Refusal, resume, run
from covey.aggregation.dp_fedavg import DPFedAvg, composed_rounds
from covey.aggregation.norm_bound import NormBound
from covey.config.sections import Local
from covey.core.build import setting_of
from covey.core.interfaces import Setting
from covey.core.one_model import OneModel
from covey.core.replies import Replies, checked
from covey.flower import InProcessGrid, Strategy, client_app
from covey.model.layout import Layout, Slot
from covey.selection.uniform import Uniform
from tests.conftest import SMALL, saved_state, without_timings
from tests.flower.test_protection import net, points

SIZE = 20_000
SLOT = (Slot("weight", (SIZE,), 0),)
SETTING = Setting(100, 10, 50, 10, 0, Layout(SLOT, (), SLOT), Local(), uniform_sampling=True)


def begun(setting: Setting = SETTING, **options: Any) -> DPFedAvg:
    aggregator = DPFedAvg(**options)
    aggregator.begin(setting)
    return aggregator


def replies(states: Tensor) -> Replies:
    count = len(states)
    return Replies(np.arange(count), states, torch.arange(1, count + 1) * 100, torch.zeros(count, dtype=torch.float64))


def updates(lengths: list[float]) -> Tensor:
    """Return states at random directions from zero, with these lengths."""
    drawn = torch.randn(len(lengths), SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states: Tensor = drawn / drawn.norm(dim=1, keepdim=True) * torch.tensor(lengths)[:, None]
    return states.float()


def without_noise(aggregator: DPFedAvg, states: Tensor, t: int = 1) -> Tensor:
    """Return the mean of clipped updates: noise is the same for the same seed and round."""
    model = torch.zeros(SIZE, dtype=torch.float64)
    quiet = aggregator.combine(t, model, replies(torch.zeros(1, SIZE, dtype=torch.float64)))
    return aggregator.combine(t, model, replies(states.double())) - quiet


def test_the_model_moves_by_the_clipped_sum_over_the_expected_cohort():
    states = updates([0.5, 4.0, 1e6])
    cut = torch.stack([states[0], states[1] / 4, states[2] / 1e6]).double()
    moved = without_noise(begun(clip=1.0), states)
    torch.testing.assert_close(moved, cut.sum(dim=0) / SETTING.cohort, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("other", [1e-3, 1.0, 1e30, math.inf, math.nan])
def test_one_other_client_moves_the_sum_by_twice_the_bound_at_most(other):
    states = updates([0.3, 2.0, 5.0]).double()
    changed = states.clone()
    changed[1] = -changed[1] / changed[1].norm() * other
    aggregator = begun(clip=0.7)
    moved = (without_noise(aggregator, changed) - without_noise(aggregator, states)).norm() * SETTING.cohort
    assert 0 < float(moved) <= 2 * 0.7 + 1e-6


def test_noise_has_the_stated_deviation_in_every_round_and_is_drawn_anew():
    aggregator = begun(noise=1.5, clip=0.2)
    model = torch.zeros(SIZE)
    drawn = [aggregator.combine(t, model, replies(torch.zeros(1, SIZE))) for t in (1, 2)]
    for noise in drawn:
        assert float(noise.std()) == pytest.approx(1.5 * 0.2 / 10, rel=0.03)
        assert abs(float(noise.mean())) < 4 * 0.03 / math.sqrt(SIZE)
    assert abs(float(torch.corrcoef(torch.stack(drawn))[0, 1])) < 0.05
    aggregator.observe(3, replies(torch.zeros(1, SIZE)))
    assert aggregator.figures()["noise"] == pytest.approx(0.03)


@pytest.mark.parametrize("around", [False, True])
def test_a_round_without_a_sound_reply_gets_its_noise_too(around):
    """Else the model would tell that a client's reply was not finite, which costs no ε."""
    aggregator = NormBound(bound=1.0, around="dp-fedavg,delta=none") if around else DPFedAvg(delta=None)
    method = OneModel(SETTING, torch.ones(SIZE), Uniform(), aggregator)
    rounds = []
    for t, value in enumerate((1.0, math.nan, math.nan), start=1):
        before = method.model
        method.absorb(t, method.screened(t, checked(replies(torch.full((1, SIZE), value)))))
        rounds.append(float((method.model - before).std()))
    # z·C over the cohort is 0.1; single precision around 1 loses little.
    assert rounds == pytest.approx([0.1] * 3, rel=0.05)
    assert "rolled_back" not in method.figures()


def test_a_private_model_is_never_rolled_back():
    method = OneModel(SETTING, torch.full((SIZE,), 1e-6), Uniform(), DPFedAvg(delta=None))
    for t, value in enumerate((0.0, math.nan), start=1):
        before = method.model
        method.absorb(t, checked(replies(torch.full((1, SIZE), value))))
    # The first round's noise is far above the model.
    assert float((method.model - before).std()) == pytest.approx(0.1, rel=0.05)


def test_noise_comes_from_the_seed_in_simulations_and_from_the_system_otherwise(monkeypatch):
    def noise(live: bool) -> Tensor:
        return begun(replace(SETTING, live=live)).combine(1, torch.zeros(SIZE), replies(torch.zeros(1, SIZE)))

    assert torch.equal(noise(live=False), noise(live=False))
    assert not torch.equal(noise(live=True), noise(live=True))
    monkeypatch.setattr("covey.randomness.os.urandom", lambda count: b"\x5a" * count)
    assert torch.equal(noise(live=True), noise(live=True))


def test_the_bound_follows_the_quantile_of_update_lengths():
    """Andrew et al.: half of the updates are shorter than 3, whatever C begins with."""
    states = updates([1.0, 2.0, 2.9, 2.95, 2.99, 3.0, 3.01, 3.05, 4.0, 9.0])
    for first in (0.1, 30.0):
        aggregator = begun(clip=first, quantile=0.5, noise=0.1, count_noise=0.5)
        for t in range(1, 200):
            aggregator.combine(t, torch.zeros(SIZE), replies(states))
        assert aggregator.bound == pytest.approx(3.0, rel=0.15)


def test_the_bound_moves_by_the_rule_of_the_paper():
    aggregator = begun(quantile=0.25, noise=0.01, count_noise=1e-2, clip_rate=0.4, clip=2.0)
    aggregator.combine(1, torch.zeros(SIZE), replies(updates([1.0] * 7 + [5.0] * 3)))
    assert aggregator.bound == pytest.approx(2 * math.exp(-0.4 * (0.7 - 0.25)), rel=2e-3)
    assert aggregator.figures()["share_within_clip"] == pytest.approx(0.7, abs=0.005)


def test_counting_short_updates_is_paid_by_more_noise_on_the_updates():
    aggregator = begun(quantile=0.5, noise=1.0, count_noise=2.0)
    both = aggregator.update_noise**-2 + (2 * 2.0) ** -2
    assert both == pytest.approx(1.0)
    noise = aggregator.combine(1, torch.zeros(SIZE), replies(torch.zeros(1, SIZE)))
    assert float(noise.std()) == pytest.approx(aggregator.update_noise / 10, rel=0.03)
    with pytest.raises(Refusal, match=r"count_noise must be above half of aggregator.noise"):
        begun(quantile=0.5, noise=1.0, count_noise=0.5)


# ε


def test_epsilon_without_amplification_is_that_of_a_privacy_loss_distribution():
    """The library's accountant doubles the sensitivity where one is replaced, as is right for a sum of updates."""
    known = pld.PLDAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    known.compose(dp_accounting.GaussianDpEvent(5.0), 100)
    assert composed_rounds(5.0, 10, 10, 100, 1e-5) == pytest.approx(known.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (5.0, 100)])
def test_epsilon_with_amplification_is_that_of_sampling_without_replacement(noise, rounds):
    known = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    one = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(noise / 2))
    known.compose(one, rounds)
    found = composed_rounds(noise, 10, 1000, rounds, 1e-5)
    assert found == pytest.approx(known.get_epsilon(1e-5), rel=1e-9)
    assert found < composed_rounds(noise, 10, 10, rounds, 1e-5)


def test_amplification_is_never_worse_than_none():
    """With little noise the bound for sampling is loose."""
    assert composed_rounds(0.5, 50, 100, 500, 1e-5) == composed_rounds(0.5, 50, 50, 500, 1e-5)
    aggregator = begun(replace(SETTING, cohort=50), noise=0.5)
    aggregator.observe(500, replies(torch.zeros(0, SIZE)))
    assert aggregator.figures()["amplified"] is False


def test_records_tell_epsilon_which_grows_with_rounds_and_counts_those_without_replies():
    aggregator = begun(noise=3.0)
    told = []
    for t in (1, 2, 3):
        aggregator.observe(t, replies(torch.zeros(0, SIZE)))
        told.append(aggregator.figures())
    values = [composed_rounds(3.0, 10, 100, t, 1e-5) for t in (1, 2, 3)]
    assert [figures["epsilon"] for figures in told] == values == sorted(values)
    assert told[0]["delta"] == 1e-5
    assert told[0]["amplified"] is True


def configured(**settings: Any) -> Config:
    return Config.of({**SMALL, "aggregator": "dp-fedavg", **settings})


@pytest.mark.parametrize(
    ("settings", "uniform"),
    [
        ({}, True),
        ({"devices": {"dropout": 0.2}}, True),
        ({"devices": {"availability": 0.5}}, False),
        ({"selector": "power-of-choice"}, False),
        ({"selector": "fedacs"}, False),
        ({"selector": "oort-simple"}, False),
        ({"runtime": "fleet"}, False),
    ],
)
def test_only_cohorts_drawn_uniformly_from_all_clients_are_amplified(settings, uniform):
    setting = setting_of(configured(**settings), 8, 10, SETTING.layout)
    assert setting.uniform_sampling is uniform
    assert setting.live is (settings.get("runtime") == "fleet")
    aggregator = begun(replace(setting, clients=1000), noise=5.0)
    plain = composed_rounds(5.0, 4, 4, 10, 1e-5)
    value = aggregator.epsilon(10)
    assert value is not None
    assert (value < plain) is uniform
    assert value == plain or uniform


def test_clients_of_a_strategy_are_real():
    strategy = Strategy(model=net(), clients=3, cohort=1, aggregator="dp-fedavg", evaluate=0.0)
    app = client_app(net, points(0), threads=1)
    strategy.start(InProcessGrid(app, 3), ArrayRecord(net().state_dict()), num_rounds=1)
    assert isinstance(strategy.method, OneModel)
    setting = strategy.method.setting
    assert setting.live and not setting.uniform_sampling
    assert strategy.history[0]["figures"]["epsilon"] == composed_rounds(1.0, 1, 1, 1, 1e-5)


def test_a_run_repeats_by_its_seed_and_resumes_to_the_same_bits(tmp_path):
    given: dict[str, Any] = {**SMALL, "rounds": 4, "aggregator": {"name": "dp-fedavg", "noise": 0.5, "quantile": 0.5}}
    one, two = (run(given, out=tmp_path / name) for name in ("one", "two"))

    def stop(record: Any) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, out=tmp_path / "cut", on_round=stop)
    cut = resume(tmp_path / "cut")
    whole = saved_state(tmp_path / "one")
    for name, other in (("two", two), ("cut", cut)):
        state = saved_state(tmp_path / name)
        assert torch.equal(state["model"], whole["model"])
        assert state["aggregator"] == whole["aggregator"]
        assert without_timings(other.metrics) == without_timings(one.metrics)
    figures = [row["figures"] for row in one.metrics]
    epsilons = [row["epsilon"] for row in figures]
    assert epsilons == sorted(epsilons)
    assert len({row["clip"] for row in figures}) == 4


# Options


def test_without_delta_nothing_is_computed_and_no_package_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    aggregator = begun(delta=None)
    aggregator.observe(1, replies(torch.zeros(0, SIZE)))
    assert "epsilon" not in aggregator.figures()
    with pytest.raises(Refusal, match=r"pip install '.\[privacy\]'"):
        begun()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise": 0.0}, "aggregator.noise must be above 0"),
        ({"clip": math.inf}, "aggregator.clip must be above 0 and finite"),
        ({"delta": 1.0}, "aggregator.delta must be between 0 and 1"),
        ({"quantile": 1.5}, "aggregator.quantile is a share"),
        ({"clip_rate": 0.0}, "aggregator.clip_rate must be above 0"),
        ({"count_noise": -1.0}, "aggregator.count_noise must not be negative"),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        DPFedAvg(**options)
