"""Which lane of the stack trains which client when, and with which samples.

A stack has a fixed number of lanes, each a model being trained; one step moves every lane by one batch. A
client is a segment of so many steps. Lanes take segments one after another, the longest first to the lane
with the least to do, so that clients of very different sizes cost what they have, not what the largest has.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covey import randomness
from covey.client.learner import steps_of, trained_on, training_places
from covey.config.sections import Local
from covey.runtime.stacked.device_data import Holdings


@dataclass(frozen=True, eq=False)
class Segment:
    """One client's local training."""

    job: int
    """Which order of the launch it belongs to."""
    position: int
    """Its place in that order's cohort."""
    client: int
    samples: int
    """Those that are trained on."""
    steps: int
    """Over all epochs."""
    place: int
    """Its key: (seed, round, client)."""
    work: Local
    round: int
    holdout: int = 0


class Visit(NamedTuple):
    """A segment in a lane: steps `begin` to `end` of the launch."""

    lane: int
    begin: int
    end: int
    segment: Segment


def segment(
    job: int, position: int, client: int, samples: int, work: Local, t: int, place: int, holdout: int = 0
) -> Segment:
    """The segment of a client that holds so many samples."""
    samples = trained_on(samples, holdout)
    return Segment(job, position, client, samples, work.epochs * steps_of(samples, work), place, work, t, holdout)


def pack(segments: list[Segment], lanes: int) -> list[Visit]:
    """Longest processing time first: visits in order of lane and time."""
    longest_first = sorted(segments, key=lambda one: (-one.steps, one.job, one.position))
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
    """Segments in one part, or those far longer than the rest in a part of their own (the rest would wait for them)."""
    steps = np.array([one.steps for one in segments])
    giant = steps > 8 * np.median(steps)
    parts = [[one for one, big in zip(segments, giant, strict=True) if bool(big) is wanted] for wanted in (False, True)]
    return [part for part in parts if part]


STEP_OVERHEAD = 8
"""A step takes about as long as if it had so many more lanes: 9 with McMahan's CNN on an H200, 5 with VGG-11."""

GOOD_ENOUGH = 1.25
"""Times as long as with the best number of lanes, up to which lanes that are compiled already are used for good."""

COMPILING = 1 << 14
"""Steps that compiling takes about as long as: on an H200 they take 1 to 6 ms, and compiling 8 to 171 s."""


class Choice(NamedTuple):
    """How many lanes to use, and the steps that have been lost by then for want of better ones."""

    lanes: int
    lost: float = 0.0


def suitable_lanes(segments: list[Segment], most: int, made: Collection[int] = (), lost: float = 0.0) -> Choice:
    """The number of lanes that takes the least time, or one that is `made` already and will do.

    Cohorts that change from round to round would otherwise be compiled in every size they come in. Lanes that are
    slower than others would be are used until as much time is lost by them as it takes to compile.
    """
    best = _best_lanes(segments, most)
    if not made or best in made:
        return Choice(best, lost)
    existing = min(made, key=lambda lanes: _cost(segments, lanes))
    slow, fast = (_cost(segments, lanes) for lanes in (existing, best))
    if slow <= GOOD_ENOUGH * fast:
        return Choice(existing, lost)
    lost += (1 - fast / slow) * _length(segments, existing)
    return Choice(best) if lost > COMPILING else Choice(existing, lost)


def _best_lanes(segments: list[Segment], most: int) -> int:
    """The cheapest of three numbers: all steps / those of the longest client, a lane for each client, and halfway.

    Fewer suit clients of very different sizes, which share lanes without a rest. Those of nearly the same size do not:
    two in one lane take twice as long.
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
    """Steps until the last lane is done."""
    return max(visit.end for visit in pack(segments, lanes))


@dataclass(frozen=True, eq=False)
class Schedule:
    """What every lane does at every step, on the device."""

    sample: Tensor
    """`[steps, lanes, batch]`, int32: places in the gallery."""
    label: Tensor
    """`[steps, lanes, batch]`, int64"""
    weight: Tensor
    """`[steps, lanes, batch]`: 1/b for the b samples of the batch, 0 for padding."""
    count: Tensor
    """`[steps, lanes]`: b."""
    rate: Tensor
    """`[steps, lanes]`; 0 where a lane has nothing to do."""
    key: Tensor
    """`[steps, lanes]`, int64: for dropout masks."""
    crops: Tensor | None = None
    """`[steps, lanes, batch, 2]`, int32, where images are augmented."""
    flips: Tensor | None = None
    """`[steps, lanes, batch]`, bool, likewise."""

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if value is not None}


def schedule(
    visits: list[Visit],
    holdings: list[Holdings],
    lanes: int,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
    steps: int,
) -> Schedule:
    """Fill in the batches of every visit, drawn as a client alone would draw them.

    All epochs of all clients are drawn at once, padded to the largest client; a generator that counts gives the
    same first n numbers however many are asked for.
    """
    rows = [(visit, epoch) for visit in visits for epoch in range(visit.segment.work.epochs)]
    clients_keys = np.array([visit.segment.place for visit, _ in rows], dtype=np.uint64)
    epochs = randomness.keys(clients_keys, np.array([epoch for _, epoch in rows]))

    def keys(purpose: str) -> Tensor:
        return randomness.as_tensor(randomness.keys(epochs, purpose), device)

    sizes = torch.tensor([visit.segment.samples for visit, _ in rows], device=device)
    longest = max(visit.segment.samples for visit in visits)
    per_epoch = -(-longest // batch)
    padded = per_epoch * batch

    order = _orders(keys("batches"), sizes, longest)
    slots = torch.arange(padded, device=device)
    real = slots < sizes[:, None]
    within = _padded(order, padded).masked_fill(~real, 0)
    if any(visit.segment.holdout for visit in visits):
        # A client that holds nothing out skips none: its samples are fewer than so large a stride.
        strides = [visit.segment.holdout or padded + 2 for visit, _ in rows]
        within = training_places(within, torch.tensor(strides, device=device)[:, None])
    sample = torch.zeros(len(rows), padded, dtype=torch.int32, device=device)
    label = torch.zeros(len(rows), padded, dtype=torch.int64, device=device)
    jobs = np.array([visit.segment.job for visit, _ in rows])
    clients = torch.tensor([visit.segment.client for visit, _ in rows], device=device)
    for job, held in enumerate(holdings):
        if not (jobs == job).any():
            continue
        mine = torch.from_numpy(np.flatnonzero(jobs == job)).to(device)
        table = held.on(device)
        places = table.start[clients[mine]][:, None] + within[mine]
        sample[mine], label[mine] = table.sample[places], table.label[places]

    counts = real.view(len(rows), per_epoch, batch).sum(dim=2)
    weight = real.view(len(rows), per_epoch, batch).to(dtype) / counts.clamp_min(1).to(dtype)[:, :, None]
    rates = torch.tensor([one.segment.work.rate_at(one.segment.round, epoch) for one, epoch in rows], dtype=dtype)
    masks = randomness.bits(keys("dropout"), per_epoch)

    # Rows (visit, epoch) and batches within them → (step, lane).
    row_of, batch_of, step_of, lane_of = _places(rows, device)

    def spread(values: Tensor) -> Tensor:
        """`[rows, per_epoch, ...]` → `[steps, lanes, ...]`, zero where a lane is idle."""
        result = values.new_zeros(steps, lanes, *values.shape[2:])
        result[step_of, lane_of] = values[row_of, batch_of]
        return result

    by_batch = (len(rows), per_epoch, batch)
    work, crops, flips = visits[0].segment.work, None, None
    if work.crop or work.flip:
        drawn = randomness.integers(keys("crop"), 2 * longest, 2 * work.crop + 1)
        shifts = _padded(drawn.view(len(rows), longest, 2).to(torch.int32), padded)
        crops = spread(shifts.view(*by_batch, 2))
        drawn = randomness.integers(keys("flip"), longest, 2)
        flips = spread(_padded(drawn.bool() & work.flip, padded).view(by_batch))
    return Schedule(
        sample=spread(sample.view(by_batch)),
        label=spread(label.view(by_batch)),
        weight=spread(weight),
        count=spread(counts.to(dtype)),
        rate=spread(rates.to(device)[:, None].expand(len(rows), per_epoch)),
        key=spread(masks),
        crops=crops,
        flips=flips,
    )


def _padded(values: Tensor, to: int) -> Tensor:
    """`[rows, n, ...]` → `[rows, to, ...]` with zeros."""
    rest = values.new_zeros(len(values), to - values.shape[1], *values.shape[2:])
    return torch.cat([values, rest], dim=1) if rest.numel() else values


def _orders(keys: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """`[rows, longest]`: a permutation of 0 … n-1 in the first n places of every row."""
    bits = randomness.bits(keys, longest)
    padding = torch.arange(longest, device=bits.device) >= sizes[:, None]
    return torch.argsort(bits.masked_fill(padding, torch.iinfo(torch.int64).max), dim=1, stable=True)


def _places(rows: list[tuple[Visit, int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every batch of every row: the row, the batch within it, the step and the lane."""
    each = np.array([visit.segment.steps // visit.segment.work.epochs for visit, _ in rows])
    row = np.repeat(np.arange(len(rows)), each)
    first = np.repeat(np.cumsum(each) - each, each)
    batch = np.arange(len(row)) - first
    begin = np.array([visit.begin + epoch * count for (visit, epoch), count in zip(rows, each, strict=True)])
    lane = np.array([visit.lane for visit, _ in rows])
    return tuple(  # type: ignore[return-value]
        torch.from_numpy(values).to(device) for values in (row, batch, begin[row] + batch, lane[row])
    )
