"""Robust means of each parameter (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018)."""

from collections.abc import Callable

import torch
from torch import Tensor

from covey.core.interfaces import Aggregator
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators

_BLOCK = 1 << 16
"""Parameters that are sorted over all clients at a time."""


@aggregators.add("median")
class Median(Aggregator):
    """Takes the median of each parameter over the clients' models, whatever their numbers of samples.

    Less than half of the clients cannot move it beyond what the others sent. Where clients differ, it follows the
    majority in every parameter.
    """

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        return by_parameter(replies.states, middle)


@aggregators.add("trimmed-mean")
class TrimmedMean(Aggregator):
    """Averages each parameter over the clients' models without the largest and smallest values.

    trim: the share of the clients whose values are left out at either end, in [0, 0.5); at least one client if it is
        above 0. Attackers beyond this share have influence.
    """

    def __init__(self, *, trim: float = 0.2) -> None:
        require(0 <= trim < 0.5, f"aggregator.trim is a share in [0, 0.5), not {trim:g}.")
        self.trim = trim

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        cut = trimmed(self.trim, len(replies))
        return by_parameter(replies.states, lambda values: values[cut : len(values) - cut].mean(dim=0))


def trimmed(share: float, count: int) -> int:
    """Return how many of `count` values are left out at either end, so that one at least is left."""
    wanted = max(1, int(share * count + 1e-9)) if share > 0 else 0
    return min(wanted, (count - 1) // 2)


def by_parameter(states: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a rule to the sorted values `[k, b]` of each parameter of models `[k, d]`; returns `[d]`."""
    return torch.cat([rule(part.sort(dim=0).values) for part in torch.split(states, _BLOCK, dim=1)])


def middle(ordered: Tensor) -> Tensor:
    """Return the median of ordered values `[k, b]`: the mean of the two middle ones if k is even."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
