"""The process that jobs are forked from, once everything is imported; each job is a process of its own.

It reads a line of JSON for each job to begin and writes one when a job has ended. It ends with the server, and jobs go
on: they write their result themselves, and the next server finds it. Where forking is not safe, each job is a new
interpreter.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from covey.errors import Refusal
from covey.storage import FolderLock, read_json, sync_folder, write_json

RESULT = "result.json"
"""File in a job's folder: its exit code and what it printed. It is written once."""

TAKEN = 75
"""Exit code of a process whose job has another one."""

_MODULES = (
    *("covey.cli.main", "covey.job.runs", "covey.job.on_demand.nearest_mix", "covey.job.comparison.execution"),
    *("covey.serve.base_work", "covey.job.analysis", "sklearn.datasets", "covey.page.on_demand_page"),
)
"""Modules that jobs need, imported before any is forked."""

_LONGEST = 2000
"""Characters of a refusal that are kept."""


def main() -> None:
    """Fork a process for each line of standard input, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    running: dict[int, str] = {}
    waiting = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.02 if running else None)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                running[begin(asked)] = asked["job"]
        for process in list(running):
            if _ended(process):
                print(json.dumps({"ended": running.pop(process)}), flush=True)


def begin(asked: Mapping[str, Any]) -> int:
    """Begin a job in a process of its own, and return its number."""
    if sys.platform.startswith("linux"):
        process = os.fork()
        if process == 0:
            code = 1
            try:
                code = work(asked)
            finally:
                os._exit(code)
        return process
    script = "import json, sys; from covey.serve.spawner import work; sys.exit(work(json.loads(sys.argv[1])))"
    command = [sys.executable, "-P", "-c", script, json.dumps(dict(asked))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True).pid


def _ended(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def work(asked: Mapping[str, Any]) -> int:
    """Do a job in this process, unless it is done or another process does it, and write its result."""
    place = Path(asked["place"])
    # A terminal's Ctrl-C is for the server alone, which tells its jobs.
    with suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        lock = FolderLock(place, "job")
    except Refusal:
        return TAKEN
    try:
        if not (place / RESULT).exists():
            _do(place, asked)
    finally:
        lock.release()
    return 0


def _do(place: Path, asked: Mapping[str, Any]) -> None:
    log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    out = os.open(place / "out.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    begin = os.fstat(log).st_size
    nothing = os.open(os.devnull, os.O_RDONLY)
    for handle, number in ((nothing, 0), (out, 1), (log, 2)):
        os.dup2(handle, number)
    os.chdir(place)
    code = _called(asked)
    sys.stdout.flush()
    sys.stderr.flush()
    result: dict[str, Any] = {"code": code}
    if code == 0:
        with suppress(OSError, ValueError):
            result["output"] = read_json((place / "out.json").read_bytes())
    elif code != 130:
        result["error"] = _last_words((place / "log.txt").read_bytes()[begin:].decode(errors="replace"))
    write_json(place / RESULT, result)
    sync_folder(place)


def _called(asked: Mapping[str, Any]) -> int:
    """Call the command line, or a function of `covey.serve.base_work`, and return the exit code."""
    try:
        if "function" in asked:
            function = getattr(importlib.import_module("covey.serve.base_work"), asked["function"])
            print(json.dumps(function(**asked["arguments"])))
            return 0
        sys.argv = ["covey", *asked["arguments"]]
        importlib.import_module("covey.cli.main").main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except Refusal as refusal:
        print(f"covey: {refusal}", file=sys.stderr)
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _last_words(log: str) -> str:
    """Return the sentence with which a command ended, or the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    spoken = [line.removeprefix("covey: ") for line in lines if line.startswith("covey: ")]
    return (spoken or lines or ["It ended without a word."])[-1][:_LONGEST]


if __name__ == "__main__":
    main()
