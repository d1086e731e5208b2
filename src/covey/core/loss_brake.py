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
class LossBrake:
    """How often the rate was halved, and the losses that decide it.

    A round's mean training loss explodes if it exceeds `factor` times the median of the last 20 rounds (of the first
    round, while there are fewer than five) and half of the first round's. The rate halves then, momentum starts anew,
    and so does the measure. So it does if a model or all replies of a round are not finite.
    """

    factor: float
    halvings: int = 0
    first: float = math.nan
    """Loss of the first round."""
    recent: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        """The share of the rate that is left."""
        return 0.5**self.halvings

    def after(self, loss: float) -> "LossBrake":
        """Return the state after a round with this loss; NaN is unknown and changes nothing."""
        if not self.factor or not math.isfinite(loss):
            return self
        if math.isnan(self.first):
            return replace(self, first=loss, recent=(loss,))
        usual = median(self.recent) if len(self.recent) >= _ENOUGH else self.first
        if loss > self.factor * usual and loss > _MUCH * self.first:
            return self.halved()
        return replace(self, recent=(*self.recent, loss)[-_REMEMBERED:])

    def halved(self) -> "LossBrake":
        """Return the state with half of the rate."""
        return replace(self, halvings=self.halvings + 1, recent=()) if self.factor else self

    def as_state(self) -> State:
        """Return what a resume needs; empty before the first loss."""
        if math.isnan(self.first) and not self.halvings:
            return {}
        first = None if math.isnan(self.first) else self.first
        return {"halvings": self.halvings, "first": first, "recent": list(self.recent)}

    def restored(self, state: State) -> "LossBrake":
        """Return the brake with the state of `as_state`."""
        if not state:
            return replace(self, halvings=0, first=math.nan, recent=())
        first = math.nan if state["first"] is None else float(state["first"])
        return replace(self, halvings=int(state["halvings"]), first=first, recent=tuple(state["recent"]))
