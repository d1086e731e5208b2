"""What a long wait is for, told to whoever shows progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Told = Callable[[str], None]

_listeners: list[Told] = []


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Within, whoever listens knows what is waited for; afterwards, that it is over: an empty text."""
    _tell(what)
    try:
        yield
    finally:
        _tell("")


@contextmanager
def listening(told: Told) -> Iterator[None]:
    """Within, `told` hears of waits."""
    _listeners.append(told)
    try:
        yield
    finally:
        _listeners.remove(told)


def _tell(what: str) -> None:
    for told in _listeners:
        told(what)
