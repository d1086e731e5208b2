"""The benchmark of the time before the first round: stages that exist, and a toy without a GPU."""

import json
import time
from importlib import import_module

import pytest

from benchmarks.startup import STAGES, Stages, main


def test_every_stage_is_a_function_that_exists():
    for module, name in STAGES.values():
        assert callable(getattr(import_module(module), name))


def test_a_stage_is_counted_without_the_stages_in_it(monkeypatch):
    clock = iter([10.0, 11.0, 14.0, 16.0, 20.0])
    monkeypatch.setattr(time, "time", lambda: next(clock))
    stages = Stages(begin=8.0)
    inner = stages.timed("inner", lambda x: x + 1)
    assert stages.timed("outer", inner)(1) == 2
    assert stages.until_now() == {"inner": 3.0, "outer": 3.0, "rest": 6.0, "total": 12.0}


@pytest.mark.slow
def test_a_toy_is_measured_twice(tmp_path, monkeypatch, capsys):
    out = tmp_path / "startup.json"
    given = ["--workload", "W0", "--device", "cpu", "--precision", "fp32", "--times", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["startup.py", *given])
    main()
    rows = json.loads(out.read_text())
    assert len(rows) == 2
    for row in rows:
        assert row["evaluation"] > 0 and row["interpreter and imports"] > 0
        assert sum(row.values()) == pytest.approx(2 * row["total"])
    assert "evaluation" in capsys.readouterr().out
