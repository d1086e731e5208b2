"""Krum and Multi-Krum (Blanchard et al., NeurIPS 2017) and Bulyan (El Mhamdi et al., ICML 2018)."""

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.aggregation.coordinate_rules import by_parameter, middle
from covey.arrays import FloatArray
from covey.core.interfaces import Aggregator
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators

_BLOCK = 1 << 18


@aggregators.add("krum")
class Krum(Aggregator):
    """Takes the model of the client that is closest to its neighbours.

    With k replies of which f are hostile, a client's score is the sum of the squared distances to its k - f - 2 nearest
    neighbours; the lowest score wins. The model is one client's: where clients differ, it knows that client's data.

    hostile: f as a share of the replies, at most what k allows (k ≥ 2f + 3).
    """

    keep = 1
    """Models that are averaged; 0 is k - f."""

    def __init__(self, *, hostile: float = 0.2) -> None:
        require(0 <= hostile < 0.5, f"aggregator.hostile is a share in [0, 0.5), not {hostile:g}.")
        self.hostile = hostile
        self._chosen: list[int] = []

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        count = len(replies)
        f = most_hostile(self.hostile, count, 2)
        scores = krum_scores(squared_distances(replies.states, model), f)
        chosen = np.sort(np.argsort(scores, kind="stable")[: self.keep or count - f])
        self._chosen = replies.clients[chosen].tolist()
        weights = torch.full((len(chosen),), 1 / len(chosen), dtype=torch.float64)
        return weighted_sum(replies.take(chosen).states, weights)

    def figures(self) -> dict[str, object]:
        return {"chosen": self._chosen}


@aggregators.add("multi-krum")
class MultiKrum(Krum):
    """Averages the models of the clients that are closest to their neighbours: the k - f with the lowest Krum scores.

    hostile: f as a share of the replies, at most what k allows (k ≥ 2f + 3).
    """

    keep = 0


@aggregators.add("bulyan")
class Bulyan(Aggregator):
    """Selects models by Krum one after another, then averages the middle values of each parameter.

    With k replies of which f are hostile, θ = k - 2f models are selected, each the one with the lowest Krum score among
    those left; each parameter is the mean of the θ - 2f values closest to the median of the selected ones.

    hostile: f as a share of the replies, at most what k allows (k ≥ 4f + 3).
    """

    def __init__(self, *, hostile: float = 0.2) -> None:
        require(0 <= hostile < 0.25, f"aggregator.hostile is a share in [0, 0.25), not {hostile:g}.")
        self.hostile = hostile
        self._chosen: list[int] = []

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        count = len(replies)
        f = most_hostile(self.hostile, count, 4)
        distances, left, chosen = squared_distances(replies.states, model), list(range(count)), []
        for _ in range(count - 2 * f):
            scores = krum_scores(distances[np.ix_(left, left)], f)
            chosen.append(left.pop(int(np.argmin(scores))))
        self._chosen = replies.clients[np.sort(chosen)].tolist()
        kept = len(chosen) - 2 * f

        def closest_to_median(ordered: Tensor) -> Tensor:
            # Of ordered values, the closest to the median are neighbours: the window with the smallest reach.
            median = middle(ordered)
            windows = ordered.unfold(0, kept, 1)
            reach = torch.maximum(windows[..., -1] - median, median - windows[..., 0])
            best = reach.argmin(dim=0)
            return windows.gather(0, best[None, :, None].expand(1, -1, kept))[0].mean(dim=1)

        return by_parameter(replies.take(np.sort(chosen)).states, closest_to_median)

    def figures(self) -> dict[str, object]:
        return {"chosen": self._chosen}


def most_hostile(share: float, count: int, times: int) -> int:
    """Return f: a share of `count` replies, at most what count ≥ times·f + 3 allows."""
    return max(0, min(int(share * count + 1e-9), (count - 3) // times))


def squared_distances(states: Tensor, model: Tensor) -> FloatArray:
    """Return ‖w_i - w_j‖² `[k, k]`, from products of updates in double precision."""
    before = model.to(states.device)
    products = torch.zeros(len(states), len(states), dtype=torch.float64, device=states.device)
    for part, start in zip(torch.split(states, _BLOCK, dim=1), torch.split(before, _BLOCK), strict=True):
        updates = part.double() - start.double()
        products += updates @ updates.T
    squares = products.diagonal()
    found: FloatArray = (squares[:, None] + squares[None] - 2 * products).clamp(min=0).cpu().numpy()
    return found


def krum_scores(distances: FloatArray, f: int) -> FloatArray:
    """Return each client's sum of squared distances to its k - f - 2 nearest neighbours, at least one: `[k]`."""
    count = len(distances)
    others = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)
    near = others[:, : max(1, count - f - 2)]
    scores: FloatArray = np.where(np.isfinite(near), near, 0.0).sum(axis=1)
    return scores
