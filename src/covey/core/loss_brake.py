"""A brake against divergence: the server's rate halves when the clients' loss explodes."""

import math
from dataclasses import dataclass, replace
from statistics import median

from covey.arrays import State

_REMEMBERED, _ENOUGH = 20, 5
"""Rounds whose losses are the measure, and how few of them are one."""

_MUCH = 0.5
"""A loss below this share of the first round's is no explosion: near zero, twice as much is little."""


@dataclass(frozen=True)
class Course:
    """The losses of earlier rounds that are the measure of the next."""

    first: float = math.nan
    """Loss of the first round."""
    recent: tuple[float, ...] = ()

    def explodes(self, loss: float, factor: float) -> bool:
        """True if a loss is far above those of earlier rounds."""
        usual = median(self.recent) if len(self.recent) >= _ENOUGH else self.first
        return loss > factor * usual and loss > _MUCH * self.first

    def with_loss(self, loss: float) -> "Course":
        """Return the course after one more round."""
        first = loss if math.isnan(self.first) else self.first
        return Course(first, (*self.recent, loss)[-_REMEMBERED:])


@dataclass(frozen=True)
class LossBrake:
    """How often the rate was halved, and the losses that decide it.

    A loss explodes if it exceeds `factor` times the median of the last 20 rounds (of the first round, while there are
    fewer than five) and half of the first round's. If a round's mean training loss explodes and its median client's
    does too, the rate halves, momentum starts anew, and so does the measure: one client that lies about its loss
    halves nothing. So it does if a model is not finite, or if a model is taken back.
    """

    factor: float
    halvings: int = 0
    means: Course = Course()
    """Rounds' mean losses."""
    medians: Course = Course()
    """Losses of rounds' median clients."""

    @property
    def share(self) -> float:
        """The share of the rate that is left."""
        return 0.5**self.halvings

    def after(self, mean: float, typical: float) -> "LossBrake":
        """Return the state after a round with this mean loss and median client's; NaN changes nothing."""
        if not self.factor or not (math.isfinite(mean) and math.isfinite(typical)):
            return self
        if self.means.explodes(mean, self.factor) and self.medians.explodes(typical, self.factor):
            return self.halved()
        return replace(self, means=self.means.with_loss(mean), medians=self.medians.with_loss(typical))

    def halved(self) -> "LossBrake":
        """Return the state with half of the rate."""
        if not self.factor:
            return self
        return LossBrake(self.factor, self.halvings + 1, Course(self.means.first), Course(self.medians.first))

    def as_state(self) -> State:
        """Return what a resume needs; empty before the first loss."""
        if math.isnan(self.means.first) and not self.halvings:
            return {}
        return {"halvings": self.halvings, **_stored(self.means), "medians": _stored(self.medians)}

    def restored(self, state: State) -> "LossBrake":
        """Return the brake with the state of `as_state`; that of earlier versions has no medians, and means serve."""
        if not state:
            return LossBrake(self.factor)
        means, medians = _restored(state), _restored(state.get("medians", state))
        return LossBrake(self.factor, int(state["halvings"]), means, medians)


def _stored(course: Course) -> State:
    return {"first": None if math.isnan(course.first) else course.first, "recent": list(course.recent)}


def _restored(state: State) -> Course:
    return Course(math.nan if state["first"] is None else float(state["first"]), tuple(state["recent"]))
