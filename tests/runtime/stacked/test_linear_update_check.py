"""The operator that moves linear layers is checked on the device, and used for plain SGD alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from covey import Config
from covey.core.build import build_federation
from covey.core.trainer import TrainerRef
from covey.model import build_model
from covey.runtime.stacked import linear_update_check
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.lane_step import StepTerms
from covey.runtime.stacked.linear_update import update_plainly
from covey.runtime.stacked.linear_update_check import movable_layers, updates_agree, worst_update_error
from covey.runtime.stacked.split_linear import SETTING
from tests.conftest import SMALL

PLAIN = StepTerms(momentum=False, weight_decay=False, proximal=False, crop=0, flip=False)
ALL = replace(PLAIN, momentum=True, weight_decay=True, proximal=True)


@pytest.fixture
def engine(monkeypatch):
    """An engine on a CPU, as if there were kernels."""
    monkeypatch.setenv(SETTING, "1")
    dataset = build_federation(Config.of(SMALL)).dataset
    made = Engine(build_model("mlp", {"hidden": (1024,)}, (1, 8, 8), 10, 0), dataset, "bf16", torch.device("cpu"))
    made.has_kernels = True
    return made


@pytest.mark.parametrize(
    ("terms", "movable"),
    [
        (PLAIN, True),
        (ALL, True),
        (replace(PLAIN, traced="layers.head.weight"), True),
        (replace(PLAIN, traced="layers.hidden0.weight"), False),
        (replace(PLAIN, adam=True), False),
        (replace(PLAIN, clip=True), False),
        (replace(PLAIN, trainer=TrainerRef("scaffold")), False),
    ],
)
def test_layers_are_moved_by_one_operator_under_plain_sgd_alone(engine, terms, movable):
    assert movable_layers(engine, terms) == (["layers.hidden0"] if movable else [])


def test_layers_stay_without_kernels_in_exact_precisions_and_where_a_variable_says_so(engine, monkeypatch):
    for precision in ("fp32", "fp64"):
        engine.precision = precision
        assert movable_layers(engine, PLAIN) == []
    engine.precision = "tf32"
    assert movable_layers(engine, PLAIN) == ["layers.hidden0"]
    monkeypatch.delenv(SETTING)
    assert movable_layers(engine, PLAIN) == []
    monkeypatch.setenv(SETTING, "1")
    engine.has_kernels = False
    assert movable_layers(engine, PLAIN) == []


@pytest.mark.parametrize("terms", [PLAIN, ALL])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sound_operator_passes(engine, terms, dtype):
    assert worst_update_error(nn.Linear(70, 33), 10, dtype, torch.device("cpu"), terms) < 1e-5
    assert updates_agree(engine, ["layers.hidden0"], terms, 10)


def left_out(*inputs, **others):
    """Do nothing."""


def without_momentum(by_output, x, rate, settings, received, weight, working, velocity, *, decays):
    update_plainly(by_output, x, rate, settings, received, weight, working, None, decays)


def stale_copy(by_output, x, rate, settings, received, weight, working, velocity, *, decays):
    update_plainly(by_output, x, rate, settings, received, weight, None, velocity, decays)


def moves_idle_lanes(by_output, x, rate, *others, decays):
    update_plainly(by_output, x, rate + 1e-2, *(*others, decays))


def not_a_number(by_output, x, rate, *others, decays):
    update_plainly(by_output * torch.nan, x, rate, *(*others, decays))


def fails(*inputs, **others):
    raise RuntimeError("it does not compile")


@pytest.mark.parametrize("error", [left_out, without_momentum, stale_copy, moves_idle_lanes, not_a_number, fails])
def test_an_operator_that_errs_is_found(engine, monkeypatch, error):
    monkeypatch.setattr(linear_update_check, "update_weights", error)
    assert not updates_agree(engine, ["layers.hidden0"], ALL, 10)


def test_running_out_of_memory_is_no_verdict(engine, monkeypatch):
    def too_much(*inputs, **others):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(linear_update_check, "update_weights", too_much)
    with pytest.raises(torch.OutOfMemoryError):
        updates_agree(engine, ["layers.hidden0"], ALL, 10)
