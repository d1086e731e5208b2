"""Flower's simulation engine (Ray), kept open for all runs of this process.

Flower runs a server app from beginning to end, but Covey's round loop needs a grid to send orders over: the server app
hands out its grid and waits. Ray starts once per process, so all runs share one simulation. It opens with the first
order and closes with the last run.
"""

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from covey.errors import Refusal

# Flower and Ray read these at import: Covey's simulations send no telemetry.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Otherwise Ray warns of a change in a later version.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from covey.flower.roster import Roster
from covey.flower.simulated_client import app as client_app

_OPENING = 180.0
"""Seconds within which Ray and the nodes must start."""


@dataclass
class Session:
    """A running simulation: its grid and its roster."""

    nodes: int
    cpus: int
    grid: Grid = field(init=False)
    roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._grids: queue.Queue[Grid | BaseException] = queue.Queue()
        self._log_level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._thread = threading.Thread(target=self._simulate, daemon=True, name="flower simulation")
        self._thread.start()
        try:
            found = self._grids.get(timeout=_OPENING)
        except queue.Empty:
            raise Refusal(f"Flower's simulation did not come up within {_OPENING:g} seconds.") from None
        if isinstance(found, BaseException):
            raise found
        self.grid = found
        self.roster = Roster(self.nodes, [str(number) for number in range(self.nodes)], patience=_OPENING)
        self.roster.wait(self.grid, _OPENING)

    def close(self) -> None:
        """End the simulation, and Ray with it."""
        self._over.set()
        self._thread.join(timeout=60)
        logging.getLogger("flwr").setLevel(self._log_level)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _simulate(self) -> None:
        server = ServerApp()

        @server.main()
        def serve(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._over.wait()

        resources: dict[str, Any] = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": self.cpus,
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": "ERROR",
            },
        }
        try:
            run_simulation(server, client_app, self.nodes, backend_config=resources)
        except BaseException as error:
            self._grids.put(error)


@dataclass
class _Shared:
    """The one simulation of this process and its users."""

    users: dict[int, int] = field(default_factory=dict)
    """User → nodes that it needs."""
    session: Session | None = None
    cpus: int = 1


_shared = _Shared()


def enter(user: object, nodes: int, cpus: int) -> None:
    """Announce a user that needs so many nodes; nothing is started yet."""
    _shared.users[id(user)] = nodes
    _shared.cpus = max(_shared.cpus, cpus) if _shared.session is None else _shared.cpus


def current() -> Session:
    """Return the simulation, with enough nodes for every user."""
    wanted = max(_shared.users.values())
    if _shared.session is not None and (_shared.session.nodes < wanted or not _shared.session.alive):
        _shared.session.close()
        _shared.session = None
    if _shared.session is None:
        _shared.session = Session(wanted, _shared.cpus)
    return _shared.session


def leave(user: object) -> None:
    """Remove a user; with the last one the simulation ends."""
    _shared.users.pop(id(user), None)
    if not _shared.users and _shared.session is not None:
        _shared.session.close()
        _shared.session = None


@contextmanager
def simulation(nodes: int, cpus: int = 1) -> Iterator[None]:
    """Keep one simulation open for all runs inside: Ray takes seconds to start."""
    holder = object()
    enter(holder, nodes, cpus)
    try:
        yield
    finally:
        leave(holder)
