"""A bound on the norms of updates (Sun et al., "Can You Really Backdoor Federated Learning?", 2019)."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from covey.aggregation.wrapper import AroundAggregator
from covey.core.guard import update_norms
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators


@aggregators.add("norm-bound")
class NormBound(AroundAggregator):
    """Scales updates that are too large down to a bound, then combines them by another aggregator.

    w_k ← w + (w_k - w)·min(1, C/‖w_k - w‖). No client moves the model further than C allows, but it may still move it
    in the wrong direction.

    bound: C. 0 adapts it: `factor` times the median norm of the round's updates.
    factor: the multiple of the median that C is if it adapts.
    around: the aggregator that combines the scaled updates, with its options after commas. The plain mean, as clients
        could otherwise claim many samples.
    """

    def __init__(self, *, bound: float = 0.0, factor: float = 1.0, around: str = "average,weighted=false") -> None:
        super().__init__(around=around)
        require(bound >= 0, f"aggregator.bound must not be negative, not {bound:g}; 0 adapts it.")
        require(factor > 0, f"aggregator.factor must be above 0, not {factor:g}.")
        require(
            bool(bound) or not self.inner.private,
            "aggregator.bound must be given around an aggregator with differential privacy: a bound that adapts to the "
            "clients' updates tells about them.",
        )
        self.bound = bound
        self.factor = factor
        self._figures: dict[str, object] = {}

    def altered(self, t: int, model: Tensor, replies: Replies) -> Replies:
        norms = update_norms(replies.states, model)
        most = self.bound or self.factor * float(np.median(norms))
        scales = np.minimum(1.0, most / np.maximum(norms, 1e-300))
        self._figures = {"bound": most, "scaled": int((scales < 1).sum())}
        if not (scales < 1).any():
            return replies
        states = replies.states.clone()
        before = model.to(states)
        for position in np.flatnonzero(scales < 1).tolist():
            # In double precision: the update may be so large that single precision holds nothing else.
            update = (states[position].double() - before.double()) * float(scales[position])
            states[position] = (before.double() + update).to(states.dtype)
        return replace(replies, states=states)

    def figures(self) -> dict[str, object]:
        return {**super().figures(), **self._figures}
