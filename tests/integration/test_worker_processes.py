"""Worker processes and their parent."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import wait_until


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_a_killed_parent(tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "covey.cli.main",
            "run",
            "--rounds",
            "100000",
            "--workers",
            "2",
            "--out",
            tmp_path / "run",
        ],
        stderr=subprocess.DEVNULL,
    )
    children: list[int] = []

    def both_there() -> bool:
        text = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
        children[:] = [int(pid) for pid in text.split()]
        return len(children) == 2

    wait_until(both_there, "two workers")
    process.kill()
    process.wait()
    wait_until(lambda: not any(_alive(pid) for pid in children), "the workers to end")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
