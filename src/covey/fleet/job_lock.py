"""One job at a time on a fleet."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covey.errors import Refusal
from covey.fleet.fleet_folder import Fleet
from covey.storage import open_unlinked

_LOCK = "run.lock"

_PATIENCE = 1.0
"""Seconds for which a lock is tried: who looks at it holds it for a moment."""


@contextmanager
def alone(fleet: Fleet) -> Iterator[None]:
    """Hold the fleet's lock; the system releases it however this process ends."""
    with os.fdopen(open_unlinked(fleet.server / _LOCK, os.O_WRONLY | os.O_CREAT), "wb") as lock:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    raise Refusal(
                        f"Another job is running on the fleet in {fleet.folder}; wait for it, or stop it."
                    ) from None
            time.sleep(0.02)
        yield


def is_busy(folder: Path) -> bool:
    """True if a job runs on the fleet whose folder this is. Its lock is only looked at."""
    try:
        # Nothing that lies there can make the open wait.
        handle = os.open(folder / "server" / _LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
