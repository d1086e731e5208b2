"""The server's end of the process that jobs are forked from."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any


class Workers:
    """Begins jobs in processes of their own, and says when one has ended."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._running: set[str] = set()
        self._guard = threading.Lock()

    def start(self) -> None:
        """Start the process that jobs are forked from; it imports what they need meanwhile."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "covey.serve.spawner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A Ctrl-C in the terminal is the server's to answer.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        threading.Thread(target=self._listen, args=(self._process,), name="ended jobs", daemon=True).start()

    def begin(self, order: Mapping[str, Any]) -> None:
        """Begin a job."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        with self._guard:
            self._running.add(str(order["job"]))
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dict(order)).encode() + b"\n")
            self._process.stdin.flush()

    def has(self, job: str) -> bool:
        """True if a process that was begun here for a job has not ended, as far as is known."""
        alive = self._process is not None and self._process.poll() is None
        with self._guard:
            return alive and job in self._running

    def stop(self) -> None:
        """End the process that jobs are forked from; jobs go on."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        out: IO[bytes] | None = process.stdout
        assert out is not None
        for line in out:
            with self._guard:
                self._running.discard(json.loads(line)["ended"])
            self._on_end()
        with self._guard:
            self._running.clear()
        self._on_end()
