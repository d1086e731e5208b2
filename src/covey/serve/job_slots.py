"""Which of the waiting jobs may begin: so many at a time, one on the GPU, one on a fleet, one in a folder."""

from collections.abc import Callable, Iterable
from pathlib import Path

from covey.serve.job_request import QUICK, JobRequest

_MOST_QUICK = 2
"""Jobs that a page waits for, at a time; they do not queue behind others."""


class Slots:
    """What running jobs have taken. `fleet_of` names the fleet that a job asks, and `busy` tells whether one is."""

    def __init__(
        self,
        running: Iterable[JobRequest],
        workers: int,
        fleet_of: Callable[[JobRequest], Path | None],
        busy: Callable[[Path], bool],
    ) -> None:
        self._workers, self._fleet_of, self._busy = workers, fleet_of, busy
        self._long, self._quick, self._device = 0, 0, False
        self._places: set[str] = set()
        self._fleets: dict[Path, bool] = {}
        for one in running:
            self._taken(one)

    @property
    def full(self) -> bool:
        """True if no job of any kind can begin."""
        return self._long >= self._workers and self._quick >= _MOST_QUICK

    def take(self, asked: JobRequest) -> bool:
        """Take what a job needs; False if it has to wait."""
        quick = asked.kind in QUICK
        if asked.place in self._places or (self._device and asked.on_device):
            return False
        if self._quick >= _MOST_QUICK if quick else self._long >= self._workers:
            return False
        fleet = self._fleet_of(asked)
        if fleet is not None and self._fleets.setdefault(fleet, self._busy(fleet)):
            return False
        self._taken(asked)
        return True

    def _taken(self, asked: JobRequest) -> None:
        quick = asked.kind in QUICK
        self._long, self._quick = self._long + (not quick), self._quick + quick
        self._device = self._device or asked.on_device
        self._places |= {asked.place} if asked.place else set()
        if (fleet := self._fleet_of(asked)) is not None:
            self._fleets[fleet] = True
