"""Announcements of long waits: in progress bars, and as lines of a log."""

import io
import time

import pytest
from rich.console import Console

import covey
from covey.core.progress import JobPlan, announce_plan, as_one_job, listening, planning, waiting_for
from covey.job import progress_display
from covey.job.progress_display import comparison_progress, run_progress
from papers import command
from tests.programs import PATIENCE


def test_listeners_hear_the_reason_of_a_wait_and_its_end():
    heard: list[str] = []
    also: list[str] = []
    with listening(heard.append):
        with listening(also.append), pytest.raises(ZeroDivisionError), waiting_for("a division"):
            raise ZeroDivisionError
        with waiting_for("Godot"):
            pass
    with waiting_for("nobody"):
        pass
    assert heard == ["a division", "", "Godot", ""]
    assert also == ["a division", ""]


@pytest.fixture
def terminal(monkeypatch) -> io.StringIO:
    """Return all that is written to the terminal."""
    shown = io.StringIO()
    monkeypatch.setattr(progress_display, "shown_on", Console(file=shown, force_terminal=True, width=120))
    return shown


def shows(shown: io.StringIO, text: str) -> bool:
    """True once a bar shows the text; bars are drawn ten times a second."""
    end = time.monotonic() + PATIENCE
    while text not in shown.getvalue() and time.monotonic() < end:
        time.sleep(0.05)
    return text in shown.getvalue()


def last_bar(shown: io.StringIO) -> str:
    return [line for line in shown.getvalue().splitlines() if "fedavg" in line][-1]


def test_a_bar_shows_the_reason_of_a_wait_and_keeps_the_last_accuracy(terminal):
    with run_progress("fedavg", rounds=3, done=0) as on_round, waiting_for("compiling"):
        on_round({"round": 1})
        assert shows(terminal, "compiling")
    assert "compiling" not in last_bar(terminal)
    with run_progress("fedavg", rounds=3, done=0) as on_round:
        on_round({"round": 1, "accuracy": 0.25})
        on_round({"round": 2})
    assert "accuracy 25.0%" in last_bar(terminal)
    assert "2/3" in last_bar(terminal)


def test_bars_of_a_comparison_show_it_too(terminal):
    with comparison_progress() as (on_run, on_round), waiting_for("too early for a bar"):
        on_run("fedavg", 1, 3)
        on_round({"round": 1, "accuracy": 0.25})
        with waiting_for("compiling"):
            assert shows(terminal, "compiling")
        on_round({"round": 2})
    assert "fedavg, seed 1" in last_bar(terminal)
    assert "2/3" in last_bar(terminal)
    assert "accuracy 25.0%" in last_bar(terminal)


def test_a_log_notes_long_waits(capsys):
    with command._progress(time.monotonic() - 5) as (on_run, _):
        on_run("base", None, 1200)
        with waiting_for("compiling"):
            pass
    assert capsys.readouterr().err.splitlines() == ["     5 s  base: 1,200 rounds to go", "     5 s  compiling"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_has_a_line_now_and_then_and_the_time_left(capsys):
    clock = Clock()
    log = progress_display._Log(True, 60, clock)
    for t in range(1, 61):
        clock.now += 3.0
        record = {"round": t, "accuracy": 0.5} if t % 5 == 0 else {"round": t}
        log.note(f"fedavg: round {t} of 60", record, last=t == 60)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fedavg: round 5 of 60, accuracy 50.0%, 3 min left"
    assert lines[-1] == "fedavg: round 60 of 60, accuracy 50.0%"
    assert len(lines) == 12


def test_quick_runs_log_nothing(capsys):
    clock = Clock()
    log = progress_display._Log(True, 60, clock)
    for t in range(1, 61):
        clock.now += 0.1
        log.note(f"fedavg: round {t} of 60", {"round": t, "accuracy": 0.5}, last=t == 60)
    assert capsys.readouterr().err == ""


def test_the_runs_of_a_job_are_counted(terminal):
    with comparison_progress() as (on_run, on_round):
        announce_plan(JobPlan(runs=9, missing=7, rounds=21))
        on_run("fedavg", 1, 3)
        on_round({"round": 1, "accuracy": 0.25})
    assert "run 3 of 9: fedavg, seed 1" in last_bar(terminal)


def test_python_shows_bars_where_they_are_wanted(terminal, tmp_path):
    given = {"clients": 4, "cohort": 2, "rounds": 2, "workers": 1, "local": {"epochs": 1}}
    covey.run(given, out=tmp_path / "silent")
    covey.run(given, out=tmp_path / "quiet", progress=False)
    assert terminal.getvalue() == ""
    covey.run(given, out=tmp_path / "shown", progress=True)
    assert "2/2" in last_bar(terminal)
    covey.compare(["fedavg"], seeds=1, given=given, out=tmp_path / "compared", progress=True)
    assert "fedavg, seed 0" in last_bar(terminal)


def test_a_job_made_of_jobs_tells_its_own_plan_and_none_of_theirs():
    told: list[int] = []
    with planning(lambda plan: told.append(plan.rounds)):
        with as_one_job(JobPlan(1, 1, 400)):
            announce_plan(JobPlan(2, 2, 40))
        announce_plan(JobPlan(1, 1, 7))
    announce_plan(JobPlan(1, 1, 9))
    assert told == [400, 7]
