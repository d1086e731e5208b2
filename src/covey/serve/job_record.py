"""A job: what was asked for, and what has come of it."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from covey.serve.job_request import JobRequest

ENDED = ("done", "failed", "cancelled", "stopped")


@dataclass
class Job:
    """A job as its file holds it."""

    id: str
    number: int
    """Place in the queue."""
    request: dict[str, Any]
    state: str = "waiting"
    asked: float = 0.0
    begun: float | None = None
    ended: float | None = None
    starts: int = 0
    """Processes that were begun for it."""
    crashes: int = 0
    """Those that ended without a result."""
    wanted: str = ""
    """`cancel`, `stop` or `pause`, if its process was told to end."""
    result: Any = None
    """What the command printed as JSON."""
    error: str | None = None

    @cached_property
    def meaning(self) -> JobRequest:
        """The request."""
        return JobRequest.of(self.request)

    @property
    def over(self) -> bool:
        """True if nothing more will happen unless somebody asks."""
        return self.state in ENDED

    def as_mapping(self) -> dict[str, Any]:
        """Return the job for JSON."""
        return asdict(self)
