"""Hundreds of kills: a run that is killed at any moment, any number of times, ends as if it had never been."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from tests.conftest import without_timings
from tests.programs import CPUTime

KILLS = 25
"""Times that each run is killed, at least; eight runs make two hundred."""
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
@pytest.mark.parametrize("method", ["fedavg", "fedacs", "feddrl-set", "mocha"])
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
    read = [(place / "checkpoint.safetensors").read_bytes() for place in (folder, tmp_path / "whole")]
    assert read[0] == read[1]
