"""The stacked runtime in programs of its own."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from covey.runtime.stacked.engine import LaunchKind, _terms
from covey.runtime.stacked.lane_schedule import COMPILING, LaunchShape
from tests.runtime.stacked.test_lane_schedule import of_steps
from tests.runtime.stacked.test_stacked_runtime import SKEWED, pair


def test_a_comparison_warns_of_it_once(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    flags = ["--methods", "fedavg,fedprox", "--seeds", "2", "--rounds", "1", "--clients", "4", "--runtime", "stacked"]
    command = [sys.executable, "-m", "covey.cli.main", "compare", *flags, "--out", str(tmp_path / "runs")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stderr.count("There is no GPU here") == 1


def test_an_engine_counts_the_steps_lost_by_slower_lanes(monkeypatch):
    """Lanes are compiled on a GPU only; here they are faked."""
    _, stacked, _ = pair(SKEWED)
    engine = stacked.engine
    monkeypatch.setattr(engine, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.for_speed", False)
    segments, shape = of_steps(*[1000] * 11), LaunchShape(1)
    engine._launchers = {(LaunchKind(shape, _terms(segments)), 10): SimpleNamespace()}
    used = [engine._lanes_for(shape, segments, []) for _ in range(20)]
    rounds = used.index(11)
    assert used[:rounds] == [10] * rounds
    assert rounds == int(COMPILING // (2000 - 1000 * 19 / 18))
    # Launches of another shape are counted apart.
    other = LaunchShape(5)
    engine._launchers[LaunchKind(other, _terms(segments)), 10] = SimpleNamespace()
    assert engine._lanes_for(other, segments, []) == 10
