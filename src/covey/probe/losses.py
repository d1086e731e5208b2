"""Probes of losses, and means over clients."""

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
    """Mean loss on the client's own samples of the model it received and of the one it trained."""

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
    """What Oort's statistical utility |D|·√(mean loss²) is made of, for the model that was received."""

    name = "utility"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"loss": (), "square": ()}

    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        losses = learner.losses(received, samples)
        return {"loss": means(losses, counts), "square": means(losses**2, counts)}


def means(values: Tensor, counts: Sequence[int]) -> Tensor:
    """The mean of each client's values, which lie one after another: `[n, ...]` → `[k, ...]`."""
    if not values.is_cuda or not many_alike(counts):
        return torch.stack([part.mean(dim=0) for part in torch.split(values, list(counts))])
    found = torch.empty(len(counts), *values.shape[1:], dtype=values.dtype, device=values.device)
    for places, rows in alike(counts):
        found[places.to(values.device)] = values[rows.to(values.device)].mean(dim=1)
    return found


def many_alike(counts: Sequence[int]) -> bool:
    """Whether there are far fewer sizes than parts: mini-batches, and not clients."""
    return 2 * len(set(counts)) <= len(counts)


def alike(counts: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of equal size, size by size: their places `[m]` among all parts, and their rows `[m, size]`.

    A GPU takes mini-batches of one size at once; hundreds of them, one after another, keep it waiting for the host.
    """
    sizes = torch.tensor(counts)
    begins = sizes.cumsum(0) - sizes
    for size in sorted(set(counts)):
        places = torch.nonzero(sizes == size).flatten()
        yield places, begins[places, None] + torch.arange(size)
