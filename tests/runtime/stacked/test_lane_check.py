"""Lanes of a stack that are given the same must come to the same; where they do not, the GPU is not to be trusted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from covey import Config, Refusal
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.model import build_model
from covey.model.layout import Layout
from covey.runtime import StackedRuntime
from covey.runtime.stacked.lane_check import SHARE, TRIALS, odd_lanes
from covey.runtime.stacked.launcher import _at
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
        launcher._step(launcher.lanes, launcher.engine.gallery.x, **_at(launcher._buffers, 0))
        spoil(launcher.lanes)

    return step


def found(launcher, spoil=nothing):
    return odd_lanes(launcher.lanes, launcher._buffers, launcher.engine.module, step_of(launcher, spoil))


def held(launcher):
    """Everything that a step reads or writes."""
    named = {**launcher._state(), "settings": launcher.lanes.settings, **launcher._buffers}
    return named | {f"received.{name}": value for name, value in launcher.lanes.received.items()}


@pytest.mark.parametrize(
    ("model", "precision", "work"),
    [
        ("mlp", "fp32", {}),
        ("mlp", "bf16", {"momentum": 0.9, "weight_decay": 1e-3, "proximal": 0.1}),
        ("mobilenetv2", "fp32", {"momentum": 0.9}),
    ],
)
def test_sound_lanes_agree_and_are_left_as_they_were(model, precision, work):
    launcher = trained(model, precision, **work)
    before = {name: value.clone() for name, value in held(launcher).items()}
    state = {name: value.detach() for name, value in launcher.engine.module.named_parameters()}
    step, begun, ended = step_of(launcher), [], []

    def watched():
        begun.append({name: value.clone() for name, value in launcher.lanes.parameters.items()})
        step()
        ended.append({name: value.clone() for name, value in launcher.lanes.parameters.items()})

    assert odd_lanes(launcher.lanes, launcher._buffers, launcher.engine.module, watched) == ([], [])
    assert all(torch.equal(before[name], value) for name, value in held(launcher).items())
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
def test_lanes_that_come_to_something_else_are_found(spoil, odd, places):
    assert found(trained(), spoil) == (odd, places)


def test_a_working_copy_that_is_none_is_found():
    assert found(trained(precision="bf16"), lambda lanes: lanes.working[HEAD][1].add_(0.5)) == ([1], [HEAD])


def test_an_error_that_comes_now_and_then_is_found():
    launcher, times = trained(), iter((False, False, True))
    assert found(launcher, lambda lanes: next(times) and lanes.parameters[BIAS][2].fill_(torch.nan)) == ([2], [BIAS])


@pytest.mark.parametrize("spoil", [nothing, lambda lanes: lanes.parameters[BIAS].fill_(torch.nan)])
def test_a_model_without_a_finite_step_is_not_the_devices_fault(spoil):
    assert found(trained(rate=0.1 if spoil is not nothing else 1e38), spoil) == ([], [])


@pytest.mark.parametrize(("model", "rate"), [("mlp", 0.1), ("mobilenetv2", 0.001)])
@pytest.mark.parametrize(("by", "odd"), [(0.0, [3]), (20.0, [3]), (3.0, []), (-1.0, [])])
def test_the_size_of_a_change_counts_and_not_its_direction(model, rate, by, odd):
    """Rounding may turn the gradient of a deep network round. What is said of batch norm's statistics is not said of
    parameters, whose changes are far smaller."""
    launcher = trained(model, rate=rate)
    state = {name: value.detach() for name, value in launcher.engine.module.named_parameters()}

    def scaled(lanes):
        for name, value in lanes.parameters.items():
            value[3] = state[name] + by * (value[3] - state[name])

    assert found(launcher, scaled).lanes == odd


def test_lanes_are_left_as_they_were_where_the_step_fails():
    launcher = trained()
    before = {name: value.clone() for name, value in held(launcher).items()}

    def fails():
        launcher.lanes.parameters[BIAS].zero_()
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        odd_lanes(launcher.lanes, launcher._buffers, launcher.engine.module, fails)
    assert all(torch.equal(before[name], value) for name, value in held(launcher).items())


class Recording:
    """In the place of CUDA graphs: what was recorded is done anew."""

    def __init__(self, launcher, monkeypatch, spoil=nothing):
        self.spoil, self.lanes = spoil, launcher.lanes
        monkeypatch.setattr("covey.runtime.stacked.launcher.warm_up", lambda work, device: work())
        monkeypatch.setattr("covey.runtime.stacked.launcher.recorded", self.of)
        monkeypatch.setattr("covey.runtime.stacked.launcher.replay_seconds", lambda graph, repeats: 1.0)

    def of(self, work):
        def replay():
            work()
            self.spoil(self.lanes)

        return SimpleNamespace(replay=replay)


def test_a_stack_whose_lanes_do_not_agree_is_refused(monkeypatch):
    launcher = trained()
    recording = Recording(launcher, monkeypatch, lambda lanes: lanes.parameters[WEIGHT][1:3].fill_(torch.nan))
    monkeypatch.delenv(SHARE, raising=False)
    sentence = r"2 of 6 models of MLP .* \(numbers 1, 2; in layers.hidden0.weight\).*errs\. The runtime 'local' does"
    with pytest.raises(Refusal, match=sentence) as refused:
        launcher._capture()
    assert SHARE not in str(refused.value)
    monkeypatch.setenv(SHARE, "60")
    with pytest.raises(Refusal, match=f"{SHARE} is 60: unset it"):
        launcher._capture()
    assert launcher._graph is None
    recording.spoil = nothing
    launcher._capture()
    assert launcher._graph is not None


def test_every_trial_is_the_first_step(monkeypatch):
    launcher, after = trained(), []
    Recording(launcher, monkeypatch, lambda lanes: after.append(int(launcher._counter)))
    launcher._capture()
    assert after == [1] * TRIALS


def test_a_way_whose_lanes_do_not_agree_leaves_the_others(monkeypatch):
    launcher = trained()
    recording = Recording(launcher, monkeypatch, lambda lanes: lanes.parameters[WEIGHT][1].fill_(torch.nan))
    ways, made = [{"a": "slices"}, {"a": "grouped"}], launcher._make_step

    def make_step(way):
        recording.spoil = nothing if way == ways[1] else recording.spoil
        return made({})

    monkeypatch.setattr(launcher, "_make_step", make_step)
    launcher._fastest(ways)
    assert launcher.ways == ways[1]
    recording.spoil = lambda lanes: lanes.parameters[WEIGHT][1].fill_(torch.nan)
    with pytest.raises(Refusal, match="1 of 6 models"):
        launcher._fastest(ways[:1])


def test_a_way_that_was_kept_and_errs_now_is_measured_anew(monkeypatch):
    launcher, written = trained(), []
    recording = Recording(launcher, monkeypatch)
    ways, made = [{"a": "slices"}, {"a": "grouped"}], launcher._make_step

    def make_step(way):
        recording.spoil = nothing if way == ways[1] else lambda lanes: lanes.parameters[WEIGHT][1].fill_(torch.nan)
        return made({})

    monkeypatch.setattr(launcher, "_make_step", make_step)
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.for_speed", True)
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.signatures", lambda engine, batch: str)
    for name, value in {
        "convolutions": lambda module: {"a": None},
        "candidate_ways": lambda module, kernels, exact: ways,
        "read_cache": lambda kind: {"6": ways[0]},
        "write_cache": lambda kind, known: written.append(known),
    }.items():
        monkeypatch.setattr(f"covey.runtime.stacked.launcher.{name}", value)
    launcher._capture()
    assert launcher.ways == ways[1] and launcher._graph is not None
    assert written == [{"6": ways[1]}]


def test_a_stack_that_fills_the_memory_is_not_looked_at(monkeypatch):
    launcher = trained()

    def too_much(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("covey.runtime.stacked.launcher.odd_lanes", too_much)
    Recording(launcher, monkeypatch)
    launcher._capture()
    assert launcher._graph is not None
