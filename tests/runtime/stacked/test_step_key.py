"""The key of a kept step tells apart all that changes what is compiled, and is empty where that cannot be told."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from covey.core.trainer import TrainerRef
from covey.model import build_model
from covey.runtime.stacked.lane_step import StepTerms
from covey.runtime.stacked.stack_module import stack_module
from covey.runtime.stacked.step_key import step_key
from covey.task.classification import Classification
from covey.task.custom import Custom

TERMS = StepTerms(momentum=False, weight_decay=False, proximal=False, crop=0, flip=False)


def model(name="tutorial-cnn", algorithms=None, updated=(), **options):
    module = build_model(name, options, (3, 32, 32), 10, seed=0)
    return stack_module(module, algorithms or {"conv1": "windows", "conv2": "slices"}, updated)


def key(module=None, terms=TERMS, task=None, machine="one", precision="fp32"):
    return step_key(module or model(), terms, task or Classification(), machine, precision)


def test_equal_steps_have_equal_keys_whatever_their_parameters_are():
    other = model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert key() == key(other) != ""


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "another"},
        {"precision": "bf16"},
        {"terms": replace(TERMS, momentum=True)},
        {"terms": replace(TERMS, traced="fc3.weight")},
        {"terms": replace(TERMS, trainer=TrainerRef("scaffold"))},
        {"terms": replace(TERMS, trainer=TrainerRef("moon", (("mu", 2.0),)))},
        {"module": model(algorithms={"conv1": "windows", "conv2": "grouped"})},
        {"module": model(updated=["fc1"])},
        {"module": model("mcmahan-cnn")},
    ],
    ids=str,
)
def test_what_changes_the_step_changes_its_key(change):
    assert key(**change) not in ("", key())


def test_options_of_a_trainer_and_of_a_layer_are_part_of_the_key():
    refs = [TrainerRef("moon", (("mu", mu),)) for mu in (1.0, 2.0)]
    assert len({key(terms=replace(TERMS, trainer=ref)) for ref in refs}) == 2
    dropout = model("fashion-cnn")
    before = key(dropout)
    dropout.dropout.p = 0.9
    assert key(dropout) != before


def test_settings_of_the_compiler_are_part_of_the_key(monkeypatch):
    before = key()
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert key() != before


def test_changed_sources_change_the_key(monkeypatch):
    before = key()
    monkeypatch.setattr("covey.runtime.stacked.step_key.source_digest", lambda: "other")
    assert key() != before


class Own(nn.Module):
    """A layer of somebody's own."""

    def forward(self, x):
        return x


def test_code_from_outside_has_no_key():
    module = model()
    module.fc3 = Own()
    assert key(module) == ""
    assert key(task=Custom(loss="mine:loss")) == ""
    module = model()
    module.fc3.hidden = object()
    assert key(module) == ""
