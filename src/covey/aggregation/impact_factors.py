"""Aggregation by impact factors computed from the clients' losses: w ← Σ_k α_k w_k (FedDRL's eq. 4)."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.arrays import FloatArray, IntArray
from covey.core.interfaces import Aggregator, Probe, Setting
from covey.core.replies import Replies
from covey.probe.losses import Losses
from covey.randomness import generator

LARGEST_LOSS = 1e4
"""Larger mean losses are unusable: the right class would have a probability of e^-10,000."""


@dataclass(frozen=True, eq=False)
class LossReports:
    """The losses and sample counts that clients report in a round, in K slots.

    If every client is invited in every round, a client's slot is its number, so that a slot always means the same
    client. Otherwise the invited clients fill the slots in an order that is shuffled in each round and means nothing.
    A client without usable losses (missing, not finite, or above `LARGEST_LOSS`) is given the mean losses of the
    others; so is an empty slot (an invited client that did not reply), with zero samples.
    """

    clients: IntArray
    """Clients that replied: `[k]`."""
    slots: IntArray
    """Their slots: `[k]`."""
    usable: NDArray[np.bool_]
    """Slots with usable losses: `[K]`."""
    before: FloatArray
    """l_b, the mean loss of the received model on the client's samples: `[K]`."""
    after: FloatArray
    """l_a, the mean loss of the client's trained model on its samples: `[K]`."""
    samples: FloatArray
    """n: `[K]`."""

    @classmethod
    def of(cls, t: int, replies: Replies, setting: Setting) -> "LossReports":
        """Collect the reports of round `t`; losses are NaN if nobody's are usable."""
        slots = _slots(t, replies, setting)
        found = {name: np.array(values.tolist()) for name, values in replies.probes.get(Losses.name, {}).items()}
        rows = replies.observed(Losses.name)
        for values in found.values():
            rows = rows[np.abs(values[rows]) <= LARGEST_LOSS]
        usable = np.zeros(setting.cohort, dtype=np.bool_)
        usable[slots[rows]] = True
        samples = np.zeros(setting.cohort)
        samples[slots] = replies.samples.numpy()
        losses = {}
        for name in ("before", "after"):
            known = found[name][rows] if len(rows) else np.empty(0)
            losses[name] = np.full(setting.cohort, known.mean() if len(known) else np.nan)
            losses[name][slots[rows]] = known
        return cls(replies.clients, slots, usable, losses["before"], losses["after"], samples)

    @property
    def cost(self) -> float:
        """Mean plus range of the usable l_b (eq. 7). The paper calls it a reward, but it is to be minimised."""
        known = self.before[self.usable]
        return float(known.mean() + known.max() - known.min())


def _slots(t: int, replies: Replies, setting: Setting) -> IntArray:
    """Return the slots of the clients that replied: `[k]`."""
    if setting.cohort == setting.clients:
        return replies.clients
    faulty = np.array([fault.client for fault in replies.faults], dtype=np.int64)
    invited = np.unique(np.concatenate([replies.clients, replies.withheld, faulty]))
    places = np.arange(len(invited))
    if setting.shuffled:
        places = generator(setting.seed, t, "slots").permutation(setting.cohort)
    return places[np.searchsorted(invited, replies.clients)]


class ImpactFactorAggregator(Aggregator):
    """Base of aggregators that compute each model's weight from the losses that clients report.

    A model whose client has no usable losses gets weight 0. If nobody's losses are usable, models are averaged by
    their clients' samples.
    """

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._figures: dict[str, object] = {}

    def probes(self, t: int) -> tuple[Probe, ...]:
        # Set here and not in `combine`, which is not called in a round without replies.
        self._figures = self.first_figures() if t == 1 else {}
        return (Losses(),)

    def first_figures(self) -> dict[str, object]:
        """Return figures for the record of the first round alone."""
        return {}

    @abstractmethod
    def impact_factors(self, t: int, reports: LossReports, device: torch.device) -> FloatArray:
        """Return α of each slot, 0 where it is not usable: `[K]`. At least one is usable; models live on `device`."""

    def no_reports(self, t: int) -> None:
        """Called instead of `impact_factors` in a round without usable losses."""

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        reports = LossReports.of(t, replies, self.setting)
        if reports.usable.any():
            factors = self.impact_factors(t, reports, replies.states.device)
        else:
            self.no_reports(t)
            factors = reports.samples / reports.samples.sum()
        weights = factors[reports.slots]
        factor_of = dict(zip(map(str, replies.clients.tolist()), weights.tolist(), strict=True))
        self._figures |= {"impact_factors": factor_of}
        return weighted_sum(replies.states, torch.from_numpy(weights))

    def figures(self) -> dict[str, object]:
        """Return the impact factor of each client of the last round."""
        return self._figures


def softmax(values: FloatArray, among: NDArray[np.bool_]) -> FloatArray:
    """Return the softmax over the slots in `among`, and 0 for the others: `[K]`."""
    powers = np.exp(np.where(among, values - values[among].max(), -np.inf))
    shares: FloatArray = powers / powers.sum()
    return shares
