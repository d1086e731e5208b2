"""Announcements for progress displays: long waits, such as compilation, what a job plans, and how it is done."""

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

_notes: list[Listener] = []


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
def as_one_job(plan: JobPlan) -> Iterator[None]:
    """Tell displays the plan of a job that is made of jobs, and none of theirs while the context lasts."""
    announce_plan(plan)
    told, _planners[:] = list(_planners), []
    try:
        yield
    finally:
        _planners[:] = told


def announce_note(text: str) -> None:
    """Tell displays a sentence about how a job is done; "" tells nothing."""
    for listener in _notes if text else ():
        listener(text)


@contextmanager
def noting(listener: Listener) -> Iterator[None]:
    """Send sentences about how a job is done to `listener`, each once, while the context lasts."""
    told: set[str] = set()

    def once(text: str) -> None:
        if text not in told:
            told.add(text)
            listener(text)

    _notes.append(once)
    try:
        yield
    finally:
        _notes.remove(once)


@contextmanager
def planning(listener: PlanListener) -> Iterator[None]:
    """Send plans of jobs to `listener` while the context lasts."""
    _planners.append(listener)
    try:
        yield
    finally:
        _planners.remove(listener)
