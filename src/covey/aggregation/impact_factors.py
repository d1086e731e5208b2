"""Aggregation by impact factors from what clients report: w ← Σ_k α_k w_k (FedDRL's eq. 4)."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.arrays import FloatArray, IntArray
from covey.core.interfaces import Aggregator, Probe, Setting
from covey.core.messages import Replies
from covey.probe.losses import Losses

LARGEST_LOSS = 1e4
"""Mean losses beyond this say nothing: the right class would have a probability of e^-10,000."""


@dataclass(frozen=True, eq=False)
class Reported:
    """A round's losses and sample counts, in K seats.

    Where everyone is invited every round, a client's seat is its number, so that a seat always means the same client;
    else the invited sit in ascending order. A client whose losses cannot be used (they are missing, not finite, or far
    beyond what a model can come to) sits on the mean losses of the others; so does an empty seat (an invited client
    that did not reply), with no samples.
    """

    clients: IntArray
    """Those who replied: `[k]`."""
    seats: IntArray
    """Where they sit: `[k]`."""
    usable: NDArray[np.bool_]
    """Seats whose client replied with losses of use: `[K]`."""
    before: FloatArray
    """l_b, the mean loss of the received model on the client's samples: `[K]`."""
    after: FloatArray
    """l_a, the mean loss of the model that the client trained: `[K]`."""
    samples: FloatArray
    """n: `[K]`."""

    @classmethod
    def of(cls, replies: Replies, setting: Setting) -> "Reported":
        """What the replies of a round say. At least one client's losses must be usable for finite values."""
        seats = replies.clients
        if setting.cohort < setting.clients:
            faulty = np.array([fault.client for fault in replies.faults], dtype=np.int64)
            invited = np.unique(np.concatenate([replies.clients, replies.withheld, faulty]))
            seats = np.searchsorted(invited, replies.clients)
        found = {name: np.array(values.tolist()) for name, values in replies.probes.get(Losses.name, {}).items()}
        rows = replies.observed(Losses.name)
        for values in found.values():
            rows = rows[np.abs(values[rows]) <= LARGEST_LOSS]
        usable = np.zeros(setting.cohort, dtype=np.bool_)
        usable[seats[rows]] = True
        samples = np.zeros(setting.cohort)
        samples[seats] = replies.samples.numpy()
        losses = {}
        for name in ("before", "after"):
            known = found[name][rows] if len(rows) else np.empty(0)
            losses[name] = np.full(setting.cohort, known.mean() if len(known) else np.nan)
            losses[name][seats[rows]] = known
        return cls(replies.clients, seats, usable, losses["before"], losses["after"], samples)

    @property
    def cost(self) -> float:
        """Mean plus range of the usable clients' l_b: what eq. 7 calls a reward, and what an agent shall make small."""
        known = self.before[self.usable]
        return float(known.mean() + known.max() - known.min())


class ByImpactFactors(Aggregator):
    """An aggregator that decides how much each client's model counts from the losses that clients report.

    The model of a client whose losses cannot be used counts nothing. Where nobody's can, the models are averaged by
    their samples.
    """

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._figures: dict[str, object] = {}

    def probes(self, t: int) -> tuple[Probe, ...]:
        # What was said of the last round is over, also where nobody replies in this one.
        self._figures = {}
        return (Losses(),)

    @abstractmethod
    def impact_factors(self, t: int, reported: Reported, device: torch.device) -> FloatArray:
        """α of each seat, 0 where it is not usable: `[K]`. At least one seat is usable; models live on `device`."""

    def nothing_reported(self, t: int) -> None:
        """Called instead in a round in which nobody's losses can be used."""

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        reported = Reported.of(replies, self.setting)
        if reported.usable.any():
            factors = self.impact_factors(t, reported, replies.states.device)
        else:
            self.nothing_reported(t)
            factors = reported.samples / reported.samples.sum()
        weights = factors[reported.seats]
        factor_of = dict(zip(map(str, replies.clients.tolist()), weights.tolist(), strict=True))
        self._figures = {"impact_factors": factor_of}
        return weighted_sum(replies.states, torch.from_numpy(weights))

    def figures(self) -> dict[str, object]:
        """The impact factor of each client of the last round."""
        return self._figures


def softmax(values: FloatArray, among: NDArray[np.bool_]) -> FloatArray:
    """exp(values) over its sum among the chosen, 0 for the others: `[K]`."""
    powers = np.exp(np.where(among, values - values[among].max(), -np.inf))
    shares: FloatArray = powers / powers.sum()
    return shares
