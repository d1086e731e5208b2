"""Mini-batches of local training: their order, augmentation and memory layout."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from covey import randomness
from covey.client.holdout import Count
from covey.config.sections import Local
from covey.data.dataset import Samples


def steps_of(samples: Count, work: Local) -> Count:
    """Return the number of batches in an epoch over so many samples."""
    return -(-samples // (work.batch or samples))


def channels_last(x: Tensor) -> Tensor:
    """Lay images out with channels innermost, which is fastest for convolutions and pools on a CPU."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts have the same bytes; torch chooses its kernels by the strides.
    height, width = x.shape[2:]
    return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))


def rows_of(x: Tensor, chosen: Tensor) -> Tensor:
    """Return `x[chosen]` in the layout of `x`. It copies whole samples; indexing would copy value by value."""
    if x.dim() == 4 and x.stride(1) == 1:
        return x.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
    return x.index_select(0, chosen)


def batches(samples: Samples, work: Local, key: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch: samples in random order, cropped and flipped if asked; the last batch may be smaller."""
    count = len(samples)
    device = samples.y.device
    order = randomness.permutation(randomness.key(key, "batches"), count).to(device)
    augmented = work.crop > 0 or work.flip
    if augmented:
        shifts = (
            randomness.integers(randomness.key(key, "crop"), 2 * count, 2 * work.crop + 1).view(count, 2).to(device)
        )
        flips = randomness.integers(randomness.key(key, "flip"), count, 2).bool().to(device) & work.flip
    size = work.batch or count
    for at in range(0, count, size):
        chosen = order[at : at + size]
        x = rows_of(samples.x, chosen)
        if augmented:
            x = crop_and_flip(x, work.crop, shifts[at : at + size], flips[at : at + size])
        yield x, samples.y[chosen]


def crop_and_flip(x: Tensor, padding: int, shifts: Tensor, flips: Tensor) -> Tensor:
    """Pad images `[b, c, h, w]` with black, crop them at `shifts` `[b, 2]`, and mirror those in `flips` `[b]`."""
    height, width = x.shape[-2:]
    rows = shifts[:, :1] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(len(x), width)
    columns = shifts[:, 1:] + torch.where(flips[:, None], width - 1 - columns, columns)
    padded = F.pad(x, (padding,) * 4)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
