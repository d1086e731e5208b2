"""Gradients of the last layer along a client's local training, for probes that learn from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.client.learner import Learner


@dataclass(frozen=True, eq=False)
class StepTrace:
    """One client's steps of local training."""

    gradients: Tensor
    """`[steps, h]`: gradient of the loss by the last layer's weight, without momentum, decay or proximal term."""
    shares: Tensor
    """`[steps, classes]`: label shares of each mini-batch."""
    sizes: Tensor
    """`[steps]`: samples of each mini-batch."""


@dataclass(eq=False)
class StepRecorder:
    """Records the steps of `Learner.fit`, as its `on_step`."""

    learner: Learner
    gradients: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    def __call__(self, gradients: Sequence[Tensor], labels: Tensor) -> None:
        layout = self.learner.layout
        self.gradients.append(gradients[layout.parameters.index(layout.head[0])].flatten().float())
        self.labels.append(labels)

    def trace(self) -> StepTrace:
        """Return the steps so far."""
        sizes = torch.tensor([float(len(labels)) for labels in self.labels])
        one_hot = (F.one_hot(labels, self.learner.classes).to(torch.float32) for labels in self.labels)
        return StepTrace(torch.stack(self.gradients), torch.stack([rows.mean(dim=0) for rows in one_hot]), sizes)
