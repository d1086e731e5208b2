"""Lanes of a stack that are given the same must come to the same; where they do not, the GPU is not to be trusted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from covey import Config, Refusal
from covey.config import Local
from covey.federations import build_federation
from covey.layout import Layout
from covey.messages import Order
from covey.models import build_model
from covey.runtimes import StackedRuntime
from covey.runtimes.stacked.agreement import SHARE, odd_lanes
from covey.runtimes.stacked.launcher import _at
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


def step_of(launcher, spoil=lambda lanes: None):
    def step():
        launcher._step(launcher.lanes, launcher.engine.gallery.x, **_at(launcher._buffers, 0))
        spoil(launcher.lanes)

    return step


def found(launcher, spoil=lambda lanes: None):
    return odd_lanes(launcher.lanes, launcher._buffers, launcher.engine.module, step_of(launcher, spoil))


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
    held = {**launcher._state(), "settings": launcher.lanes.settings, **launcher._buffers}
    held |= {f"received.{name}": value for name, value in launcher.lanes.received.items()}
    before = {name: value.clone() for name, value in held.items()}
    steps = []
    assert found(launcher, lambda lanes: steps.append({k: v.clone() for k, v in lanes.parameters.items()})) == ([], [])
    assert all(torch.equal(before[name], value) for name, value in held.items())
    # The step was a real one, from the module's own state.
    (after,) = steps
    state = dict(launcher.engine.module.named_parameters())
    assert all((after[name][0] != state[name]).any() for name in after)


@pytest.mark.parametrize(
    ("spoil", "odd", "places"),
    [
        (
            lambda lanes: lanes.parameters[WEIGHT][4].view(-1)[3].fill_(torch.nan),
            [4],
            [WEIGHT],
        ),
        (lambda lanes: lanes.parameters[BIAS][1:3].fill_(torch.inf), [1, 2], [BIAS]),
        (lambda lanes: lanes.parameters[HEAD][5].mul_(1.1), [5], [HEAD]),
        (lambda lanes: lanes.loss[2].fill_(torch.nan), [2], ["loss"]),
        # Which lane is right cannot be told; that they differ can.
        (
            lambda lanes: lanes.parameters[WEIGHT][0].zero_(),
            [1, 2, 3, 4, 5],
            [WEIGHT],
        ),
        (lambda lanes: lanes.parameters[BIAS][:5].fill_(torch.nan), [0, 1, 2, 3, 4, 5], None),
    ],
)
def test_lanes_that_come_to_something_else_are_found(spoil, odd, places):
    launcher = trained()
    everywhere = [*launcher.lanes.parameters]
    assert found(launcher, spoil) == (odd, places or everywhere)


def test_a_model_without_a_finite_step_is_not_the_devices_fault():
    assert found(trained(), lambda lanes: lanes.parameters[BIAS].fill_(torch.nan)) == ([], [])
    assert found(trained(rate=1e38)) == ([], [])


def test_a_change_of_half_the_size_is_found_and_rounding_is_not():
    launcher = trained()
    state = dict(launcher.engine.module.named_parameters())

    def scaled(by):
        def spoil(lanes):
            for name, value in lanes.parameters.items():
                value[3] = state[name].detach() + by * (value[3] - state[name].detach())

        return spoil

    assert found(launcher, scaled(0.5)).lanes == [3]
    assert found(launcher, scaled(1.01)).lanes == []


def test_a_stack_whose_lanes_do_not_agree_is_refused(monkeypatch):
    launcher = trained()
    monkeypatch.setattr(launcher, "_record_fastest", lambda: None)
    spoil = lambda lanes: next(iter(lanes.parameters.values()))[1:].fill_(torch.nan)  # noqa: E731
    launcher._graph = SimpleNamespace(replay=step_of(launcher, spoil))
    monkeypatch.delenv(SHARE, raising=False)
    with pytest.raises(
        Refusal, match=r"5 of 6 models of MLP .* \(numbers 1, 2, 3, 4, 5; in .*weight\).*errs\. The local"
    ) as refused:
        launcher._capture()
    assert SHARE not in str(refused.value)
    monkeypatch.setenv(SHARE, "60")
    with pytest.raises(Refusal, match=f"{SHARE} is 60: unset it"):
        launcher._capture()
    launcher._graph = SimpleNamespace(replay=step_of(launcher))
    launcher._capture()


def test_a_stack_that_fills_the_memory_is_not_looked_at(monkeypatch):
    launcher = trained()
    monkeypatch.setattr(launcher, "_record_fastest", lambda: None)

    def too_much(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("covey.runtimes.stacked.launcher.odd_lanes", too_much)
    launcher._graph = SimpleNamespace(replay=too_much)
    launcher._capture()
