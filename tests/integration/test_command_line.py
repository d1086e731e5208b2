"""The command line as a shell starts it."""

import contextlib
import os
import pty
import subprocess
import sys

from tests.cli.test_commands import QUICK
from tests.programs import PATIENCE


def test_a_terminal_shows_progress_bars(tmp_path):
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "covey.cli.main", "run", *QUICK, "--out", str(tmp_path / "run")],
        stderr=child, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(child)
    # A terminal that nobody reads is soon full, and the program waits.
    pieces = []
    with contextlib.suppress(OSError):
        while piece := os.read(parent, 100_000):
            pieces.append(piece)
    process.communicate(timeout=PATIENCE)
    shown = b"".join(pieces).decode(errors="replace")
    assert "fedavg" in shown
    assert "2/2" in shown
    assert "accuracy" in shown


def test_a_warning_is_a_sentence_without_the_line_of_code(tmp_path):
    flags = [
        "run",
        "--runtime",
        "stacked",
        "--rounds",
        "1",
        "--clients",
        "4",
        "--cohort",
        "2",
        "--out",
        tmp_path / "run",
    ]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    shell = subprocess.run(
        [sys.executable, "-m", "covey.cli.main", *map(str, flags)], capture_output=True, text=True, env=hidden
    )
    assert shell.returncode == 0, shell.stderr
    said = [line for line in shell.stderr.splitlines() if "no GPU" in line]
    assert said == [
        "covey: There is no GPU here, so the local runtime takes the stacked one's place "
        "(device=cpu runs the stack on the CPU)."
    ]
