"""Ctrl-C: once finishes the round and stops, twice stops at once. A file in the run folder asks from elsewhere."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

STOP = "stop"
"""File in the folder of a run that asks it to end after its round; whoever may write the folder may ask."""


def request_stop(folder: Path) -> None:
    """Ask the run that is writing `folder`, in whatever process, to end after its round."""
    with suppress(FileExistsError):
        # A link in this place is not followed.
        os.close(os.open(folder / STOP, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def withdraw_stop(folder: Path) -> None:
    """Forget that a run was asked to end: it has, or it begins again."""
    with suppress(OSError):
        (folder / STOP).unlink(missing_ok=True)


@contextmanager
def finishing_the_round(*folders: Path) -> Iterator[Callable[[], bool]]:
    """Make the first SIGINT or SIGTERM set a flag only; the yielded function reads it, and looks for `STOP` files."""
    asked = threading.Event()
    files = [str(folder / STOP) for folder in folders]

    def stopping() -> bool:
        return asked.is_set() or any(map(os.path.isfile, files))

    try:
        with _catching(asked):
            yield stopping
    finally:
        for folder in folders:
            withdraw_stop(folder)


@contextmanager
def _catching(asked: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nFinishing this round, then stopping. Once more to stop at once.", file=sys.stderr)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
