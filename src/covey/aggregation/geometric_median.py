"""RFA, the geometric median (Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", 2022)."""

import torch
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.core.guard import update_norms
from covey.core.interfaces import Aggregator
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators


@aggregators.add("geometric-median", earlier={"steps": 8})
class GeometricMedian(Aggregator):
    """Takes the model with the smallest sum of distances to the clients' models, by smoothed Weiszfeld steps (RFA).

    v ← Σ_k β_k·w_k / Σ β_k with β_k = α_k / max(ν, ‖v - w_k‖), from the current model on.

    weighted: true has α_k in proportion to samples, as in the paper; clients could then claim many.
    steps: R, steps a round, 3 as in the paper. More come closer to the exact median; 8 resisted attacks no better.
    smoothing: ν, as a share of the median distance of the models from the current one.
    """

    def __init__(self, *, weighted: bool = False, steps: int = 3, smoothing: float = 1e-6) -> None:
        require(steps >= 1, f"aggregator.steps must be at least 1, not {steps}.")
        require(smoothing > 0, f"aggregator.smoothing must be above 0, not {smoothing:g}.")
        self.weighted = weighted
        self.steps = steps
        self.smoothing = smoothing

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        states = replies.states
        alphas = replies.samples.double() if self.weighted else torch.ones(len(replies), dtype=torch.float64)
        # A mean to start from, as in the paper, would hold nothing but the largest model if one is huge.
        found = model.to(states)
        distances = torch.from_numpy(update_norms(states, found))
        least = self.smoothing * max(float(distances.median()), 1e-30)
        for _ in range(self.steps):
            betas = alphas / distances.clamp(min=least)
            found = weighted_sum(states, betas / betas.sum())
            distances = torch.from_numpy(update_norms(states, found))
        return found
