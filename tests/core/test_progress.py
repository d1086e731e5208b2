"""Announcements of long waits: in progress bars, and as lines of a log."""

import io
import time

import pytest
from rich.console import Console

from covey.cli import terminal as display
from covey.core.progress import listening, waiting_for
from papers import command


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
    monkeypatch.setattr(display, "_progress", Console(file=shown, force_terminal=True, width=120))
    return shown


def shows(shown: io.StringIO, text: str) -> bool:
    """True once a bar shows the text; bars are drawn ten times a second."""
    end = time.monotonic() + 20
    while text not in shown.getvalue() and time.monotonic() < end:
        time.sleep(0.05)
    return text in shown.getvalue()


def last_bar(shown: io.StringIO) -> str:
    return [line for line in shown.getvalue().splitlines() if "fedavg" in line][-1]


def test_a_bar_shows_the_reason_of_a_wait_and_keeps_the_last_accuracy(terminal):
    with display.run_progress("fedavg", rounds=3, done=0) as on_round, waiting_for("compiling"):
        on_round({"round": 1})
        assert shows(terminal, "compiling")
    assert "compiling" not in last_bar(terminal)
    with display.run_progress("fedavg", rounds=3, done=0) as on_round:
        on_round({"round": 1, "accuracy": 0.25})
        on_round({"round": 2})
    assert "accuracy 25.0%" in last_bar(terminal)
    assert "2/3" in last_bar(terminal)


def test_bars_of_a_comparison_show_it_too(terminal):
    with display.comparison_progress() as (on_run, on_round), waiting_for("too early for a bar"):
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
