"""Processes of a fleet on this machine: started in groups of their own, with logs, and ended for certain."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from covey.storage import open_unlinked

GRACE = 5.0
"""Seconds that a process has to end by itself."""

_SET_DEATH_SIGNAL = 1


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """True if somebody answers at a port."""
    with socket.socket() as attempt:
        attempt.settimeout(1.0)
        return attempt.connect_ex((host, port)) == 0


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: a home of their own, no telemetry, one thread each."""
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Flower's older servers for control and fleet calls.
        "FLWR_INTERNAL_GRPC_CONTROL_API": "0",
        "FLWR_INTERNAL_GRPC_FLEET_API": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def start(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process in a group of its own that ends with this one; its output is appended to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_unlinked(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(variables),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


def end_with_parent() -> None:
    """Have the system end this process when its parent dies, in whatever way (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def end(groups: Sequence[int], grace: float = GRACE) -> None:
    """End process groups, by SIGTERM first and then by force. They are gone when this returns."""
    for group in groups:
        _signal(group, signal.SIGTERM)
    _wait(groups, grace)
    for group in groups:
        kill(group)


def kill(group: int) -> None:
    """End a process group at once."""
    _signal(group, signal.SIGKILL)
    _wait([group], GRACE)


def _wait(groups: Sequence[int], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while any(alive(group) for group in groups) and time.monotonic() < limit:
        time.sleep(0.02)


def alive(group: int) -> bool:
    """True if a process of the group is left, other than zombies."""
    with suppress(ChildProcessError):
        # Reap our own children.
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return any(state != "Z" for state in _states(group))


def _states(group: int) -> list[str]:
    """Return the states of a group's processes (Linux); elsewhere zombies cannot be told apart."""
    found = []
    places = list(Path("/proc").glob("[0-9]*/stat"))
    for place in places:
        with suppress(OSError, IndexError, ValueError):
            words = place.read_text().rpartition(")")[2].split()
            if int(words[2]) == group:
                found.append(words[0])
    return found if places else ["?"]


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
