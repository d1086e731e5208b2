"""The benchmark of fused layers, in miniature and without a GPU."""

import json
from argparse import Namespace

import pytest

from benchmarks.fused import CHECKED, Bench, main


def test_every_part_runs_and_finds_the_operators_right(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fused.py", "--device", "cpu", "--toy", "--out", str(tmp_path)])
    assert main() == 0
    found = json.loads((tmp_path / "fused.json").read_text())
    assert found["right"] and len(found["check"]) == 15
    assert [row["way"] for row in found["steps"]] == ["kernel, slices", "kernel, kernel", "fused, fused"]
    assert all(row["apart"] < 1e-4 for row in found["steps"])
    assert {row["kernel"] for row in found["tiles"]} == {"forward", "filters", "images"}
    assert {row["way"] for row in found["profile"]} == {"kernel, slices", "fused, fused"}
    assert "million client-samples/s" in capsys.readouterr().out


def test_an_operator_that_errs_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.fused.worst_error", lambda *given: 1.0)
    given = ["fused.py", "--device", "cpu", "--toy", "--parts", "check", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    assert main() == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_compiled_beside_it_is_the_same_program(monkeypatch):
    monkeypatch.setattr("benchmarks.fused.CHECKED", CHECKED[:1])
    given = Namespace(device="cpu", toy=True, only=None, lanes="2", ways=["fused, fused"], out=None)
    given.parts = ["check", "steps"]
    helpers = Bench(given)._helpers()
    said = [helper.communicate()[0] for helper in helpers]
    assert [helper.returncode for helper in helpers] == [0, 0]
    assert "right" in said[0] and said[1] is None


def test_an_unknown_part_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fused.py", "--parts", "speed"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no part 'speed'" in capsys.readouterr().err
