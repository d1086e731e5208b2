"""Progress in programs of its own."""

import torch

from covey.config.schema import Config
from covey.core.build import build_federation
from covey.core.progress import listening
from covey.model import build_model
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.graph_capture import GraphSteps
from covey.runtime.stacked.lane_step import Lanes, StepTerms
from tests.conftest import SMALL


def test_compiling_a_stack_is_announced(monkeypatch):
    config = Config.of(SMALL)
    federation = build_federation(config)
    data = federation.dataset
    engine = Engine(build_model("mlp", {}, data.shape, data.classes, 0), data, "fp32", torch.device("cpu"))
    terms = StepTerms(False, False, False, 0, False)
    lanes = Lanes.of(engine.layout, 7, terms, engine.dtype, engine.dtype, engine.device)
    steps, heard = GraphSteps(engine, lanes, terms, 10), []
    monkeypatch.setattr(steps, "_record_fastest", lambda: heard.append("compiled"))
    with listening(heard.append):
        steps.captured()
    assert heard == ["compiling MLP for 7 lanes", "compiled", ""]
