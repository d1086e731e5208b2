"""FedDRL in programs of its own: threads, workers, hashes."""

import json
import os
import subprocess
import sys

from covey import run
from covey.job.runs import Run
from tests.conftest import SMALL, without_timings


def test_runs_are_the_same_whatever_the_threads_the_worker_processes_and_the_order_of_hashes(tmp_path):
    given = {**SMALL, "rounds": 8, "aggregator": {"name": "feddrl", "hidden": 64, "batch": 2}}
    here = run(given, out=tmp_path / "here")
    program = (
        "import json, sys, torch, covey; torch.set_num_threads(2); given, out = sys.argv[1:]; "
        "covey.run(json.loads(given), workers=2, out=out)"
    )
    subprocess.run(
        [sys.executable, "-c", program, json.dumps(given), str(tmp_path / "there")],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1234"},
    )
    there = Run.open(tmp_path / "there")
    assert without_timings(there.metrics) == without_timings(here.metrics)
    files = [(folder / "checkpoint.safetensors").read_bytes() for folder in (here.folder, there.folder)]
    assert files[0] == files[1]
