"""Announcements of long waits, such as compilation, for progress displays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str], None]
"""Called with the reason of a wait when it begins, and with "" when it ends."""

_listeners: list[Listener] = []


@contextmanager
def waiting_for(reason: str) -> Iterator[None]:
    """Announce a long wait; send "" when it ends."""
    _announce(reason)
    try:
        yield
    finally:
        _announce("")


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send announcements to `listener` while the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _announce(text: str) -> None:
    for listener in _listeners:
        listener(text)
