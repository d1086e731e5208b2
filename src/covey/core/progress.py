"""Announcements for progress displays: long waits, such as compilation, and what a job plans."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Listener = Callable[[str], None]
"""Called with the reason of a wait when it begins, and with "" when it ends."""

_listeners: list[Listener] = []


@dataclass(frozen=True)
class JobPlan:
    """What a job of several runs has before it."""

    runs: int
    """All its runs."""
    missing: int
    """Those that are not finished."""
    rounds: int
    """Rounds that are left over all of them."""


PlanListener = Callable[[JobPlan], None]

_planners: list[PlanListener] = []


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


def announce_plan(plan: JobPlan) -> None:
    """Tell displays what a job has before it."""
    for listener in _planners:
        listener(plan)


@contextmanager
def planning(listener: PlanListener) -> Iterator[None]:
    """Send plans of jobs to `listener` while the context lasts."""
    _planners.append(listener)
    try:
        yield
    finally:
        _planners.remove(listener)
