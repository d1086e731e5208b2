"""The list of what is under a folder."""

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import covey
from covey.job.run_index import RunIndex, filtered, kind_of, last_lines, member_runs
from covey.job.run_summary import score_text
from covey.storage import FolderLock, lock_holder
from tests.conftest import SMALL
from tests.task.federations import SETTINGS, regression


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with two runs, one of them a level below, and a comparison."""
    folder = tmp_path_factory.mktemp("shelf")
    covey.run(SMALL, out=folder / "first")
    covey.run(SMALL, out=folder / "deep" / "second", method="fedprox", evaluate_every=2, rounds=3)
    covey.compare(["fedavg", "iid"], 2, given=SMALL, out=folder / "both")
    return folder


def by_path(folder):
    return {line.path: line for line in RunIndex(folder).all()}


def test_runs_and_jobs_are_listed_with_their_results(shelf):
    found = by_path(shelf)
    assert set(found) == {"first", "deep/second", "both"}
    run = covey.Run.open(shelf / "first")
    first = found["first"]
    assert (first.kind, first.state, first.name, first.done, first.rounds) == ("run", "finished", "fedavg", 3, 3)
    assert (first.clients, first.cohort, first.dataset, first.model) == (8, 4, "digits", "mlp")
    assert first.accuracy == run.metrics[-1]["accuracy"]
    both = found["both"]
    assert (both.kind, both.state, both.name, both.done, both.rounds) == (
        "comparison",
        "finished",
        "fedavg, iid",
        12,
        12,
    )
    ends = [covey.Run.open(shelf / path).metrics[-1]["accuracy"] for path in both.runs]
    assert len(ends) == 4 and both.accuracy == pytest.approx(sum(ends) / 4)
    assert [label for label, _ in member_runs(shelf / "both")] == [
        *("fedavg/seed-0", "fedavg/seed-1", "iid/seed-0", "iid/seed-1")
    ]


def test_a_run_that_was_cut_off_is_stopped_and_a_lock_makes_it_running(shelf, tmp_path):
    shutil.copytree(shelf / "first", tmp_path / "cut")
    metrics = tmp_path / "cut" / "metrics.jsonl"
    metrics.write_text("".join(line + "\n" for line in metrics.read_text().splitlines()[:2]) + '{"round": 3, "accu')
    assert (by_path(tmp_path)["cut"].state, by_path(tmp_path)["cut"].done) == ("stopped", 2)
    with FolderLock(tmp_path / "cut"):
        assert by_path(tmp_path)["cut"].state == "running"
        script = (
            "import os; from pathlib import Path; from covey.storage import lock_holder\n"
            f"print(lock_holder(Path({str(tmp_path / 'cut')!r})))"
        )
        seen = subprocess.check_output([sys.executable, "-c", script], text=True)
        assert int(seen) == lock_holder(tmp_path / "cut")
    assert by_path(tmp_path)["cut"].state == "stopped"


def test_a_lock_that_a_kill_left_behind_counts_for_nothing(shelf, tmp_path):
    shutil.copytree(shelf / "first", tmp_path / "killed")
    (tmp_path / "killed" / ".lock").write_text("process 1 on nowhere\n")
    assert by_path(tmp_path)["killed"].state == "finished"


def test_what_has_not_changed_is_not_read_again(shelf, monkeypatch):
    index = RunIndex(shelf)
    before = index.all()
    monkeypatch.setattr("covey.job.run_index.read_json", lambda text: pytest.fail("a file was read again"))
    assert index.all() == before


def test_damaged_folders_are_named_and_do_not_hide_the_others(shelf, tmp_path):
    for name, text in {"list": "[]", "cut": '{"format": 2, "config": {', "none": '{"config": {"method": "x"}}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    shutil.copytree(shelf / "first", tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "compare.json").write_text('{"methods": 3}')
    found = by_path(tmp_path)
    assert {path: line.state for path, line in found.items()} == {
        **dict.fromkeys(("list", "cut", "none", "bad"), "damaged"),
        "good": "finished",
    }
    assert all(line.fault for line in found.values() if line.state == "damaged")


def test_links_lead_nowhere(shelf, tmp_path):
    (tmp_path / "inside").symlink_to(shelf / "first")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").symlink_to(shelf / "first" / "config.json")
    assert by_path(tmp_path) == {}
    assert kind_of(tmp_path / "own") is None


def test_lines_are_found_at_the_end_of_a_long_file(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"".join(b"%d%s\n" % (number, b"x" * 90_000) for number in range(20)) + b"cut")
    lines = last_lines(path)
    assert lines[-1].startswith(b"19x") and len(lines[-1]) == 90_002
    path.write_bytes(b"a\nb\n")
    assert last_lines(path) == [b"a", b"b"]
    path.write_bytes(b"cut")
    assert last_lines(path) == []


def test_lists_are_filtered_and_sorted(shelf):
    lines = RunIndex(shelf).all()
    assert [line.path for line in filtered(lines, text="deep")] == ["deep/second"]
    assert [line.path for line in filtered(lines, kind="comparison")] == ["both"]
    assert filtered(lines, state="running") == []
    ordered = [line.accuracy or 0.0 for line in filtered(lines, order="accuracy")]
    assert ordered == sorted(ordered, reverse=True)


@pytest.mark.slow
def test_a_thousand_runs_take_less_than_a_second_of_computing(shelf, tmp_path):
    config, metrics = ((shelf / "first" / name).read_bytes() for name in ("config.json", "metrics.jsonl"))
    for number in range(1000):
        place = tmp_path / f"{number:04}"
        place.mkdir()
        (place / "config.json").write_bytes(config)
        (place / "metrics.jsonl").write_bytes(metrics)
    index = RunIndex(tmp_path)
    begin = time.process_time()
    first = index.all()
    assert len(first) == 1000 and time.process_time() - begin < 1
    assert json.loads(json.dumps([line.as_mapping() for line in first]))[0]["rounds"] == 3


@pytest.mark.filterwarnings("ignore:.*the task is regression")
def test_runs_of_other_tasks_are_listed_with_their_main_metric(shelf, tmp_path, covey_command):
    for method in ("fedavg", "fedprox"):
        covey.run(SETTINGS, method=method, federation=regression(), out=tmp_path / "job" / method / "seed-0")
    plan = {"methods": ["fedavg", "fedprox"], "vary": {}, "seeds": [0]}
    (tmp_path / "job" / "compare.json").write_text(json.dumps(plan))
    ends = [covey.Run.open(tmp_path / "job" / one / "seed-0").metrics[-1]["score"] for one in ("fedavg", "fedprox")]
    job = by_path(tmp_path)["job"]
    assert (job.metric, job.better, job.accuracy, job.score) == ("rmse", "lower", None, pytest.approx(np.mean(ends)))
    alone = RunIndex(tmp_path / "job" / "fedavg").all()[0]
    assert (alone.metric, alone.score, alone.rank, score_text(alone)) == ("rmse", ends[0], -ends[0], f"{ends[0]:.4g}")
    said = covey_command("runs", tmp_path).out
    assert "RMSE" in said and f"{np.mean(ends):.4g}" in said and "accuracy" not in said
    shutil.copytree(shelf / "first", tmp_path / "classes")
    said = " ".join(covey_command("runs", tmp_path, "--sort", "score").out.split())
    assert "score" in said and f"RMSE {np.mean(ends):.4g}" in said and "accuracy " in said
    assert [line.path for line in filtered(RunIndex(tmp_path).all(), order="score")] == ["classes", "job"]
