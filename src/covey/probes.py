"""Probes: what a client measures besides its update.

A probe is a pure function of the model it received, the model it trained and its own samples. What
it returns is all that leaves the client beyond the update.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from covey.client import Learner
    from covey.data.dataset import Samples


class Probe(Protocol):
    """A named measurement on the client. Must be picklable: it travels to worker processes."""

    @property
    def name(self) -> str: ...

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        """Field → value, the same shapes on every client."""
        ...


@dataclass(frozen=True)
class Losses:
    """Mean loss on the client's own samples of the model it received and of the one it trained."""

    name: str = "losses"

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        return {
            "before": torch.tensor(learner.mean_loss(received, samples)),
            "after": torch.tensor(learner.mean_loss(trained, samples)),
        }
