"""Probes: what a client measures besides its update.

A probe is a pure function of the model it received, the model it trained and its own samples. What
it returns is all that leaves the client beyond the update.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from covey.client import Learner
    from covey.data.dataset import Samples


class Probe(ABC):
    """A named measurement on the client. Must be picklable: it travels to worker processes."""

    name: str
    kept: tuple[str, ...] = ()
    """Fields that stay on the client. A simulation carries them to the next order and counts them nowhere."""
    uses_model: bool = True
    """Whether it looks at the model; where no probe of a survey does, none is sent."""

    @abstractmethod
    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        """Field → value, the same shapes on every client."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Fields whose shape is known before anybody measures; that of others is what most clients send."""
        return {}

    def payload(self) -> dict[str, Tensor]:
        """What the server has to send along for it."""
        return {}

    def for_client(self, client: int) -> "Probe":
        """The probe as one client gets it: itself, unless what is sent along differs from client to client."""
        return self


class CohortProbe(Probe):
    """A probe that measures many clients that received the same model at once, and one as a cohort of one."""

    on_device: tuple[str, ...] = ()
    """Fields as large as models, which a simulation leaves on the device that has measured them."""

    @abstractmethod
    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        """Field → `[k, ...]`, from k trained models `[k, d]` and the clients' samples one after another."""

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        fields = self.measure_cohort(learner, received, trained[None], samples, [len(samples)])
        return {name: values[0] for name, values in fields.items()}


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
