"""The server's half of a trainer and what its clients keep go together, also when a model is taken back."""

import warnings

import numpy as np
import torch

from covey.aggregation.average import Average
from covey.config.sections import GuardLimits, Local
from covey.core.interfaces import Setting
from covey.core.one_model import OneModel
from covey.core.replies import TRAINER, Replies, checked
from covey.core.trainer import KEPT
from covey.core.trainer_state import TrainerChoice
from covey.model.layout import Layout, Slot
from covey.selection.uniform import Uniform

SLOT = (Slot("w", (2,), 0),)
SETTING = Setting(3, 3, 9, 10, 0, Layout(SLOT, (), SLOT), Local())


def replies(value: float) -> Replies:
    """All three clients trained to the same model, and keep something."""
    ones = torch.ones(3, dtype=torch.int64)
    length = {TRAINER: {"length": torch.ones(3, dtype=torch.float64)}}
    kept = {TRAINER: {client: {KEPT: torch.full((2,), value)} for client in range(3)}}
    states = torch.full((3, 2), value, dtype=torch.float64)
    return checked(Replies(np.arange(3), states, ones, ones.double(), length, kept=kept))


def test_a_model_that_is_taken_back_leaves_no_client_that_one_half_alone_has_seen() -> None:
    trainer = TrainerChoice("scaffold", {})
    start = torch.ones(2, dtype=torch.float64)
    one = OneModel(SETTING, start, Uniform(), Average(weighted=False), trainer=trainer, limits=GuardLimits(norm=0))
    begun = one.state_dict()["trainer"]["part"]
    one.absorb(1, replies(2.0))
    # From here the model leaps, and clients have kept what they saw on the way.
    one.absorb(2, replies(1e9))
    assert len(trainer.store) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one.absorb(3, replies(float("nan")))
    assert one.model.tolist() == [2.0, 2.0]
    assert len(trainer.store) == 0
    assert not one.order(4, np.arange(3)).trainer.kept  # type: ignore[union-attr]
    state = one.state_dict()["trainer"]
    assert state["part"]["seen"] == begun["seen"] == []
    assert torch.equal(state["part"]["sum"], begun["sum"])
    assert state["kept"] == {}
