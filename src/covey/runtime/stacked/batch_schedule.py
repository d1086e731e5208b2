"""The schedule of a launch: every lane's batch, learning rate and random key at every step.

Batches, crops, flips and dropout masks are drawn from the same keys as on the local runtime, so a client trains on the
same batches on both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey import randomness
from covey.arrays import IntArray
from covey.client.holdout import training_places
from covey.runtime.stacked.device_data import ClientTables
from covey.runtime.stacked.lane_schedule import Segment, Visit


@dataclass(frozen=True, eq=False)
class Schedule:
    """Inputs of every step of a launch; zero where a lane is idle."""

    sample: Tensor
    """`[steps, lanes, batch]`, int32: rows of `DeviceDataset.x`."""
    label: Tensor
    """`[steps, lanes, batch]`, int64; `[steps, lanes, batch, targets]` where there are no classes"""
    weight: Tensor
    """`[steps, lanes, batch]`: 1/b for the b samples of the batch, 0 for padding."""
    count: Tensor
    """`[steps, lanes]`: b."""
    rate: Tensor
    """`[steps, lanes]`: learning rate."""
    key: Tensor
    """`[steps, lanes]`, int64: key of the dropout masks."""
    crops: Tensor | None = None
    """`[steps, lanes, batch, 2]`, int32; None without augmentation."""
    flips: Tensor | None = None
    """`[steps, lanes, batch]`, bool; None without augmentation."""
    epoch: Tensor | None = None
    """`[steps, lanes]`, int64: local epoch, from 0; None without a trainer, which alone uses it."""

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if value is not None}


def schedule(
    visits: list[Visit],
    tables: list[ClientTables],
    lanes: int,
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
    steps: int,
) -> Schedule:
    """Draw the batches of every visit, as its client alone would draw them; `tables` holds one entry per request.

    All epochs of all clients are drawn at once, padded to the largest client. The generator is counter-based: the
    first n numbers do not depend on how many are drawn.
    """
    segments = [visit.segment for visit in visits]
    # A row for every epoch of every visit.
    counted = np.array([one.work.epochs for one in segments])
    visit_of, epoch_of = np.repeat(np.arange(len(visits)), counted), _numbers(counted)
    client_keys = np.array([one.key for one in segments], dtype=np.uint64)[visit_of]
    epochs = randomness.keys(client_keys, epoch_of)

    def keys(purpose: str) -> Tensor:
        return randomness.as_tensor(randomness.keys(epochs, purpose), device)

    def of_visits(values: Sequence[int]) -> Tensor:
        """`[visits]` → `[rows]`"""
        return torch.from_numpy(np.array(values)[visit_of]).to(device)

    sizes = of_visits([one.samples for one in segments])
    longest = max(one.samples for one in segments)
    per_epoch = -(-longest // batch)
    padded = per_epoch * batch

    order = _permutations(keys("batches"), sizes, longest)
    slots = torch.arange(padded, device=device)
    real = slots < sizes[:, None]
    within = _padded(order, padded).masked_fill(~real, 0)
    if any(one.holdout for one in segments):
        # Clients without a holdout get a stride beyond their last sample, which skips none.
        strides = of_visits([one.holdout or padded + 2 for one in segments])
        within = training_places(within, strides[:, None])
    sample = torch.zeros(len(sizes), padded, dtype=torch.int32, device=device)
    like = tables[0].host.label
    label = torch.zeros(len(sizes), padded, *like.shape[1:], dtype=like.dtype, device=device)
    requests = np.array([one.request for one in segments])[visit_of]
    clients = of_visits([one.client for one in segments])
    for request in np.unique(requests).tolist():
        mine = _rows_of(requests == request, device)
        table = tables[request].on(device)
        places = table.start[tables[request].rows(clients[mine])][:, None] + within[mine]
        sample[mine], label[mine] = table.sample[places], table.label[places]

    counts = real.view(len(sizes), per_epoch, batch).sum(dim=2)
    weight = real.view(len(sizes), per_epoch, batch).to(dtype) / counts.clamp_min(1).to(dtype)[:, :, None]
    rates = torch.tensor(_rates(segments), dtype=dtype)
    masks = randomness.bits(keys("dropout"), per_epoch)

    # If each lane has a client of its own and all take as many batches, rows and batches are lanes and steps in order.
    even = len(visits) == lanes and all(one.steps == steps == one.work.epochs * per_epoch for one in segments)
    placed = None if even else _places(visits, visit_of, epoch_of, device)

    def spread(values: Tensor) -> Tensor:
        """`[rows, per_epoch, ...]` → `[steps, lanes, ...]`, zero where a lane is idle."""
        if placed is None:
            return values.reshape(lanes, steps, *values.shape[2:]).transpose(0, 1).contiguous()
        row_of, batch_of, step_of, lane_of = placed
        result = values.new_zeros(steps, lanes, *values.shape[2:])
        result[step_of, lane_of] = values[row_of, batch_of]
        return result

    by_batch = (len(sizes), per_epoch, batch)
    work, crops, flips = visits[0].segment.work, None, None
    if work.crop or work.flip:
        drawn = randomness.integers(keys("crop"), 2 * longest, 2 * work.crop + 1)
        shifts = _padded(drawn.view(len(sizes), longest, 2).to(torch.int32), padded)
        crops = spread(shifts.view(*by_batch, 2))
        drawn = randomness.integers(keys("flip"), longest, 2)
        flips = spread(_padded(drawn.bool() & work.flip, padded).view(by_batch))
    epoch = None
    if visits[0].segment.trainer is not None:
        numbers = torch.from_numpy(epoch_of).to(device)
        epoch = spread(numbers[:, None].expand(len(sizes), per_epoch))
    return Schedule(
        sample=spread(sample.view(by_batch)),
        label=spread(label.view(*by_batch, *like.shape[1:])),
        weight=spread(weight),
        count=spread(counts.to(dtype)),
        rate=spread(rates.to(device)[:, None].expand(len(sizes), per_epoch)),
        key=spread(masks),
        crops=crops,
        flips=flips,
        epoch=epoch,
    )


def _padded(values: Tensor, to: int) -> Tensor:
    """Pad `[rows, n, ...]` with zeros to `[rows, to, ...]`."""
    rest = values.new_zeros(len(values), to - values.shape[1], *values.shape[2:])
    return torch.cat([values, rest], dim=1) if rest.numel() else values


def _permutations(keys: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """Draw, in each row, a permutation of 0 … n-1 in the first n places, n its entry of `sizes`: `[rows, longest]`."""
    bits = randomness.bits(keys, longest)
    padding = torch.arange(longest, device=bits.device) >= sizes[:, None]
    return torch.argsort(bits.masked_fill(padding, torch.iinfo(torch.int64).max), dim=1, stable=True)


def _rates(segments: list[Segment]) -> list[float]:
    """Return the learning rate of every epoch of every segment; those of one request have the same."""
    of_request = {one.request: one for one in segments}
    known = {
        number: [one.work.rate_at(one.t, epoch) for epoch in range(one.work.epochs)]
        for number, one in of_request.items()
    }
    return [rate for one in segments for rate in known[one.request]]


def _rows_of(wanted: NDArray[np.bool_], device: torch.device) -> Tensor | slice:
    """Return the rows that are wanted: a slice, which takes least time, if they follow each other."""
    rows = np.flatnonzero(wanted)
    first, count = int(rows[0]), len(rows)
    return slice(first, first + count) if rows[-1] == first + count - 1 else torch.from_numpy(rows).to(device)


def _numbers(counts: IntArray) -> IntArray:
    """Return 0 … n-1 for every n in `counts`, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _places(
    visits: list[Visit], visit_of: IntArray, epoch_of: IntArray, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for every batch of every row: the row, the batch within it, the step and the lane.

    visit_of, epoch_of: the visit and epoch of every row.
    """
    each = np.array([visit.segment.steps // visit.segment.work.epochs for visit in visits])[visit_of]
    first = np.array([visit.begin for visit in visits])[visit_of] + epoch_of * each
    lane = np.array([visit.lane for visit in visits])[visit_of]
    row, batch = np.repeat(np.arange(len(each)), each), _numbers(each)

    def tensor(values: IntArray) -> Tensor:
        return torch.from_numpy(values).to(device)

    return tensor(row), tensor(batch), tensor(first[row] + batch), tensor(lane[row])
