"""Impact factors by a softmax of the losses: the one-line control that FedDRL has to match."""

import torch

from covey.aggregation.impact_factors import ImpactFactorAggregator, LossReports, softmax
from covey.arrays import FloatArray
from covey.errors import require
from covey.registries import aggregators


@aggregators.add("loss-softmax")
class LossSoftmax(ImpactFactorAggregator):
    """Weights models by a softmax of their clients' losses before training: α = softmax(c · l_b / Σ l_b).

    A client with wrong labels has a high loss too, and gains weight like one with rare classes.

    sharpness: c. 0 is the plain mean (losses are reported all the same); the larger, the more weight for clients with
        high loss. If it is too large, the weight jumps between clients from round to round. Its effect depends on the
        cohort: among K clients of equal loss, one with twice their loss weighs about e^(c/K) times as much.
    """

    def __init__(self, *, sharpness: float = 8.0) -> None:
        require(sharpness >= 0, f"aggregator.sharpness must not be negative, not {sharpness:g}.")
        self.sharpness = sharpness

    def impact_factors(self, t: int, reports: LossReports, device: torch.device) -> FloatArray:
        total = reports.before[reports.usable].sum()
        # If all losses are 0, all clients weigh the same.
        shares = reports.before / total if total > 0 else reports.before
        return softmax(self.sharpness * shares, reports.usable)
