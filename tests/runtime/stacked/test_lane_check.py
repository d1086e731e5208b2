"""Lanes given the same model and batch must agree; those that do not are found."""

import numpy as np
import pytest
import torch

from covey import Config
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.model import build_model
from covey.model.layout import Layout
from covey.runtime import StackedRuntime
from covey.runtime.stacked.lane_check import TRIALS, check_lanes, same_step
from tests.conftest import SMALL

WEIGHT, BIAS, HEAD = "layers.hidden0.weight", "layers.hidden0.bias", "layers.head.weight"


def trained(model="mlp", precision="fp32", **work):
    """A launcher that has trained six clients, each in a lane of its own."""
    given = {**SMALL, "environment": "iid"}
    if model == "mobilenetv2":
        given |= {"dataset": {"name": "synthetic", "shape": (3, 32, 32), "train": 160, "test": 20}}
    federation = build_federation(Config.of(given))
    module = build_model(model, {}, federation.dataset.shape, federation.dataset.classes, seed=0)
    runtime = StackedRuntime(federation, module, precision=precision)
    start = Layout.of(module).read(module).to(runtime.engine.dtype)
    runtime.execute(Order(1, np.arange(6), start, Local(epochs=1, batch=4, **work)))
    (launcher,) = runtime.engine._launchers.values()
    return launcher


def nothing(lanes):
    """Leave the lanes as a sound step leaves them."""


def step_of(launcher, spoil=nothing):
    def step():
        launcher.steps.advance(0, 1)
        spoil(launcher.lanes)

    return step


def found(launcher, spoil=nothing):
    return check_lanes(launcher.lanes, launcher.steps.schedule, launcher.engine.module, step_of(launcher, spoil))


def held(launcher):
    """Return every tensor that a step reads or writes."""
    return [*launcher.lanes.tensors(), *launcher.steps.schedule.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision", "work"),
    [
        ("mlp", "fp32", {}),
        ("mlp", "bf16", {"momentum": 0.9, "weight_decay": 1e-3, "proximal": 0.1}),
        ("mobilenetv2", "fp32", {"momentum": 0.9}),
        ("mlp", "bf16", {"optimizer": "adam", "rate": 0.002, "clip": 0.1, "weight_decay": 1e-3}),
        ("mobilenetv2", "fp32", {"optimizer": "adam", "rate": 0.002}),
    ],
)
def test_sound_lanes_agree_and_are_left_as_they_were(model, precision, work):
    launcher = trained(model, precision, **work)
    before = [value.clone() for value in held(launcher)]
    state = {name: value.detach() for name, value in launcher.engine.module.named_parameters()}
    step, begun, ended = step_of(launcher), [], []

    def watched():
        begun.append({name: value.clone() for name, value in launcher.lanes.parameters.items()})
        step()
        ended.append({name: value.clone() for name, value in launcher.lanes.parameters.items()})

    assert check_lanes(launcher.lanes, launcher.steps.schedule, launcher.engine.module, watched) == ([], [])
    assert all(map(torch.equal, before, held(launcher)))
    # Each trial was a step from the module's own state, the same for all lanes.
    assert len(begun) == TRIALS
    for one, other in zip(begun, ended, strict=True):
        assert all(torch.equal(value, state[name].expand_as(value)) for name, value in one.items())
        assert all((value != one[name]).any() for name, value in other.items())
        assert all(torch.allclose(value, value[:1].expand_as(value)) for value in other.values())


@pytest.mark.parametrize(
    ("spoil", "odd", "places"),
    [
        (lambda lanes: lanes.parameters[WEIGHT][4].view(-1)[3].fill_(torch.nan), [4], [WEIGHT]),
        (lambda lanes: lanes.parameters[BIAS][1:3].fill_(torch.inf), [1, 2], [BIAS]),
        (lambda lanes: lanes.parameters[HEAD][5].add_(1.0), [5], [HEAD]),
        (lambda lanes: lanes.parameters[WEIGHT][0].zero_(), [0], [WEIGHT]),
        (lambda lanes: lanes.loss[2].fill_(torch.nan), [2], ["loss"]),
        (lambda lanes: lanes.loss[3].mul_(1.5), [3], ["loss"]),
        # Every lane has some, but not the same.
        (
            lambda lanes: (
                lanes.parameters[BIAS][:3].fill_(torch.nan),
                lanes.parameters[HEAD][3:].fill_(torch.nan),
            ),
            [0, 1, 2, 3, 4, 5],
            [BIAS, HEAD],
        ),
    ],
)
def test_lanes_that_differ_are_found(spoil, odd, places):
    assert found(trained(), spoil) == (odd, places)


def test_a_wrong_working_copy_is_found():
    assert found(trained(precision="bf16"), lambda lanes: lanes.working[HEAD][1].add_(0.5)) == ([1], [HEAD])


def test_an_occasional_error_is_found():
    launcher, times = trained(), iter((False, False, True))
    assert found(launcher, lambda lanes: next(times) and lanes.parameters[BIAS][2].fill_(torch.nan)) == ([2], [BIAS])


@pytest.mark.parametrize("spoil", [nothing, lambda lanes: lanes.parameters[BIAS].fill_(torch.nan)])
def test_a_model_without_a_finite_step_is_not_the_devices_fault(spoil):
    assert found(trained(rate=0.1 if spoil is not nothing else 1e38), spoil) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rate"), [("mlp", 0.1), ("mobilenetv2", 0.001)])
@pytest.mark.parametrize(("by", "odd"), [(0.0, [3]), (20.0, [3]), (3.0, []), (-1.0, [])])
def test_the_size_of_a_change_counts_and_not_its_direction(model, rate, by, odd):
    """Rounding may reverse a gradient of a deep network. Statistics of batch norm are judged apart from parameters,
    whose changes are far smaller."""
    launcher = trained(model, rate=rate)
    state = {name: value.detach() for name, value in launcher.engine.module.named_parameters()}

    def scaled(lanes):
        for name, value in lanes.parameters.items():
            value[3] = state[name] + by * (value[3] - state[name])

    assert found(launcher, scaled).lanes == odd


def test_lanes_are_left_as_they_were_where_the_step_fails():
    launcher = trained()
    before = [value.clone() for value in held(launcher)]

    def fails():
        launcher.lanes.parameters[BIAS].zero_()
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        check_lanes(launcher.lanes, launcher.steps.schedule, launcher.engine.module, fails)
    assert all(map(torch.equal, before, held(launcher)))


@pytest.mark.parametrize(
    ("spoil", "same"),
    [
        (nothing, True),
        (lambda lanes: lanes.parameters[WEIGHT].mul_(1 + 1e-6), True),
        (lambda lanes: lanes.parameters[WEIGHT].mul_(1.5), False),
        (lambda lanes: lanes.parameters[HEAD][1].add_(1.0), False),
        (lambda lanes: lanes.parameters[BIAS].fill_(torch.nan), False),
    ],
)
def test_two_ways_to_take_a_step_are_the_same_or_not(spoil, same):
    launcher = trained(momentum=0.9)
    before = [value.clone() for value in held(launcher)]
    assert same_step(launcher.lanes, launcher.engine.module, step_of(launcher), step_of(launcher, spoil)) == same
    assert all(map(torch.equal, before, held(launcher)))
