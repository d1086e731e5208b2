"""A trainer's step is traced as one graph, as a GPU needs it; the compiler's front end runs on a CPU too."""

from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch

import covey
from covey.runtime.stacked import stacked_runtime
from covey.runtime.stacked.engine import Engine

GIVEN: dict[str, Any] = {
    "clients": 4,
    "cohort": 2,
    "rounds": 2,
    "precision": "bf16",
    "runtime": "stacked",
    "device": "cpu",
    "environment": {"name": "iid", "samples": 16},
    "model": {"name": "mlp", "hidden": (8,)},
    "local": {"epochs": 1, "batch": 8, "momentum": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedcm", "fedlc", "fedsam", "moon", "fedprox", "fednova"])
def test_a_trainers_step_is_one_graph(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = covey.run({**GIVEN, "trainer": name}, out=tmp_path / "eager")
    make_step, calls = Engine.make_step, []
    # A live engine would have its steps already.
    monkeypatch.setattr(stacked_runtime, "_engines", WeakValueDictionary())

    def compiled(self: Engine, *arguments: Any) -> Any:
        torch.compiler.reset()
        calls.append(arguments)
        return torch.compile(make_step(self, *arguments), dynamic=False, backend="eager", fullgraph=True)

    monkeypatch.setattr(Engine, "make_step", compiled)
    traced = covey.run({**GIVEN, "trainer": name}, out=tmp_path / "traced")
    assert calls
    assert traced.metrics[-1]["loss"] == pytest.approx(eager.metrics[-1]["loss"], rel=1e-3)
