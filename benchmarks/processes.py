"""Runs a program with a time limit, and watches its memory and the load of other programs."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_LOOK_EVERY = 1.0
_GRACE = 10.0
_LOG_LINES = 15


class Process(NamedTuple):
    """A process, identified by number and start time, as numbers are reused."""

    number: int
    born: str


@dataclass(frozen=True)
class Look:
    """A snapshot of one process."""

    parent: int
    seconds: float
    """Processor time used so far, without its children's."""


@dataclass(frozen=True)
class Ended:
    """The end of a program, and what was observed while it ran."""

    code: int | None
    """Exit code; None if it ran past its time limit."""
    began: float
    """Start time on the monotonic clock."""
    peak_bytes: int | None
    """Peak memory of it and its descendants, shared pages counted once; None if unknown."""
    others: float | None
    """Mean number of cores that other programs used meanwhile; None if unknown."""
    log: str
    """The last lines of its output."""


class Neighbours:
    """Processor time of everything but one program, its descendants and this process."""

    def __init__(self) -> None:
        self._first = {process: look.seconds for process, look in looks().items()}
        self._last = dict(self._first)
        self._ours: set[Process] = set()
        self._stolen = _stolen_seconds()

    def look(self, seen: Mapping[Process, Look], family: Sequence[Process]) -> None:
        """Update from a snapshot of all processes; `family` are the program and its descendants."""
        self._ours.update(family)
        self._last.update((process, look.seconds) for process, look in seen.items())

    @property
    def seconds(self) -> float | None:
        """Processor time so far, including time that a hypervisor gave to other machines; None if unknown."""
        if not self._first:
            return None
        used = {process: last - self._first.get(process, 0.0) for process, last in self._last.items()}
        ours = {process for process in used if process in self._ours or process.number == os.getpid()}
        return sum(seconds for process, seconds in used.items() if process not in ours) + (
            _stolen_seconds() - self._stolen
        )


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, limit: float) -> Ended:
    """Run `command` in `folder` to its end, or stop it and its descendants after `limit` seconds."""
    peak: int | None = None
    neighbours = Neighbours()
    with log.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, env=dict(environment), cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and time.monotonic() - began < limit:
                seen = looks()
                members = family(process.pid, seen)
                neighbours.look(seen, members)
                held = [size for size in map(held_bytes, members) if size is not None]
                peak = max(peak or 0, sum(held)) if held else peak
                try:
                    process.wait(_LOOK_EVERY)
                except subprocess.TimeoutExpired:
                    continue
            code = process.poll()
        finally:
            stop(process)
    used = neighbours.seconds
    others = None if used is None else used / (time.monotonic() - began)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return Ended(code, began, peak, others, "\n".join(lines[-_LOG_LINES:]))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program that still runs, and its descendants."""
    if process.poll() is not None:
        return
    started = family(process.pid, looks())
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    alive = looks()
    for member in started:
        if member in alive:
            os.kill(member.number, signal.SIGKILL)


def family(number: int, seen: Mapping[Process, Look]) -> list[Process]:
    """Return a process and its descendants."""
    children: dict[int, list[Process]] = {}
    for process, look in seen.items():
        children.setdefault(look.parent, []).append(process)
    found = [process for process in seen if process.number == number]
    for member in found:
        found += children.get(member.number, [])
    return found


def looks() -> dict[Process, Look]:
    """Return a snapshot of all processes but zombies; empty where there is no /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The second field is a name in parentheses that may contain anything; the third is the state.
        fields = text.rpartition(")")[2].split()
        if fields[0] != "Z":
            ticks = sum(map(int, fields[11:13]))
            found[Process(int(entry.name), fields[19])] = Look(int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    return found


def held_bytes(process: Process) -> int | None:
    """Return the memory of one process, shared pages divided among those that share them (PSS); None if unknown."""
    try:
        for line in Path(f"/proc/{process.number}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _stolen_seconds() -> float:
    try:
        cores = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(cores[8]) / os.sysconf("SC_CLK_TCK")
