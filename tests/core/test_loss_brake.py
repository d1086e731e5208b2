"""The brake against divergence: when the server's rate halves, and what is kept of it."""

import math
import warnings

import numpy as np
import pytest
import torch

from covey import Config, Refusal, resume, run
from covey.aggregation.norm_bound import NormBound
from covey.config.sections import Local
from covey.config.server_sections import ServerStep
from covey.core.interfaces import Setting
from covey.core.loss_brake import LossBrake
from covey.core.one_model import OneModel
from covey.core.replies import Replies
from covey.model.factory import build_model
from covey.model.layout import Layout
from covey.selection.uniform import Uniform
from tests.conftest import SMALL, saved_state, without_timings

STEADY = [2.3, 1.8, 1.4, 1.2, 1.1, 1.0]


def after(losses, factor: float = 2.0) -> LossBrake:
    brake = LossBrake(factor)
    for loss in losses:
        brake = brake.after(loss, loss)
    return brake


def test_a_falling_loss_halves_nothing():
    assert after(STEADY).share == 1


def test_a_loss_that_doubles_halves_the_rate_once_and_begins_a_new_measure():
    # The median of the six is 1.3.
    assert after([*STEADY, 2.5]).share == 1
    assert after([*STEADY, 2.7]).share == 0.5
    assert after([*STEADY, 2.7, 2.7, 2.7]).share == 0.5, "until there is a measure, only the first loss is one"
    assert after([*STEADY, 2.7, 5.0]).share == 0.25


def test_twice_of_little_is_no_explosion():
    assert after([2.3, *[0.1] * 10, 0.9]).share == 1
    assert after([2.3, *[0.1] * 10, 1.2]).share == 0.5


def test_early_rounds_are_measured_by_the_first():
    assert after([2.3, 4.0]).share == 1
    assert after([2.3, 4.7]).share == 0.5


def test_unknown_losses_change_nothing_and_zero_switches_it_off():
    assert after([math.nan, 2.3, math.nan]).means.recent == (2.3,)
    assert after([*STEADY, 100.0], factor=0.0).share == 1
    assert LossBrake(0.0).halved().share == 1


def test_one_client_that_lies_about_its_loss_halves_nothing():
    honest = after(STEADY)
    assert honest.after(1000.0, 1.0).share == 1
    assert honest.after(2.7, 2.7).share == 0.5


def test_half_of_the_rate_is_left_for_honest_clients_alone(tmp_path):
    """One liar of ten; all are invited in every other round or so."""
    given = {**SMALL, "clients": 10, "cohort": 5, "rounds": 8, "attack": {"kind": "lie", "attackers": 0.1}}
    found = run(given, method="covey", out=tmp_path / "run")
    assert max(row["train_loss"] for row in found.metrics) > 100
    assert not any("server_rate" in row.get("figures", {}) for row in found.metrics)


def test_a_private_model_does_not_tell_of_losses():
    layout = Layout.of(build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0))
    rates = []
    for name in ("dp-fedavg,delta=none", "average"):
        method = OneModel(
            Setting(3, 3, 5, 10, 0, layout, Local()),
            torch.zeros(layout.size),
            Uniform(),
            NormBound(bound=1.0, around=name),
            optimizer=ServerStep(optimizer="momentum", halving=2.0),
        )
        for t, loss in enumerate((1.0, 9.0), start=1):
            losses = torch.full((3,), loss, dtype=torch.float64)
            method.absorb(t, Replies(np.arange(3), torch.zeros(3, layout.size), torch.tensor([10] * 3), losses))
        rates.append(method.figures().get("server_rate"))
    assert rates == [None, 0.5]


def test_the_state_of_earlier_versions_has_no_medians():
    old = {"halvings": 1, "first": 2.3, "recent": [1.0] * 6}
    assert LossBrake(2.0).restored(old).after(1.9, 1.9).share == 0.5
    assert LossBrake(2.0).restored(old).after(2.1, 2.1).share == 0.25


def test_it_is_restored_as_it_was():
    brake = after([*STEADY, 2.7, 2.0])
    assert LossBrake(2.0).restored(brake.as_state()) == brake
    assert LossBrake(2.0).restored({}) == LossBrake(2.0)


@pytest.mark.parametrize(("given", "sentence"), [(0.5, "above 1, or 0 for never"), (-2, "above 1, or 0 for never")])
def test_impossible_factors_are_refused(given, sentence):
    with pytest.raises(Refusal, match=sentence):
        ServerStep(optimizer="momentum", halving=given)


def test_without_an_optimiser_there_is_nothing_to_halve():
    with pytest.raises(Refusal, match=r"server\.halving has no effect with server\.optimizer=none"):
        ServerStep(halving=2)


def test_old_folders_have_no_brake():
    before = Config.of(SMALL, method="fedavgm").as_mapping()
    del before["server"]["halving"]
    assert Config.stored(before).server.halving == 0


DIVERGING = {
    **SMALL,
    "rounds": 12,
    "local": {"epochs": 1, "batch": 4, "rate": 0.3},
    "server": {"optimizer": "momentum", "rate": 6.0, "beta": 0.9},
}
"""A step of six times the mean update, with momentum: without a brake the model is lost."""


def test_a_diverging_run_is_braked_and_learns(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lost = run(DIVERGING, out=tmp_path / "lost")
        kept = run({**DIVERGING, "server": {**DIVERGING["server"], "halving": 2.0}}, out=tmp_path / "kept")
    halved = [row for row in kept.metrics if row.get("figures", {}).get("rate_halved")]
    assert halved
    rates = [row["figures"]["server_rate"] for row in kept.metrics if "server_rate" in row.get("figures", {})]
    assert rates[0] == 3.0 and rates[-1] == 6.0 * 0.5 ** len(halved)
    assert kept.metrics[-1]["loss"] < lost.metrics[-1]["loss"]


def test_a_braked_run_resumes_the_same(tmp_path):
    given = {**DIVERGING, "server": {**DIVERGING["server"], "halving": 2.0}}

    def stop(record):
        if record["round"] == 6:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = run(given, out=tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            run(given, out=tmp_path / "cut", on_round=stop)
        assert saved_state(tmp_path / "cut")["brake"]["halvings"] >= 1
        assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)


def test_the_method_covey_has_it_and_an_honest_run_does_not_feel_it(tmp_path):
    config = Config.of(SMALL, method="covey")
    assert (config.server.optimizer, config.server.rate, config.server.halving) == ("momentum", 0.3, 2.0)
    assert config.averaging.ema == 0.95
    with_brake = run(SMALL, method="covey", out=tmp_path / "with")
    without = run(SMALL, method="covey", server={"halving": 0}, out=tmp_path / "without")
    assert without_timings(with_brake.metrics) == without_timings(without.metrics)


def test_another_average_replaces_the_methods():
    assert Config.of(SMALL, method="covey", averaging={"swa": 5}).averaging.ema == 0
    assert Config.of(SMALL, method="covey", averaging={"ema": 0.8}).averaging.ema == 0.8
    assert not Config.of(SMALL, method="covey", averaging={"ema": 0}).averaging
