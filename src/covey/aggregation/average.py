"""FedAvg's average (McMahan et al. 2017, Algorithm 1): w ← Σ_k (n_k / n) w_k."""

import torch
from torch import Tensor

from covey.core.interfaces import Aggregator, Probe
from covey.core.replies import Replies
from covey.probe.losses import Utility
from covey.registries import aggregators

_BLOCK = 1 << 18
"""Parameters that are summed over all clients at a time, so that they and their sum stay in a cache."""


@aggregators.add("average")
class Average(Aggregator):
    """Averages the clients' models, weighted by their numbers of samples (FedAvg).

    weighted: false takes the plain mean.
    fairness: true lets clients also measure the loss of the model that they receive, so that records and reports show
        how evenly it serves them. It costs each client a pass over its samples, and the server learns the losses.
    """

    def __init__(self, *, weighted: bool = True, fairness: bool = False) -> None:
        self.weighted = weighted
        self.fairness = fairness

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (Utility(),) if self.fairness else ()

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        counts = replies.samples.double() if self.weighted else torch.ones(len(replies), dtype=torch.float64)
        return weighted_sum(replies.states, counts / counts.sum())


def weighted_sum(states: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_k weights_k · states_k over `[k, d]`; on CPUs in order, with the same bits on every machine."""
    if states.is_cuda:
        # A matrix-vector product takes one pass over the states and never uses tf32, unlike a matrix product.
        return torch.mv(states.t(), weights.to(states.device, states.dtype))
    total = torch.empty_like(states[0])
    first, *others = weights.tolist()
    for part, sums in zip(torch.split(states, _BLOCK, dim=1), torch.split(total, _BLOCK), strict=True):
        torch.mul(part[0], first, out=sums)
        for state, weight in zip(part[1:], others, strict=True):
            sums.add_(state, alpha=weight)
    return total
