"""Start programs in tests, and wait for them however busy the machine is."""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 600.0
"""Seconds after which a test gives up on a program; only a program that hangs takes as long."""


def wait_until(condition: Callable[[], bool], what: str, pause: float = 0.02) -> None:
    """Wait for a condition; fail after `PATIENCE` seconds with a message that names `what`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:g} seconds for {what}"
        time.sleep(pause)


def start_covey(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start `covey ARGUMENTS` as a process of its own."""
    command = [sys.executable, "-m", "covey", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for_rounds(folder: Path, count: int) -> None:
    """Wait until a run has recorded so many rounds."""
    metrics = folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= count, f"round {count} in {folder}")


class CPUTime:
    """Seconds that this process and its ended children compute; other programs on the machine do not count."""

    def __init__(self) -> None:
        self._begin = self._now()

    @staticmethod
    def _now() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    @property
    def seconds(self) -> float:
        return self._now() - self._begin
