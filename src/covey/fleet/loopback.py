"""A fleet on this machine: SuperLink and SuperNodes as processes on the loopback interface."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from covey.environment.federated_data import Federation
from covey.errors import Refusal
from covey.fleet.fleet_folder import Fleet, Rules
from covey.fleet.node import PID
from covey.fleet.processes import end, environment, free_port, kill, listens, start
from covey.fleet.superlink import Link
from covey.task.label_kinds import raw_labels

LOOPBACK = ("127.0.0.1", "localhost")

QUICK = Rules(poll=0.2, patience=60.0)
"""Rules of a fleet on one machine."""

POLL = 0.25
"""Seconds between a node's checks for orders on this machine."""

_COMES_UP = 60.0
"""Seconds within which a process must start."""


def loopback_fleet(
    folder: Path,
    federation: Federation,
    settings: Mapping[str, Any],
    *,
    rules: Rules = QUICK,
    node: Mapping[str, Any] | None = None,
) -> Fleet:
    """Write a fleet's folder for this machine, with every client's samples in the folder of its site.

    `settings` are those of its runs, as in `covey.run`.
    """
    names = federation.names or tuple(f"site-{client}" for client in range(federation.clients))
    fleet = Fleet(folder=folder, address=f"127.0.0.1:{free_port()}", sites=names, rules=rules, run=settings)
    fleet.write(LOOPBACK, poll=POLL, node=node)
    for client, name in enumerate(names):
        samples = federation.samples(client)
        labels = raw_labels(federation.dataset.learns, samples.y)
        np.savez(fleet.site(name) / "data" / "train.npz", x=samples.x.numpy(), y=labels.numpy())
    return fleet


def superlink_command(fleet: Fleet, host: str = "127.0.0.1") -> list[str]:
    """Return the command of the fleet's SuperLink."""
    return [sys.executable, "-P", "-m", "covey.fleet.link_process", str(fleet.folder), "--host", host]


class Loopback:
    """A fleet's processes on this machine, as a context manager: they are ended whatever happens inside.

    Use it from the main thread: processes end with the thread that started them.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.link = Link(fleet.address, fleet.server / "ca.crt", fleet.secret)
        self._variables = environment(fleet.folder / "flower")
        self._superlink: subprocess.Popen[bytes] | None = None
        self._hosts: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Loopback":
        try:
            self.start_server()
            self.register()
            self.start_nodes(self.fleet.sites)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def log(self) -> Path:
        """The SuperLink's log."""
        return self.fleet.server / "superlink.log"

    @property
    def superlink(self) -> int:
        """The SuperLink's process ID."""
        assert self._superlink is not None
        return self._superlink.pid

    def start_server(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        self._superlink = start(superlink_command(self.fleet), self.log, self._variables)
        limit = time.monotonic() + _COMES_UP
        while not listens(self.fleet.port):
            if self._superlink.poll() is not None or time.monotonic() > limit:
                last_line = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise Refusal(f"The SuperLink did not come up: {' '.join(last_line) or 'it says nothing'}")
            time.sleep(0.05)

    def kill_server(self) -> None:
        """End the SuperLink at once, as a power cut does."""
        assert self._superlink is not None
        kill(self._superlink.pid)
        self._superlink.wait()
        self._superlink = None

    def register(self) -> None:
        """Register the sites' keys."""
        self.link.register((name, self.fleet.key(name)) for name in self.fleet.sites)

    def start_nodes(self, names: Sequence[str]) -> None:
        """Start nodes; several share the loaded libraries."""
        self.reap()
        folders = [str(self.fleet.site(name)) for name in names]
        log = self.fleet.site(names[0]) / "node.log" if len(names) == 1 else self.fleet.folder / "nodes.log"
        self._hosts.append(start([sys.executable, "-P", "-m", "covey.fleet.node", *folders], log, self._variables))

    def reap(self) -> None:
        """Forget processes that have ended."""
        self._hosts = [host for host in self._hosts if host.poll() is None]

    def node(self, name: str) -> int | None:
        """Return a site's process ID, which is that of its group; None if it does not run."""
        try:
            return int((self.fleet.site(name) / PID).read_text())
        except (OSError, ValueError):
            return None

    def kill_node(self, name: str) -> None:
        """End a site's processes at once, as a power cut does."""
        group = self.node(name)
        if group is not None:
            kill(group)
            with suppress(FileNotFoundError):
                (self.fleet.site(name) / PID).unlink()

    def close(self) -> None:
        """End everything, nodes first; it is gone when this returns."""
        # A second Ctrl-C must not leave half of it behind.
        before = signal.getsignal(signal.SIGINT)
        main = _in_main_thread()
        if main:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            nodes = [group for group in map(self.node, self.fleet.sites) if group is not None]
            end([*nodes, *(host.pid for host in self._hosts)])
            if self._superlink is not None:
                end([self._superlink.pid])
            for process in (*self._hosts, *([self._superlink] if self._superlink else [])):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
            self._hosts, self._superlink = [], None
        finally:
            if main:
                signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
