"""One job at a time on a fleet."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from covey.errors import Refusal
from covey.fleet.fleet_folder import Fleet
from covey.storage import open_unlinked


@contextmanager
def alone(fleet: Fleet) -> Iterator[None]:
    """Hold the fleet's lock; the system releases it however this process ends."""
    with os.fdopen(open_unlinked(fleet.server / "run.lock", os.O_WRONLY | os.O_CREAT), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refusal(f"Another job is running on the fleet in {fleet.folder}; wait for it, or stop it.") from None
        yield
