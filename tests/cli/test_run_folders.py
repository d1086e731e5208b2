"""Listing, showing and removing the runs under a folder."""

import json
import os
import shlex
from pathlib import Path

import pytest

import covey
from covey.cli import terminal as display
from covey.cli.run_folder_commands import _broken, _first_of_each_job
from covey.job.run_summary import RunSummary
from covey.page.tables import made_by as page_command

QUICK = ["--clients", "6", "--cohort", "3", "--rounds", "2", "--workers", "1", "--set", "local.epochs=1"]


@pytest.fixture
def shelf(tmp_path: Path, covey_command) -> Path:
    """A finished run, one that was stopped after a round, and a comparison."""
    shelf = tmp_path / "shelf"
    assert covey_command("run", *QUICK, "--out", shelf / "whole", "--json").code == 0

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(method="fedprox", clients=6, cohort=3, rounds=2, workers=1, out=shelf / "cut", on_round=stop)
    flags = ["--methods", "fedavg,iid", "--seeds", "1", *QUICK, "--out", shelf / "both", "--json"]
    assert covey_command("compare", *flags).code == 0
    return shelf


def test_runs_are_listed_filtered_and_sorted(shelf: Path, covey_command) -> None:
    lines = covey_command("runs", shelf, "--json").json
    assert {(line["path"], line["kind"], line["state"]) for line in lines} == {
        ("whole", "run", "finished"),
        ("cut", "run", "stopped"),
        ("both", "comparison", "finished"),
    }
    assert [line["path"] for line in covey_command("runs", shelf, "--state", "stopped", "--json").json] == ["cut"]
    assert [line["path"] for line in covey_command("runs", shelf, "--filter", "FEDPROX", "--json").json] == ["cut"]
    assert "1 of 3" in covey_command("runs", shelf, "--kind", "comparison").out
    assert [line["path"] for line in covey_command("runs", shelf, "--sort", "path", "--json").json] == [
        "both",
        "cut",
        "whole",
    ]


def test_what_cannot_be_listed_is_said(tmp_path: Path, covey_command) -> None:
    for arguments, sentence in (
        (["runs", tmp_path / "none"], "There is no folder"),
        (["runs", tmp_path, "--state", "lost"], "--state is running, finished, stopped, damaged, not 'lost'"),
        (["runs", tmp_path, "--sort", "size"], "--sort is"),
        (["show", tmp_path], "holds no run"),
    ):
        said = covey_command(*arguments)
        assert said.code == 2 and sentence in said.err


def test_a_run_is_shown_with_the_command_that_made_it(shelf: Path, covey_command, monkeypatch) -> None:
    described = json.loads((shelf / "whole" / "environment.json").read_text())
    described["command"] = ["/bin/covey", "run", "--set", "a b"]
    (shelf / "whole" / "environment.json").write_text(json.dumps(described))
    said = covey_command("show", shelf / "whole").out
    assert "Made by: covey run --set 'a b'" in said and "test accuracy" in said and "covey report" in said
    shown = covey_command("show", shelf / "whole", "--json").json
    assert shown["settings"]["clients"] == 6 and shown["state"] == "finished"
    assert f"covey resume {shelf / 'cut'}" in covey_command("show", shelf / "cut").out.replace("\n", "")
    assert "terminal accuracy" in covey_command("show", shelf / "both").out


def test_runs_are_removed_after_a_question_and_nothing_else_is(shelf: Path, covey_command) -> None:
    assert "--yes" in covey_command("rm", shelf / "cut").err and (shelf / "cut").exists()
    (shelf / "notes").mkdir()
    (shelf / "link").symlink_to(shelf / "whole")
    for other in ("notes", "link", "."):
        refused = covey_command("rm", shelf / "cut", shelf / other, "--yes")
        assert refused.code == 2 and (shelf / "cut").exists() and (shelf / "whole").exists()
    assert covey_command("rm", shelf / "cut", shelf / "both", "--yes").code == 0
    assert sorted(path.name for path in shelf.iterdir()) == ["link", "notes", "whole"]


def test_whoever_is_asked_decides_whether_runs_are_removed(shelf: Path, covey_command, monkeypatch) -> None:
    pty = pytest.importorskip("pty", reason="there are no terminals to ask on")
    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal) as asked, os.fdopen(keyboard, "wb", buffering=0) as typed:
        monkeypatch.setattr("sys.stdin", asked)
        for answer, code, left in ((b"n\n", 1, True), (b"\n", 1, True), (b"y\n", 0, False)):
            typed.write(answer)
            said = covey_command("rm", shelf / "cut")
            assert (said.code, (shelf / "cut").exists()) == (code, left), said.err
            assert f"Remove 1 folder ({shelf / 'cut'})?" in said.err


def test_a_run_that_is_being_written_is_not_removed(shelf: Path, covey_command) -> None:
    from covey.storage import FolderLock

    with FolderLock(shelf / "cut"):
        said = covey_command("rm", shelf / "cut", "--yes")
    assert said.code == 2 and "is being written" in said.err and (shelf / "cut").exists()


def test_resume_extends_a_run(shelf: Path, covey_command) -> None:
    assert covey_command("resume", shelf / "whole", "--rounds", "4", "--json").json["rounds"] == 4
    assert covey_command("resume", shelf / "both" / "iid" / "seed-0", "--rounds", "4").code == 2
    assert covey_command("resume", shelf / "whole", "--rounds", "5", "--json").json["rounds"] == 5


def test_what_made_an_extended_run_says_so(shelf: Path, tmp_path: Path, covey_command) -> None:
    """The first command alone makes another model."""
    assert covey_command("resume", shelf / "whole", "--rounds", "3").code == 0
    assert covey_command("resume", shelf / "whole", "--rounds", "4").code == 0
    first = f"covey run {shlex.join(QUICK)} --out {shelf / 'whole'}"
    whole = f"{first} --json && covey resume {shelf / 'whole'} --rounds 4"
    assert covey_command("show", shelf / "whole", "--json").json["command"] == whole
    assert covey_command("export", shelf / "whole", "--to", tmp_path / "m.onnx").code == 0
    assert whole in (tmp_path / "m.onnx.md").read_text()
    assert whole == page_command(shelf / "whole")


def test_names_that_covey_gave_fit_a_line_of_80_characters_and_others_keep_their_method(
    covey_command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    small = {"clients": 6, "cohort": 3, "rounds": 2, "workers": 1, "local": {"epochs": 1}}
    covey.run(small, method="fedprox")
    covey.compare(["fedavg", "iid"], seeds=1, given=small)
    listed = covey_command("runs").out
    names = sorted(str(path) for path in Path("runs").iterdir() if path.is_dir() and path.name[0] != ".")
    assert len(names) == 2
    assert [name for name in names if f" {name} " not in listed] == []
    assert "method" not in listed.splitlines()[1]
    covey.run(small, out="runs/mine")
    again = covey_command("runs").out.splitlines()
    assert "method" in again[1] and any("runs/mine" in line and "fedavg" in line for line in again)


def test_paths_are_broken_behind_slashes_and_hyphens() -> None:
    assert _broken("runs/demo/on-demand/federation-10", 13) == "runs/demo/\non-demand/\nfederation-10"
    assert _broken("runs/20260101-120000-fedavg", 16) == "runs/20260101-\n120000-fedavg"
    assert _broken("/a//b", 80) == "/a//b"


@pytest.mark.parametrize("width", [50, 80])
def test_a_narrow_terminal_shows_every_part_of_a_path_whole(shelf: Path, covey_command, monkeypatch, width) -> None:
    (shelf / "federations-of-may" / "on-demand").mkdir(parents=True)
    (shelf / "both").rename(shelf / "federations-of-may" / "on-demand" / "comparison-10")
    monkeypatch.chdir(shelf)
    monkeypatch.setattr(display.console, "width", width)
    said = covey_command("runs", "federations-of-may").out
    assert max(map(len, said.splitlines()[:5])) <= width
    assert all(part in said for part in ("federations-", "on-demand/", "comparison-"))


def test_one_of_several_jobs_for_the_same_targets_is_listed() -> None:
    jobs = [RunSummary(f"demo/on-demand/federation-{number}", "ondemand", "finished", "3=1") for number in range(10)]
    other = RunSummary("demo/on-demand/other", "ondemand", "finished", "4=1")
    runs = [RunSummary(f"demo/{name}", "run", "finished", "fedavg") for name in "ab"]
    assert _first_of_each_job([*jobs, other, *runs]) == [jobs[0], other, *runs]
