"""Run long programs side by side on a machine that can be had for minutes only, and fetch what they have so far.

    python benchmarks/side_by_side.py start --work WORK skewed="covey reproduce own --only uniform --minutes 20"
    python benchmarks/side_by_side.py collect --work WORK --out OUT --keep RESULTS --seconds 500

`start` returns at once: each program goes on in a session of its own, even when the shell that began it ends, and a
name that is already running is left alone. `collect` waits for so long, or until all have ended, and puts the end of
every program's output and one archive of the kept folders into OUT, whole, once a minute. So whatever happens to the
machine costs a minute of results. One program's work on the processor fills the gaps that another leaves on the GPU.
"""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

EVERY = 60.0
"""Seconds between two copies."""

TAIL = 20_000
"""Bytes of a program's output that are copied."""


def start(work: Path, jobs: dict[str, list[str]]) -> None:
    """Begin all programs that are not running."""
    work.mkdir(parents=True, exist_ok=True)
    for name, command in jobs.items():
        if running(work, name):
            print(f"{name}: is running")
            continue
        (work / f"{name}.ended").unlink(missing_ok=True)
        with (work / f"{name}.log").open("ab") as log:
            # A process of its own waits for the program, so that its end is known to whoever collects.
            child = subprocess.Popen(
                [sys.executable, __file__, "hold", "--work", str(work), name, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (work / f"{name}.pid").write_text(str(child.pid), encoding="utf-8")
        print(f"{name}: begun")


def hold(work: Path, name: str, command: list[str]) -> None:
    """Run a program to its end, and note its status."""
    (work / f"{name}.ended").write_text(f"{subprocess.run(command, check=False).returncode}\n", encoding="utf-8")


def running(work: Path, name: str) -> bool:
    pid = work / f"{name}.pid"
    if (work / f"{name}.ended").exists() or not pid.exists():
        return False
    try:
        os.kill(int(pid.read_text(encoding="utf-8")), 0)
    except (ProcessLookupError, ValueError):
        return False
    return True


def collect(work: Path, out: Path, kept: list[Path], seconds: float) -> bool:
    """Copy what there is until all programs have ended or time is up; return True if all have ended."""
    until = time.monotonic() + seconds
    names = sorted(path.stem for path in work.glob("*.pid"))
    while True:
        copy(work, out, kept, names)
        going = [name for name in names if running(work, name)]
        left = until - time.monotonic()
        if not going or left <= 0:
            break
        pause = time.monotonic() + min(EVERY, left)
        while time.monotonic() < pause and any(running(work, name) for name in going):
            time.sleep(0.2)
    for name in names:
        ended = work / f"{name}.ended"
        about = f"ended with {ended.read_text(encoding='utf-8').strip()}" if ended.exists() else "goes on"
        last = (work / f"{name}.log").read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
        print(f"{name}: {about if name not in going else 'goes on'}. {last[:200]}")
    return not going


def copy(work: Path, out: Path, kept: list[Path], names: list[str]) -> None:
    """Write logs and one archive, each file whole."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        log = (work / f"{name}.log").read_bytes()[-TAIL:]
        (out / f"{name}.log").write_bytes(log)
    beside = out / "kept.tar.gz.part"
    with tarfile.open(beside, "w:gz") as tar:
        for folder in kept:
            if folder.exists():
                for path in sorted(folder.rglob("*")):
                    # A program may remove or replace a file just now: it is in the next copy.
                    with contextlib.suppress(OSError):
                        if path.is_file() and not path.name.endswith(".part"):
                            tar.add(path, Path(folder.name) / path.relative_to(folder))
    beside.replace(out / "kept.tar.gz")


def named_commands(texts: list[str]) -> dict[str, list[str]]:
    """Return name → command of texts such as `name=program flag`."""
    found = {}
    for text in texts:
        name, _, command = text.partition("=")
        if not name.isidentifier() or not command:
            raise SystemExit(f"'{text}' is not of the form name=command.")
        found[name] = shlex.split(command)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    starting, collecting, holding = (actions.add_parser(name) for name in ("start", "collect", "hold"))
    for one in (starting, collecting, holding):
        one.add_argument("--work", type=Path, required=True, help="folder of logs")
    starting.add_argument("jobs", nargs="+", help="name=command")
    collecting.add_argument("--out", type=Path, required=True)
    collecting.add_argument("--keep", type=Path, nargs="*", default=[], help="folders to archive")
    collecting.add_argument("--seconds", type=float, default=500.0)
    holding.add_argument("name")
    holding.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.action == "start":
        start(given.work, named_commands(given.jobs))
    elif given.action == "hold":
        hold(given.work, given.name, given.command)
    else:
        return 0 if collect(given.work, given.out, given.keep, given.seconds) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
