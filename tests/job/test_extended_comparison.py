"""A comparison's folder takes more seeds, methods and rounds, and names what it does not take."""

import json
from pathlib import Path
from typing import Any

import pytest

from covey import Refusal, compare
from covey.job.comparison.compared_runs import Comparison
from covey.job.comparison.execution import resume_comparison
from tests.conftest import SMALL, without_timings


def without_times(made: Comparison) -> dict[str, list[Any]]:
    return {label: [without_timings(run.metrics) for run in runs] for label, runs in made.runs.items()}


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}


def test_more_seeds_and_methods_extend_it_and_finished_runs_are_kept(tmp_path):
    compare(["fedavg", "iid"], 1, given=SMALL, out=tmp_path / "cmp")
    before = written(tmp_path / "cmp")
    made = compare(["fedavg", "fedprox", "iid"], 2, given=SMALL, out=tmp_path / "cmp")
    assert {path: written(tmp_path / "cmp")[path] for path in before} == before
    whole = compare(["fedavg", "fedprox", "iid"], 2, given=SMALL, out=tmp_path / "whole")
    assert made.rows == whole.rows
    assert resume_comparison(tmp_path / "cmp").rows == whole.rows


@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_more_rounds_extend_all_runs_and_a_stop_in_between_is_resumed(tmp_path, runtime):
    asked: dict[str, Any] = {"given": SMALL, "runtime": runtime, "device": "cpu", "out": tmp_path / "cmp"}
    compare(["fedavg", "fedprox"], 1, **asked)

    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["fedavg", "fedprox"], 2, **asked, rounds=5, on_round=stop)
    made = resume_comparison(tmp_path / "cmp")
    assert made.notes == ()
    whole = compare(["fedavg", "fedprox"], 2, **{**asked, "out": tmp_path / "whole"}, rounds=5)
    assert without_times(made) == without_times(whole)


def test_resume_takes_more_rounds_for_a_comparison(tmp_path, covey_command):
    compare("fedavg", 1, given=SMALL, out=tmp_path / "cmp")
    assert covey_command("resume", tmp_path / "cmp", "--rounds", "4", "--json").code == 0
    assert [run.metrics[-1]["round"] for run in Comparison.open(tmp_path / "cmp").runs["fedavg"]] == [4]
    compare("fedavg", 1, vary={"rounds": [1, 2]}, given=SMALL, out=tmp_path / "varied")
    refused = covey_command("resume", tmp_path / "varied", "--rounds", "4")
    assert "varies rounds" in refused.err


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"methods": ["iid"]}, "methods is fedavg there and iid here"),
        ({"seeds": 1}, "seeds is 0,1 there and 0 here"),
        ({"rounds": 2}, "rounds is 3 there and 2 here"),
        ({"clients": 9}, "clients is 8 there and 9 here"),
        ({"target": 0.5}, "target is nothing there and 0.5 here"),
        ({"fairness": True}, "fairness is nothing there and True here"),
        ({"vary": {"local.rate": [0.1, 0.2]}}, "vary is nothing there and local.rate=0.1,0.2 here"),
        (
            {"rounds": 9, "local.rate": 0.2, "local.epochs": 2},
            "local.epochs is 1 there and 2 here, local.rate is 0.1 there and 0.2 here. More seeds",
        ),
    ],
    ids=str,
)
def test_anything_else_is_refused_by_name_and_nothing_is_written(tmp_path, asked, sentence):
    compare("fedavg", 2, given=SMALL, out=tmp_path / "cmp")
    before = (tmp_path / "cmp" / "compare.json").read_bytes(), written(tmp_path / "cmp")
    with pytest.raises(Refusal, match=f"holds another comparison: {sentence}"):
        compare(**{"methods": "fedavg", "seeds": 2, **asked}, given=SMALL, out=tmp_path / "cmp")
    assert ((tmp_path / "cmp" / "compare.json").read_bytes(), written(tmp_path / "cmp")) == before


def test_a_method_that_tunes_itself_for_its_rounds_gets_no_more(tmp_path):
    compare(["fedavg", "hics-fl"], 1, given=SMALL, out=tmp_path / "cmp")
    with pytest.raises(Refusal, match="tunes itself for the number of rounds"):
        compare(["fedavg", "hics-fl"], 1, given=SMALL, rounds=5, out=tmp_path / "cmp")
    with pytest.raises(Refusal, match="tunes itself for the number of rounds"):
        resume_comparison(tmp_path / "cmp", rounds=5)


def test_code_that_the_folder_alone_names_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "bad_part.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    compare("fedavg", 1, given=SMALL, out=tmp_path / "cmp")
    plan = tmp_path / "cmp" / "compare.json"
    plan.write_text(plan.read_text().replace('"mlp"', '"bad_part:Net"'))
    with pytest.raises(Refusal, match=r"model is bad_part:Net there and nothing here"):
        compare("fedavg", 2, given=SMALL, out=tmp_path / "cmp")


def test_a_comparison_of_the_command_line_continues_from_python(tmp_path, covey_command):
    flags = ["--methods", "fedavg", "--seeds", "1", "--environment", "dirichlet", "--clients", "8", "--cohort", "4"]
    flags += ["--rounds", "1", "--set", "environment.alpha=0.5", "--set", "local.flip=false"]
    vary = ["--vary", "local.rate=0.1,0.02", "--vary", "local.epochs=1"]
    assert covey_command("compare", *flags, *vary, "--out", tmp_path / "cmp", "--json").code == 0
    plan = json.loads((tmp_path / "cmp" / "compare.json").read_text())
    given = {key: plan["given"][key] for key in ("clients", "cohort", "rounds")}
    assert given == {"clients": 8, "cohort": 4, "rounds": 1}
    assert plan["given"]["environment"] == {"name": "dirichlet", "alpha": 0.5}
    assert plan["given"]["local"] == {"flip": False}
    assert plan["vary"] == {"local.rate": [0.1, 0.02], "local.epochs": [1]}
    before = written(tmp_path / "cmp")
    asked: dict[str, Any] = {"clients": 8, "cohort": 4, "rounds": 1, "local": {"flip": False}}
    asked["environment"] = {"name": "dirichlet", "alpha": 0.5}
    # As folders were written before.
    text = (tmp_path / "cmp" / "compare.json").read_text()
    older = text.replace('"clients": 8', '"clients": "8"').replace('"alpha": 0.5', '"alpha": "0.50"')
    assert older != text
    for content in (text, older):
        (tmp_path / "cmp" / "compare.json").write_text(content)
        compare("fedavg", 1, vary={"local.rate": [0.1, 0.02], "local.epochs": [1]}, given=asked, out=tmp_path / "cmp")
        assert written(tmp_path / "cmp") == before
