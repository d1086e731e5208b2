"""Impact factors by one line: whoever the model serves badly counts more. The control that FedDRL has to match."""

import torch

from covey.aggregation.impact_factors import ByImpactFactors, Reported, softmax
from covey.arrays import FloatArray
from covey.errors import require
from covey.registries import aggregators


@aggregators.add("loss-softmax")
class LossSoftmax(ByImpactFactors):
    """Models weighted by a softmax of the losses before training: α = softmax(c · l_b / Σ l_b).

    A client whose labels are wrong has a high loss too, and is given weight like one whose classes are rare.

    sharpness: c. 0 is the plain mean (with the losses reported all the same); the larger, the more the clients count
        that the model serves badly. Too much and the weight jumps from client to client each round. What it means
        depends on the cohort: with K clients of equal loss, one whose loss is twice theirs counts about e^(c/K) times
        as much.
    """

    def __init__(self, *, sharpness: float = 8.0) -> None:
        require(sharpness >= 0, f"aggregator.sharpness must not be negative, not {sharpness:g}.")
        self.sharpness = sharpness

    def impact_factors(self, t: int, reported: Reported, device: torch.device) -> FloatArray:
        total = reported.before[reported.usable].sum()
        # Where no client has any loss left, all are served equally well.
        shares = reported.before / total if total > 0 else reported.before
        return softmax(self.sharpness * shares, reported.usable)
