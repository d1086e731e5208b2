"""Hundreds of kills: a run or a job that is killed at any moment, any number of times, ends as if it had never been."""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.job.comparison.execution import resume_comparison
from covey.job.on_demand import resume_ondemand
from covey.storage import LOCK
from tests.conftest import without_timings
from tests.programs import CPUTime

KILLS = 25
"""Times that each run is killed, at least; ten runs make two hundred and fifty."""
ROUNDS = 30

PROGRAM = """
import os, random, signal, sys, threading, time
import covey

folder, seed, method, workers = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
delay = random.Random(seed).random() * {longest}

def kill():
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
if os.path.exists(os.path.join(folder, "config.json")):
    covey.resume(folder, workers=workers)
else:
    covey.run(method=method, clients=12, cohort=4, rounds={rounds}, workers=workers, out=folder,
              local={{"epochs": 1, "batch": 8, "rate": 0.1}}, model={{"name": "mlp", "hidden": (16,)}})
print("finished")
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedacs", "feddrl-set", "mocha", "scaffold"])
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(
    method: str, workers: int, tmp_path: Path
) -> None:
    whole = covey.run(
        method=method,
        clients=12,
        cohort=4,
        rounds=ROUNDS,
        workers=1,
        out=tmp_path / "whole",
        local={"epochs": 1, "batch": 8, "rate": 0.1},
        model={"name": "mlp", "hidden": (16,)},
    )
    used = CPUTime()
    kills, attempt, folder = 0, 0, tmp_path / "killed"
    longest = 4.0
    while True:
        attempt += 1
        code = PROGRAM.format(rounds=ROUNDS, longest=longest)
        command = [sys.executable, "-c", code, str(folder), str(attempt), method, str(workers)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if "finished" in ended.stdout and kills >= KILLS:
            break
        if "finished" in ended.stdout:
            # Too patient: begin again, with less time.
            longest = max(0.5, longest * 0.8)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
            continue
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
        if kills >= KILLS:
            longest = 60.0 + random.Random(attempt).random()
        assert attempt < 20 * KILLS, f"{kills} kills in {attempt} attempts, {used.seconds:.0f} s of CPU time"
    killed = covey.Run.open(folder)
    assert without_timings(killed.metrics) == without_timings(whole.metrics)
    read = [
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*.safetensors")}
        for place in (folder, tmp_path / "whole")
    ]
    assert read[0] == read[1]
    assert len(read[0]) == 1 or method == "scaffold"
    assert not [path for path in folder.rglob("*") if path.name == LOCK or path.suffix == ".part"]


JOB_KILLS = 30
"""Times that each comparison and each on-demand job is killed, at least."""

JOB = """
import os, random, signal, sys, threading, time
from pathlib import Path
import covey
from tests.proof.test_kills import finish_job

kind, folder = sys.argv[1], Path(sys.argv[2])
seed, workers, longest = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
delay = random.Random(seed).random() * longest
begun = []

def kill():
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)

def on_round(record):
    # A moment after the first round that this process has finished.
    if not begun:
        begun.append(threading.Thread(target=kill, daemon=True))
        begun[0].start()

finish_job(kind, folder, workers, on_round if longest else None)
print("finished")
"""

KILLED_RUN: dict[str, Any] = {
    "clients": 12,
    "cohort": 4,
    "rounds": ROUNDS,
    "local": {"epochs": 1, "batch": 8, "rate": 0.1},
    "model": {"name": "mlp", "hidden": (16,)},
}


def finish_job(kind: str, folder: Path, workers: int, on_round: Callable[[dict[str, Any]], None] | None) -> None:
    """Begin a job, or resume what is left of it: once by its own call, once by its folder."""
    given = {**KILLED_RUN, "workers": workers}
    if kind == "comparison" and not (folder / "compare.json").is_file():
        covey.compare(["fedavg", "fedacs"], 2, given=given, out=folder, on_round=on_round)
    elif kind == "comparison":
        resume_comparison(folder, on_round=on_round)
    elif not (folder / "ondemand.json").is_file():
        base = folder.parent / "base"
        asked: dict[str, Any] = {"estimator": "ground-truth", "rounds": ROUNDS, "continued": True, "workers": workers}
        covey.ondemand(base, ["0=0.5,3=0.5", "td2"], **asked, out=folder, on_round=on_round)
    else:
        resume_ondemand(folder, on_round=on_round)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["comparison", "on-demand job"])
def test_a_job_that_is_killed_again_and_again_ends_as_if_nothing_had_been(
    kind: str, workers: int, tmp_path: Path
) -> None:
    for place in ("whole", "killed"):
        covey.run({**KILLED_RUN, "workers": 1, "rounds": 5}, out=tmp_path / place / "base")
    finish_job(kind, tmp_path / "whole" / "job", 1, None)
    folder, kills, attempt, longest = tmp_path / "killed" / "job", 0, 0, 0.3
    while True:
        attempt += 1
        last = kills >= JOB_KILLS
        words = [kind, str(folder), str(attempt), str(workers), "0" if last else str(longest)]
        ended = subprocess.run([sys.executable, "-c", JOB, *words], capture_output=True, text=True, check=False)
        if "finished" in ended.stdout and last:
            break
        if "finished" in ended.stdout:
            # Too patient: begin again, with less time.
            longest *= 0.7
            shutil.rmtree(folder)
            continue
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
        assert attempt < 20 * JOB_KILLS
    runs = sorted(path.parent.relative_to(folder) for path in folder.rglob("metrics.jsonl"))
    assert len(runs) == (4 if kind == "comparison" else 3)
    for run in runs:
        killed, whole = folder / run, tmp_path / "whole" / "job" / run
        assert without_timings(covey.Run.open(killed).metrics) == without_timings(covey.Run.open(whole).metrics)
        assert (killed / "checkpoint.safetensors").read_bytes() == (whole / "checkpoint.safetensors").read_bytes()
    assert not [path for path in folder.rglob("*") if path.name == LOCK or path.suffix == ".part"]
