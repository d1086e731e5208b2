"""A program and all its descendants: run it, watch its memory and what else runs, stop it where it takes too long."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_LOOK_EVERY = 0.5
_GRACE = 10.0
_LOG_LINES = 15


class Process(NamedTuple):
    """A process that a later one with the same number is not taken for."""

    number: int
    born: str


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int | None
    """Its exit code; None where it was stopped for taking too long."""
    began: float
    """When it was started, on the monotonic clock."""
    peak_bytes: int | None
    """The most that it and its descendants held at once, shared pages counted once; None where nobody can say."""
    others: float | None
    """Cores that everything else on the machine used meanwhile, on average; None where nobody can say."""
    log: str
    """The last lines that it wrote."""


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, limit: float) -> Ended:
    """Run `command` in `folder` to its end, or stop it and its descendants after `limit` seconds."""
    peak: int | None = None
    used = 0.0
    busy, reaped, watching = machine_seconds(), _reaped_seconds(), time.process_time()
    with log.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, env=dict(environment), cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and time.monotonic() - began < limit:
                members = family(process.pid)
                held = [size for size in map(held_bytes, members) if size is not None]
                peak = max(peak or 0, sum(held)) if held else peak
                used = max(used, sum(map(_seconds, members)))
                try:
                    process.wait(_LOOK_EVERY)
                except subprocess.TimeoutExpired:
                    continue
            code = process.poll()
        finally:
            stop(process)
    others: float | None = None
    now = machine_seconds()
    if busy is not None and now is not None:
        # What was seen last misses the end; what was reaped misses daemons. The larger is nearer.
        own = max(used, _reaped_seconds() - reaped) + time.process_time() - watching
        others = max(0.0, now - busy - own) / (time.monotonic() - began)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return Ended(code, began, peak, others, "\n".join(lines[-_LOG_LINES:]))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program that still runs, and whatever it started."""
    if process.poll() is not None:
        return
    started = family(process.pid)
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for member in started:
        if _stat(member.number) is not None and _born(member.number) == member.born:
            os.kill(member.number, signal.SIGKILL)


def family(number: int) -> list[Process]:
    """A process and its descendants, as far as the system tells (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(entry.name))
        if stat is not None:
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, waiting = [], [number]
    while waiting:
        member = waiting.pop()
        born = _born(member)
        if born is not None:
            found.append(Process(member, born))
        waiting += children.get(member, [])
    return found


def held_bytes(process: Process) -> int | None:
    """Memory of one process, pages that it shares with others divided among them (PSS)."""
    try:
        for line in Path(f"/proc/{process.number}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def machine_seconds() -> float | None:
    """Seconds that the machine's cores were busy since it started, time that a hypervisor gave to others included."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields)
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


def _reaped_seconds() -> float:
    """Processor time of all children that ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _seconds(process: Process) -> float:
    """Processor time of a process and of the children that it waited for."""
    stat = _stat(process.number)
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK") if stat else 0.0


def _stat(number: int) -> list[str] | None:
    """The fields of /proc/<number>/stat from the state on; its second field, a name, may hold anything."""
    try:
        return Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _born(number: int) -> str | None:
    stat = _stat(number)
    return stat[19] if stat else None
