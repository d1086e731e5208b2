"""Validation samples: every `holdout`-th sample of a client is kept out of its training."""

from typing import TypeVar

import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.data.dataset import Samples

Count = TypeVar("Count", int, IntArray)
"""A number, or one for each client."""


def trained_on(count: Count, holdout: int) -> Count:
    """Return the number of training samples among `count`; all of them if `holdout` is 0."""
    return count - count // holdout if holdout else count


def training_places(numbers: Tensor, holdout: Tensor | int) -> Tensor:
    """Return the positions among all samples of training samples, given their numbers 0, 1, … among the latter."""
    return numbers + numbers // (holdout - 1)


def training_part(samples: Samples, holdout: int) -> Samples:
    """Return all samples but every `holdout`-th; all of them if `holdout` is 0."""
    if not holdout:
        return samples
    places = training_places(torch.arange(trained_on(len(samples), holdout), device=samples.y.device), holdout)
    return Samples(samples.x[places], samples.y[places])


def validation_part(samples: Samples, holdout: int) -> Samples:
    """Return every `holdout`-th sample; all of them if the client has too few to hold any out."""
    if not holdout or len(samples) < holdout:
        return samples
    return Samples(samples.x[holdout - 1 :: holdout], samples.y[holdout - 1 :: holdout])
