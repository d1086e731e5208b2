"""Learning rates over rounds: cosine, steps, warm-up, and what depends on them."""

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from covey import Config, Refusal, run
from covey.client.length import length_of_steps
from covey.config.sections import Local
from covey.core.build import build_method, build_module, dataset_of
from covey.job.on_demand.fine_tune import _fine_tune_config, continued_config
from covey.job.settings import as_config
from tests.conftest import SMALL
from tests.equal_runs import ends_the_same

COSINE: dict[str, Any] = {"rate": 0.2, "schedule": "cosine"}


def rates(work: Local, rounds: int) -> list[float]:
    return [work.rate_at(t, 0) for t in range(1, rounds + 1)]


def test_the_default_has_the_rates_of_before_to_the_bit():
    work = Local(rate=0.07, decay=0.99, epochs=3)
    for t in (1, 2, 57):
        for epoch in range(3):
            assert work.rate_at(t, epoch) == 0.07 * 0.99 ** ((t - 1) * 3 + epoch)


def test_a_cosine_is_that_of_torch_and_stays_at_its_last_rate():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=0.2)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7)
    expected = []
    for _ in range(7):
        expected.append(theirs.get_last_lr()[0])
        optimiser.step()
        theirs.step()
    work = Local(**COSINE, schedule_rounds=7)
    assert rates(work, 7) == pytest.approx(expected, rel=1e-12)
    assert rates(work, 10)[7:] == [work.rate_at(7, 0)] * 3


def test_a_step_leaves_its_share_after_every_so_many_rounds():
    work = Local(rate=1.0, schedule="step", schedule_rounds=2, schedule_factor=0.5)
    assert rates(work, 6) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_a_warm_up_rises_evenly_and_the_schedule_follows():
    assert rates(Local(rate=1.0, warmup=3), 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    warmed = rates(Local(rate=1.0, schedule="cosine", schedule_rounds=6, warmup=2), 6)
    assert warmed == pytest.approx([1 / 3, 2 / 3, *rates(Local(rate=1.0, schedule="cosine", schedule_rounds=4), 4)])


def test_a_schedule_and_the_decay_of_epochs_multiply():
    work = Local(rate=1.0, decay=0.5, epochs=2, schedule="step", schedule_rounds=1, schedule_factor=0.1)
    assert [work.rate_at(2, epoch) for epoch in (0, 1)] == pytest.approx([0.1 / 4, 0.1 / 8])


def test_rates_stay_above_zero_in_float32():
    for work in (
        Local(**COSINE, schedule_rounds=10**9),
        Local(schedule="step", schedule_rounds=1),
        Local(decay=0.1, epochs=5, warmup=2),
    ):
        assert all(np.float32(work.rate_at(t, 0)) > 0 for t in (1, 500, 10**9, 10**9 + 1))


@pytest.mark.parametrize(
    ("local", "sentence"),
    [
        ({"schedule": "linear"}, "local.schedule must be one of constant, cosine, step, not 'linear'."),
        ({"schedule": "step"}, "local.schedule=step needs local.schedule_rounds, the rounds between two steps."),
        ({"schedule_rounds": -1}, "local.schedule_rounds must not be negative, not -1."),
        ({"warmup": -1}, "local.warmup must not be negative, not -1; 0 switches it off."),
        ({"schedule_factor": 0}, "local.schedule_factor is a share between 0 and 1, not 0."),
        ({"schedule_factor": 1.0}, "local.schedule_factor is a share between 0 and 1, not 1."),
        ({"schedule": "cosine", "warmup": 3}, "local.warmup must be below local.schedule_rounds (3), not 3"),
        ({"schedule": "step", "schedule_rounds": 2, "warmup": 2}, "must be below local.schedule_rounds (2), not 2"),
    ],
)
def test_senseless_schedules_are_refused(local, sentence):
    with pytest.raises(Refusal) as refusal:
        Config.of(rounds=3, local=local)
    assert sentence in str(refusal.value)
    with pytest.raises(Refusal, match="the rounds until it ends"):
        Local(schedule="cosine")


def test_a_cosine_is_as_long_as_the_run_and_keeps_its_length_when_more_rounds_follow():
    config = Config.of(rounds=8, local=COSINE)
    assert config.local.schedule_rounds == 8
    assert Config.of(local=COSINE).local.schedule_rounds == Config.rounds
    assert Config.of(rounds=8, local={**COSINE, "schedule_rounds": 5}).local.schedule_rounds == 5
    assert Config.of(config.as_mapping()) == config
    longer = as_config(config, {"rounds": 20})
    assert (longer.rounds, longer.local) == (20, config.local)
    assert Config.of(rounds=8).local.schedule_rounds == 0


def test_folders_from_before_there_were_schedules_have_a_constant_rate():
    mapping = Config.of({"local": {"momentum": 0.5}}).as_mapping()
    for name in ("schedule", "schedule_rounds", "schedule_factor", "warmup"):
        del mapping["local"][name]
    assert Config.stored(mapping).local == Local(momentum=0.5)


def test_a_checkpoint_from_before_there_were_schedules_keeps_the_guards_norms():
    """Norms are a measure as long as clients train in the same way, whatever settings exist by now."""
    config = Config.of(SMALL)
    dataset = dataset_of(config)
    method, later = (build_method(config, build_module(config, dataset), 8, 10) for _ in range(2))
    state = method.state_dict()
    state["guard"]["norms"] = [1.0, 2.0]
    for name in ("schedule", "schedule_rounds", "schedule_factor", "warmup"):
        del state["guard"]["work"][name]
    later.load_state_dict(state)
    assert list(later.state_dict()["guard"]["norms"]) == [1.0, 2.0]
    state["guard"]["work"] = asdict(replace(config.local, rate=0.3))
    later.load_state_dict(state)
    assert list(later.state_dict()["guard"]["norms"]) == []


def test_the_length_of_steps_follows_the_schedule():
    work = Local(epochs=2, rate=0.1, momentum=0.5, schedule="cosine", schedule_rounds=4, warmup=1)
    for t in (1, 3, 9):
        expected = sum(work.rate_at(t, 0) * (1 - 0.5**step) / 0.5 for step in range(1, 7))
        assert length_of_steps(work, t, 3) == pytest.approx(expected, rel=1e-12)
    assert length_of_steps(work, 4, 3) < length_of_steps(work, 2, 3)
    # A constant gradient moves SGD by exactly this far.
    moved, velocity = 0.0, 0.0
    for _ in range(6):
        velocity = 0.5 * velocity + 1.0
        moved += work.rate_at(3, 0) * velocity
    assert moved == pytest.approx(length_of_steps(work, 3, 3), rel=1e-12)


@pytest.mark.parametrize("trainer", ["sgd", "feddyn"])
def test_a_cosine_with_warm_up_ends_the_same_on_every_runtime_and_when_it_is_resumed(trainer, tmp_path):
    work = {"epochs": 2, "batch": 8, "schedule": "cosine", "warmup": 2}
    given = {**SMALL, "rounds": 5, "precision": "fp64", "trainer": trainer, "local": work}
    given["devices"] = {"dropout": 0.3}
    ends_the_same(given, tmp_path)
    plain = run(given, local={"schedule": "constant", "warmup": 0}, out=tmp_path / "plain")
    assert plain.metrics[-1]["loss"] != run(given, out=tmp_path / "scheduled").metrics[-1]["loss"]


def test_models_on_demand_go_on_from_the_rate_that_the_schedule_has_reached():
    base = Config.of({**SMALL, "rounds": 10, "local": {**COSINE, "epochs": 1}})
    plan = {"settings": {}, "base_round": 6, "rounds": 4}
    composition = type("Composition", (), {"clients": np.array([0, 1]), "ratios": np.array([0.5, 0.5])})
    reached = 0.2 * (1 + math.cos(math.pi * 6 / 10)) / 2
    tuned = _fine_tune_config(base, plan, composition)  # type: ignore[arg-type]
    assert rates(tuned.local, 4) == pytest.approx([reached] * 4)
    assert rates(continued_config(base, plan).local, 10)[6:] == pytest.approx([reached] * 4)
    with pytest.raises(Refusal, match="leave out --continued"):
        continued_config(base, {**plan, "settings": {"local": {"schedule": "cosine"}}})
