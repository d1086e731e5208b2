"""The benchmark of convolutions with many channels, in miniature and without a GPU."""

import json
from argparse import Namespace
from typing import Any

import pytest

from benchmarks.tiles import CHECKED, Bench, main
from covey.runtime.stacked.tiled_convolution_plan import TUNED


def bench(**given: Any) -> Bench:
    return Bench(
        Namespace(**{"device": "cpu", "toy": True, "cases": ["W3"], "parts": ["layers"], "out": None, **given})
    )


def test_every_kernel_is_timed_beside_im2col(tmp_path, capsys):
    made = bench(cases=["W1", "W3"], out=tmp_path)
    made.layers()
    rows = json.loads((tmp_path / "tiles.json").read_text())["layers"]
    assert {(row["case"], row["kernel"], row.get("way")) for row in rows} == {
        (case, kernel, way) for case in ("W1", "W3") for kernel in TUNED for way in (None, "slices")
    }
    assert made.best["W1"].keys() == TUNED.keys() and len(made.best["W1"]["filters"]) == 6
    assert "W3, 2 lanes, filters" in capsys.readouterr().out


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_a_layer_is_checked_in_three_precisions(monkeypatch, capsys, error):
    monkeypatch.setattr("benchmarks.tiles.worst_error", lambda *given: error)
    bench(number=0).do("check")
    rows = json.loads(capsys.readouterr().out)
    assert [row["right"] for row in rows] == [error == 0.0] * 3 and all(row["same bits"] for row in rows)


def test_a_step_is_timed_as_it_is_and_by_the_best(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Namespace(readline=lambda: '{"forward": [64, 64, 64, 4, 2]}\n'))
    norms = []
    for way in ("slices", "tiles"):
        bench(workload="W3", way=way)._step(2)
        ready, said = capsys.readouterr().out.splitlines()
        row = json.loads(said)
        assert ready == "ready" and row["us"] > 0 and row["us of best"] > 0 and row["spent"]
        norms.append(row["norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.slow
def test_every_part_runs_and_finds_the_operator_right(tmp_path, monkeypatch, capsys):
    """The processes beside it are this program."""
    monkeypatch.setattr("benchmarks.tiles.CHECKED", CHECKED[:1])
    given = ["tiles.py", "--device", "cpu", "--toy", "--cases", "W3", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    assert main() == 0
    found = json.loads((tmp_path / "tiles.json").read_text())
    assert found["right"] and len(found["check"]) == 3
    assert [(row["workload"], row["way"]) for row in found["steps"]] == [("W3", "slices"), ("W3", "tiles")]
    assert "µs a step" in capsys.readouterr().out
