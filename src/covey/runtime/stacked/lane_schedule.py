"""Packing: which lane of the stack trains which client, from which step to which, and how many lanes there are.

A stack has a fixed number of lanes; one step moves every lane by one batch. Lanes take clients one after another, the
longest first and each to the lane with the fewest steps, so clients of very different sizes cost their own number of
steps, not that of the largest.
"""

from collections.abc import Collection
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from covey.config.sections import Local
from covey.core.trainer import TrainerRef


class LaunchShape(NamedTuple):
    """Properties that clients must share to be trained in one launch."""

    batch: int
    """Samples per batch."""
    crop: int = 0
    """Pixels of padding for random crops; 0: none."""
    flip: bool = False
    """True if images are flipped at random."""
    optimizer: str = "sgd"
    trainer: TrainerRef | None = None


class Segment(NamedTuple):
    """One client's local training."""

    request: int
    """Index of the request it belongs to."""
    position: int
    """The client's position in that request's cohort."""
    client: int
    samples: int
    """Samples trained on, without those held out."""
    steps: int
    """Over all epochs."""
    key: int
    """Random key of (seed, round, client)."""
    work: Local
    t: int
    """Round."""
    holdout: int = 0
    """Every `holdout`-th sample is held out; 0: none."""
    traced: bool = False
    """True if a probe uses its steps."""
    trainer: TrainerRef | None = None
    """How the client trains, if not plainly."""

    @property
    def shape(self) -> LaunchShape:
        work = self.work
        return LaunchShape(work.batch or self.samples, work.crop, work.flip, work.optimizer, self.trainer)


class Visit(NamedTuple):
    """A segment in a lane: steps `begin` to `end` of the launch."""

    lane: int
    begin: int
    end: int
    segment: Segment


def pack(segments: list[Segment], lanes: int) -> list[Visit]:
    """Assign segments to lanes, longest processing time first; return visits in order of lane and time.

    Segments of equal length keep their order, which is that of requests and positions.
    """
    longest_first = sorted(segments, key=attrgetter("steps"), reverse=True)
    if len(segments) <= lanes:
        return [Visit(lane, 0, one.steps, one) for lane, one in enumerate(longest_first)]
    load = np.zeros(lanes, dtype=np.int64)
    visits = []
    for one in longest_first:
        lane = int(np.argmin(load))
        visits.append(Visit(lane, int(load[lane]), int(load[lane]) + one.steps, one))
        load[lane] += one.steps
    return sorted(visits, key=lambda visit: (visit.lane, visit.begin))


def without_giants(segments: list[Segment]) -> list[list[Segment]]:
    """Split off segments more than eight times as long as the median, so the rest need not wait for them."""
    steps = np.array([one.steps for one in segments])
    if steps.max() <= 8 * steps.min():
        return [segments]
    giant = steps > 8 * np.median(steps)
    parts = [[one for one, big in zip(segments, giant, strict=True) if bool(big) is wanted] for wanted in (False, True)]
    return [part for part in parts if part]


STEP_OVERHEAD = 8
"""Fixed cost of a step, in lanes: 9 with McMahan's CNN on an H200, 5 with VGG-11."""

GOOD_ENOUGH = 1.25
"""Lanes that are compiled already are used without limit while they take at most this many times the best time."""

COMPILING = 1 << 14
"""Cost of compiling, in steps: on an H200 a step takes 1 to 6 ms, and compiling takes 8 to 171 s."""


class LaneChoice(NamedTuple):
    """A number of lanes, and the steps lost so far by using lanes that are slower than the best number."""

    lanes: int
    lost: float = 0.0


def suitable_lanes(segments: list[Segment], most: int, made: Collection[int] = (), lost: float = 0.0) -> LaneChoice:
    """Choose the fastest number of lanes, or a number that is `made` (compiled) already and nearly as fast.

    Cohorts that change in size from round to round would otherwise be compiled in every size. Slower lanes are used
    until they have lost as much time as compiling takes.
    """
    best = _best_lanes(segments, most)
    if not made or best in made:
        return LaneChoice(best, lost)
    existing = min(made, key=lambda lanes: _cost(segments, lanes))
    slow, fast = (_cost(segments, lanes) for lanes in (existing, best))
    if slow <= GOOD_ENOUGH * fast:
        return LaneChoice(existing, lost)
    lost += (1 - fast / slow) * _length(segments, existing)
    return LaneChoice(best) if lost > COMPILING else LaneChoice(existing, lost)


def _best_lanes(segments: list[Segment], most: int) -> int:
    """Return the cheapest of three numbers: total steps / steps of the longest client, one lane per client, halfway.

    Fewer lanes than clients suit clients of very different sizes, which fill each other's gaps. They do not suit
    clients of nearly equal size: two in one lane take twice as long.
    """
    steps = [one.steps for one in segments]
    whole = min(most, len(steps))
    busy = max(1, min(whole, -(-sum(steps) // max(1, *steps))))
    if busy == whole:
        return whole
    return min((busy, (busy + whole) // 2, whole), key=lambda lanes: _cost(segments, lanes))


def _cost(segments: list[Segment], lanes: int) -> int:
    """Time, in steps of one lane."""
    return _length(segments, lanes) * (lanes + STEP_OVERHEAD)


def _length(segments: list[Segment], lanes: int) -> int:
    """Return the steps until the last lane is done."""
    return max(visit.end for visit in pack(segments, lanes))
