"""On-Demand FL's average (Jeong and Lee 2024, section 4): models weighted by the ratios of a composed mix."""

import torch
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.core.interfaces import Aggregator, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators


@aggregators.add("ratios")
class Ratios(Aggregator):
    """Averages the clients' models by given ratios, renormalised over the clients that replied.

    w ← Σ_c ρ_c·w_c with ρ_c = r_c/Σ r. The paper prints r_c·n_c/n, which does not sum to one; `covey ondemand`, which
    composes the ratios, accounts for n_c.

    clients: the clients with a ratio; others count 0.
    ratios: r, one for each of them, not negative.
    """

    def __init__(self, *, clients: tuple[int, ...] = (), ratios: tuple[float, ...] = ()) -> None:
        require(
            len(clients) == len(ratios),
            f"aggregator.clients and aggregator.ratios go together: {len(clients)} clients have {len(ratios)} ratios.",
        )
        require(all(ratio >= 0 for ratio in ratios), "aggregator.ratios must not be negative.")
        self.ratios = dict(zip(clients, ratios, strict=True))

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            sum(self.ratios.values()) > 0,
            "aggregator.ratios are all zero: say how much each client counts, or have covey ondemand compose them.",
        )

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        found = [self.ratios.get(client, 0.0) for client in replies.clients.tolist()]
        weights = torch.tensor(found, dtype=torch.float64)
        # If only clients with ratio 0 replied, the model stays as it is.
        return weighted_sum(replies.states, weights / weights.sum()) if weights.sum() > 0 else model
