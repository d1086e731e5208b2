"""The benchmark of linear layers moved by one operator, in miniature and without a GPU."""

import json

import pytest

from benchmarks.linear_update import TILES, main
from covey.runtime.stacked.linear_update_kernels import TUNED, UpdateTuning


def run(monkeypatch, folder, *more):
    given = ["linear_update.py", "--device", "cpu", "--toy", "--out", str(folder), *more]
    monkeypatch.setattr("sys.argv", given)
    assert main() == 0
    return json.loads((folder / "linear_update.json").read_text())


def test_the_operator_is_timed_beside_what_it_replaces(monkeypatch, tmp_path, capsys):
    found = run(monkeypatch, tmp_path, "--parts", "kernels")["kernels"]
    ways = {(row["workload"], row["momentum"], row["way"]) for row in found}
    assert len(ways) == len(found) == 8 and all(row["us"] > 0 for row in found)
    assert TUNED["update"] == UpdateTuning()
    assert "W3, 2 lanes, with momentum: ordinary" in capsys.readouterr().out
    assert TUNED["update"] in TILES


@pytest.mark.slow
def test_steps_with_the_operator_change_parameters_as_ordinary_ones(monkeypatch, tmp_path):
    found = run(monkeypatch, tmp_path, "--parts", "steps")["steps"]
    assert [(row["workload"], row["way"]) for row in found] == [("W1", "ordinary"), ("W1", "update")]
    assert all(row["us"] > 0 and row["apart"] < 1e-5 for row in found)
