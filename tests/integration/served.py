"""A server in a process of its own, for tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import covey
from tests.programs import PATIENCE, wait_until

SMALL_RUN = {
    "clients": 8,
    "cohort": 4,
    "workers": 1,
    "environment": {"name": "uniform", "samples": 20},
    "local": {"epochs": 1, "batch": 8, "rate": 0.1},
    "model": {"name": "mlp", "hidden": [16]},
}
"""Settings of a run of a fraction of a second, as JSON."""


def at_rest() -> bool:
    """True if the machine has little else to do, so that seconds that pass are the server's own."""
    return os.getloadavg()[0] < (os.cpu_count() or 1) / 2


class Server:
    """`covey serve` on a free port, which can be killed and started again on the same one."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder, self.arguments, self.port = folder, arguments, 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "covey", "serve", str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *map(str, self.arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        line = next((one for one in self.process.stdout if ": http://" in one or not one.startswith("/")), "")
        assert ": http://" in line, line + self.process.stdout.read()
        self.address = line.rpartition(": ")[2].strip()
        self.port = int(self.address.rpartition(":")[2])
        wait_until(covey.Client(self.address).healthy, "the server")

    def kill(self) -> None:
        """End it as a loss of power would; jobs that have begun go on."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def close(self) -> str:
        """Interrupt it, and return what it said."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=PATIENCE)
        return said
