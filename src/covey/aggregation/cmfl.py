"""CMFL (Wang, Wang and Li, "CMFL: Mitigating Communication Overhead for Federated Learning", ICDCS 2019).

An update is relevant if enough of its signs agree with those of the global update.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.average import Average
from covey.arrays import State
from covey.core.interfaces import CohortProbe, Probe, Setting
from covey.core.messages import Gate
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators, probes

if TYPE_CHECKING:
    from covey.client.learner import Learner
    from covey.data.dataset import Samples


@probes.add("relevance")
@dataclass(frozen=True, eq=False)
class Relevance(CohortProbe):
    """Measures the share of parameters in which a client's update has the sign of the last global update."""

    update: Tensor
    """ū, the last global update of the trainable parameters: `[parameters]`."""

    name = "relevance"

    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        update = self.update.to(received.device)
        return {"share": torch.stack([sign_agreement(state - received, update) for state in trained])}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"share": ()}

    def payload(self) -> dict[str, Tensor]:
        return {"update": self.update}


@aggregators.add("cmfl")
class CMFL(Average):
    """Averages the models of clients whose updates agree in sign with the last global update; others upload nothing.

    The server sends the last global update ū (the step that it took, by its optimiser if it has one) along with the
    model. A client with update u sends its model if

        e = (1/d) Σ_j 1[sgn u_j = sgn ū_j] ≥ v_t,

    and otherwise only e and what a selector asks for. Before the first global update everyone is relevant. If nobody
    is relevant, the model and ū stay as they are.

    threshold: v_0. Updates of clients that differ, or of a model that has nearly converged, agree in little more than
        half of the coordinates: a constant threshold above that ends the training.
    decay: none keeps v_t = v_0; sqrt is v_t = v_0/√t.
    weighted: true weighs clients by their samples.
    """

    def __init__(
        self, *, threshold: float = 0.8, decay: Literal["none", "sqrt"] = "sqrt", weighted: bool = True
    ) -> None:
        super().__init__(weighted=weighted)
        require(0 <= threshold <= 1, f"aggregator.threshold is a share in [0, 1], not {threshold:g}.")
        require(decay in ("none", "sqrt"), f"aggregator.decay is none or sqrt, not '{decay}'.")
        self.threshold = threshold
        self.decay = decay

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.update: Tensor | None = None
        """ū `[parameters]`; None before the first."""

    def probes(self, t: int) -> tuple[Probe, ...]:
        return () if self.update is None else (Relevance(self.update),)

    def gate(self, t: int) -> Gate | None:
        return None if self.update is None else Gate(Relevance.name, "share", self.threshold_at(t))

    def threshold_at(self, t: int) -> float:
        """Return v_t."""
        return self.threshold / math.sqrt(t) if self.decay == "sqrt" else self.threshold

    def stepped(self, t: int, before: Tensor, after: Tensor) -> None:
        trainable = self.setting.layout.trainable
        self.update = after[:trainable] - before[:trainable].to(after.device)

    def state_dict(self) -> State:
        return {"update": self.update}

    def load_state_dict(self, state: State) -> None:
        self.update = state["update"]


@aggregators.add("cmfl-server")
class ServerCMFL(Average):
    """Averages only updates that agree in sign with the round's mean update: CMFL as FedACS compares with it.

    Every client uploads. With ū the mean update of the round, updates are averaged if at least the share `threshold` of
    their coordinates has the sign of ū; if none does, the model of the client that agrees most is taken.

    threshold: v, constant.
    weighted: true weighs clients by their samples in both averages.
    """

    def __init__(self, *, threshold: float = 0.7, weighted: bool = True) -> None:
        super().__init__(weighted=weighted)
        require(0 <= threshold <= 1, f"aggregator.threshold is a share in [0, 1], not {threshold:g}.")
        self.threshold = threshold

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        shares = self.relevance(t, model, replies)
        keep = np.flatnonzero(shares.numpy() >= self.threshold)
        if not len(keep):
            keep = np.array([int(shares.argmax())])
        return super().combine(t, model, replies.take(keep))

    def relevance(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        """Return the agreement of each client's update with the mean of all: `[k]`."""
        before = model.to(replies.states.device)
        mean = (super().combine(t, model, replies) - before)[: self.setting.layout.trainable]
        return torch.stack([sign_agreement(state - before, mean) for state in replies.states]).cpu()


def sign_agreement(update: Tensor, reference: Tensor) -> Tensor:
    """Return the share of coordinates of `reference` `[p]` in which `update` (`[p]` or longer) has the same sign."""
    agree = (update[: len(reference)].sign() == reference.sign()).sum()
    return agree.double() / len(reference)
