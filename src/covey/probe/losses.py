"""Probes of clients' losses, and means over clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.core.interfaces import CohortProbe
from covey.registries import probes

if TYPE_CHECKING:
    from covey.client.learner import Learner
    from covey.data.dataset import Samples


@probes.add("losses")
@dataclass(frozen=True)
class Losses(CohortProbe):
    """Mean loss on the client's own samples.

    Sent: `before`, of the model received, and `after`, of the model trained.
    """

    name = "losses"

    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        before = means(learner.losses(received, samples), counts)
        return {"before": before, "after": learner.own_losses(trained, samples, counts)}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"before": (), "after": ()}


@probes.add("utility")
@dataclass(frozen=True)
class Utility(CohortProbe):
    """The parts of Oort's statistical utility |D|·√(mean loss²), for the model received.

    Sent: `loss` and `square`, the means of the loss and of its square over the client's samples.
    """

    name = "utility"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"loss": (), "square": ()}

    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        losses = learner.losses(received, samples)
        return {"loss": means(losses, counts), "square": means(losses**2, counts)}


def means(values: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the mean of each client's values, concatenated over clients: `[n, ...]` → `[k, ...]`."""
    if not values.is_cuda or not many_alike(counts):
        return torch.stack([part.mean(dim=0) for part in torch.split(values, list(counts))])
    found = torch.empty(len(counts), *values.shape[1:], dtype=values.dtype, device=values.device)
    for places, rows in alike(counts):
        found[places.to(values.device)] = values[rows.to(values.device)].mean(dim=1)
    return found


def many_alike(counts: Sequence[int]) -> bool:
    """True if there are far fewer sizes than parts, as with mini-batches and not with clients."""
    return 2 * len(set(counts)) <= len(counts)


def alike(counts: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parts of equal size, size by size: their places `[m]` among all parts, and their rows `[m, size]`.

    A GPU computes mini-batches of one size at once; hundreds of them one by one would keep it waiting for the host.
    """
    sizes = torch.tensor(counts)
    begins = sizes.cumsum(0) - sizes
    for size in sorted(set(counts)):
        places = torch.nonzero(sizes == size).flatten()
        yield places, begins[places, None] + torch.arange(size)
