"""q-FedAvg (Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020)."""

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.aggregation.impact_factors import LARGEST_LOSS
from covey.arrays import FloatArray
from covey.core.guard import update_norms
from covey.core.interfaces import Aggregator, Probe, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.losses import Utility
from covey.registries import aggregators

_LEAST_LOSS = 1e-10
"""Lower losses count as this one: F^(q-1) of a loss of zero would be infinite."""


@aggregators.add("qffl")
class QFFL(Aggregator):
    """Updates of clients with high loss count more, so that the model serves clients more evenly (q-FedAvg).

    It minimises f_q(w) = Σ_k p_k/(q+1)·F_k(w)^(q+1) (eq. 2) by algorithm 2. With F_k the client's loss of the model w
    that it received, w_k the model that it trained, and L = 1/η for the local rate η of the round's first epoch:

        Δw_k = L·(w - w_k)
        Δ_k  = F_k^q·Δw_k
        h_k  = q·F_k^(q-1)·‖Δw_k‖² + L·F_k^q
        w   ← w - Σ_k Δ_k/Σ_k h_k.

    The paper draws client k with probability p_k, and each that is drawn counts the same; with the selector uniform,
    p_k = 1/clients. Batch-norm statistics, for which there is no gradient, are averaged with the weights F_k^q. A
    client with wrong labels, or one that lies about its loss, gains weight too. A client without a usable loss
    (missing, negative, or above 10,000) does not count; if nobody has one, models are averaged.

    q: 0 is the plain mean of models; the larger, the more even. The step becomes shorter with q, in the end too short.
    """

    def __init__(self, *, q: float = 1.0) -> None:
        require(q >= 0, f"aggregator.q must not be negative, not {q:g}.")
        self.q = q

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            setting.work.optimizer == "sgd",
            "The aggregator qffl takes 1/local.rate for the smoothness of clients' losses, and Adam's rate is not that "
            "of a gradient: use local.optimizer=sgd.",
        )

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (Utility(),)

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        rows = replies.observed(Utility.name)
        losses = replies.probes[Utility.name]["loss"].double().cpu().numpy() if len(rows) else np.empty(0)
        rows = rows[(losses[rows] >= 0) & (losses[rows] <= LARGEST_LOSS)]
        if not len(rows):
            return weighted_sum(replies.states, torch.full((len(replies),), 1 / len(replies), dtype=torch.float64))
        used = replies.take(rows) if len(rows) < len(replies) else replies
        size, states = self.setting.layout.trainable, used.states
        shares = self.shares(t, losses[rows], update_norms(states[:, :size], model[:size]))
        before = model[:size].to(states)
        parameters = weighted_sum(states[:, :size], torch.from_numpy(shares)) + (1 - float(shares.sum())) * before
        statistics = weighted_sum(states[:, size:], torch.from_numpy(shares / shares.sum()))
        return torch.cat([parameters, statistics])

    def shares(self, t: int, losses: FloatArray, norms: FloatArray) -> FloatArray:
        """Return L·F_k^q/Σ h `[k]`, by which updates w_k - w are summed, from the losses and the norms ‖w_k - w‖."""
        smoothness = 1 / self.setting.work.rate_at(t, 0)
        losses = np.maximum(losses, _LEAST_LOSS)
        # Over the highest loss, which cancels out: powers of losses themselves may overflow.
        powers = (losses / losses.max()) ** self.q
        h = self.q * powers / losses * (smoothness * norms) ** 2 + smoothness * powers
        found: FloatArray = smoothness * powers / h.sum()
        return found
