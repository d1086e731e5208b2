"""Runs that are killed or interrupted, as processes of their own."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from covey import Run, resume, run
from covey.core.checkpoint import read_checkpoint
from tests.conftest import SMALL, without_timings
from tests.programs import PATIENCE, start_covey, wait_for_rounds


def run_in_process(out, *flags: str, **options) -> subprocess.Popen[str]:
    return start_covey("run", "--clients", "8", "--cohort", "4", "--out", out, *flags, **options)


KILLED = """
import os, signal, sys, threading, time
import covey
from covey.runtime.stacked.stacked_runtime import StackedRuntime

# On a CPU, too, rounds are written while the next one is computed.
StackedRuntime.overlaps = True

def kill(record):
    if record["round"] == {at}:
        # At a moment of its own, in this round or the next ones.
        threading.Thread(target=lambda: (time.sleep({delay}), os.kill(os.getpid(), signal.SIGKILL))).start()

covey.run(clients=8, cohort=4, rounds=20, workers={workers}, out="killed", on_round=kill, runtime="{runtime}",
          device="cpu", **{{"environment.samples": 50}})
"""
"""A run that is killed a moment after a round, however fast the machine is."""


@pytest.mark.parametrize(
    ("runtime", "workers", "at", "delay"),
    [("local", 1, 3, 0.0), ("local", 2, 7, 0.002), ("stacked", 1, 3, 0.0), ("stacked", 1, 7, 0.003)],
)
def test_a_run_killed_in_the_middle_and_resumed_is_identical_to_an_undisturbed_one(
    tmp_path, runtime, workers, at, delay
):
    code = KILLED.format(runtime=runtime, workers=workers, at=at, delay=delay)
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    cut = Run.open(tmp_path / "killed")
    assert at <= len(cut.metrics) < 20
    resumed = resume(tmp_path / "killed")
    given: dict[str, Any] = {"clients": 8, "cohort": 4, "rounds": 20, "environment.samples": 50}
    whole = run(given, runtime=runtime, device="cpu", workers=1, out=tmp_path / "whole")
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    checkpoints = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("killed", "whole")]
    assert checkpoints[0] == checkpoints[1]


def test_a_full_disk_is_said_in_a_sentence_and_the_run_goes_on_once_there_is_room(tmp_path):
    # After the first round no file may grow beyond 3,000 bytes, which a checkpoint does.
    code = f"""
import resource
import covey
covey.run({SMALL!r}, rounds=3, model="mlp", out="run", on_round=lambda row: resource.setrlimit(
    resource.RLIMIT_FSIZE, (3_000, 3_000)))
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    said = answer.stderr.strip().split("\n")[-1]
    assert "covey.errors.Refusal: The run folder run cannot be written" in said
    assert said.endswith("Once it can, resume with: covey resume run")
    whole = run(SMALL, rounds=3, model="mlp", out=tmp_path / "whole")
    assert without_timings(resume(tmp_path / "run").metrics) == without_timings(whole.metrics)


def test_ctrl_c_finishes_the_round_and_says_how_to_resume(tmp_path):
    process = run_in_process(tmp_path / "run", "--rounds", "100000", "--workers", "2")
    wait_for_rounds(tmp_path / "run", 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"Resume with: covey resume {tmp_path / 'run'}" in err
    done, _ = read_checkpoint(tmp_path / "run")
    assert done == len(Run.open(tmp_path / "run").metrics) >= 3


BEGUN = """
import covey

class Begun(covey.Selector):
    def select(self, t, candidates):
        print("begun", flush=True)
        return candidates[:4]
"""
"""A selector that says when the first round has begun."""


def test_ctrl_c_twice_stops_at_once(tmp_path):
    (tmp_path / "begun.py").write_text(BEGUN)
    flags = ["--selector", "begun:Begun", "--rounds", "9", "--workers", "1", "--set", "local.epochs=10000000"]
    process = run_in_process("run", *flags, cwd=tmp_path)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "\n"
    assert process.stderr.readline().startswith("Finishing this round")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
