"""The schedule of a launch: every lane's batch, learning rate and random key at every step.

Batches, crops, flips and dropout masks are drawn from the same keys as on the local runtime, so a client trains on the
same batches on both.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey import randomness
from covey.arrays import IntArray
from covey.client.holdout import training_places
from covey.runtime.stacked.device_data import ClientTables
from covey.runtime.stacked.lane_schedule import Visit


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
    rows = [(visit, epoch) for visit in visits for epoch in range(visit.segment.work.epochs)]
    client_keys = np.array([visit.segment.key for visit, _ in rows], dtype=np.uint64)
    epochs = randomness.keys(client_keys, np.array([epoch for _, epoch in rows]))

    def keys(purpose: str) -> Tensor:
        return randomness.as_tensor(randomness.keys(epochs, purpose), device)

    sizes = torch.tensor([visit.segment.samples for visit, _ in rows], device=device)
    longest = max(visit.segment.samples for visit in visits)
    per_epoch = -(-longest // batch)
    padded = per_epoch * batch

    order = _permutations(keys("batches"), sizes, longest)
    slots = torch.arange(padded, device=device)
    real = slots < sizes[:, None]
    within = _padded(order, padded).masked_fill(~real, 0)
    if any(visit.segment.holdout for visit in visits):
        # Clients without a holdout get a stride beyond their last sample, which skips none.
        strides = [visit.segment.holdout or padded + 2 for visit, _ in rows]
        within = training_places(within, torch.tensor(strides, device=device)[:, None])
    sample = torch.zeros(len(rows), padded, dtype=torch.int32, device=device)
    like = tables[0].host.label
    label = torch.zeros(len(rows), padded, *like.shape[1:], dtype=like.dtype, device=device)
    requests = np.array([visit.segment.request for visit, _ in rows])
    clients = torch.tensor([visit.segment.client for visit, _ in rows], device=device)
    for request, of_request in enumerate(tables):
        if not (requests == request).any():
            continue
        mine = torch.from_numpy(np.flatnonzero(requests == request)).to(device)
        table = of_request.on(device)
        places = table.start[of_request.rows(clients[mine])][:, None] + within[mine]
        sample[mine], label[mine] = table.sample[places], table.label[places]

    counts = real.view(len(rows), per_epoch, batch).sum(dim=2)
    weight = real.view(len(rows), per_epoch, batch).to(dtype) / counts.clamp_min(1).to(dtype)[:, :, None]
    rates = torch.tensor([one.segment.work.rate_at(one.segment.t, epoch) for one, epoch in rows], dtype=dtype)
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
    epoch = None
    if visits[0].segment.trainer is not None:
        numbers = torch.tensor([epoch for _, epoch in rows], device=device)
        epoch = spread(numbers[:, None].expand(len(rows), per_epoch))
    return Schedule(
        sample=spread(sample.view(by_batch)),
        label=spread(label.view(*by_batch, *like.shape[1:])),
        weight=spread(weight),
        count=spread(counts.to(dtype)),
        rate=spread(rates.to(device)[:, None].expand(len(rows), per_epoch)),
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


def _places(rows: list[tuple[Visit, int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for every batch of every row: the row, the batch within it, the step and the lane."""
    each = np.array([visit.segment.steps // visit.segment.work.epochs for visit, _ in rows])
    row = np.repeat(np.arange(len(rows)), each)
    first = np.repeat(np.cumsum(each) - each, each)
    batch = np.arange(len(row)) - first
    begin = np.array([visit.begin + epoch * count for (visit, epoch), count in zip(rows, each, strict=True)])
    lane = np.array([visit.lane for visit, _ in rows])

    def tensor(values: IntArray) -> Tensor:
        return torch.from_numpy(values).to(device)

    return tensor(row), tensor(batch), tensor(begin[row] + batch), tensor(lane[row])
