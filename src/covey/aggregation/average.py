"""FedAvg's average (McMahan et al. 2017, Algorithm 1): w ← Σ_k (n_k / n) w_k."""

import torch
from torch import Tensor

from covey.messages import Replies
from covey.roles import Aggregator, aggregators


@aggregators.add("average")
class Average(Aggregator):
    """Mean of the clients' models, weighted by their numbers of samples (or plainly, with `weighted=false`)."""

    def __init__(self, *, weighted: bool = True) -> None:
        self.weighted = weighted

    def combine(self, round: int, model: Tensor, replies: Replies) -> Tensor:
        counts = replies.samples.double() if self.weighted else torch.ones(len(replies), dtype=torch.float64)
        return weighted_sum(replies.states, counts / counts.sum())


def weighted_sum(states: Tensor, weights: Tensor) -> Tensor:
    """Σ_k weights_k · states_k over `[k, d]`; on CPUs in the clients' order, to the same bits on every machine."""
    if states.is_cuda:
        # A matrix times a vector: one pass over the states, and never in tf32, as a matrix product would be.
        return torch.mv(states.t(), weights.to(states.device, states.dtype))
    total = states[0] * float(weights[0])
    for state, weight in zip(states[1:], weights[1:].tolist(), strict=True):
        total.add_(state, alpha=weight)
    return total
