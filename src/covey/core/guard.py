"""The guard: what clients claim is checked before anything learns from it.

It stands before every selector and aggregator, and before methods with many models. Honest runs are the same with it
and without.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.config.sections import GuardLimits, Local
from covey.core.client_health import Health
from covey.core.client_tally import ClientTally
from covey.core.messages import Fault
from covey.core.replies import Replies

_BLOCK, _BLOCK_ON_GPU = 1 << 14, 1 << 22
"""Parameters whose squares are summed over all clients at a time: few stay in a CPU's cache."""

_REMEMBERED = 512
"""Rounds whose typical norm is remembered."""

_FIRST = 5
"""Rounds that say how large updates of a new model are; they are remembered for good."""


@dataclass
class Guard:
    """Checks updates and sample counts against the cohort's and the past, and says who may be invited.

    Norms: with m the lower median of the norms ‖w_k - s_k‖ of a round, s_k what client k started from, h the median of
    earlier m and f that of the first five, a reply is dropped if its norm exceeds `limits.norm` times
    max(f, h, min(m, limits.norm·h)). The past keeps a cohort of liars from setting the measure; the cohort's own median
    lets honest norms grow. f keeps honest clients whose data differ: once the model fits the majority, its updates are
    close to nothing, and theirs are not.

    Counts: a client has the number of samples that it claimed first. A claim beyond `limits.count` times the median of
    all first claims is not believed: the client counts as the median one.

    Invitations: a client whose replies are dropped twice in a row rests for a round, then two, four, … If
    `limits.invitations` is above 0, a client is invited at most that many times as often as the mean client.
    """

    limits: GuardLimits
    clients: int
    cohort: int
    norms: list[float] = field(default_factory=list)
    """m of earlier rounds, the last ones."""
    claims: ClientTally = field(default_factory=ClientTally)
    """Client → the number of samples that it claimed first."""
    invited: ClientTally = field(default_factory=ClientTally)
    """Client → invitations; kept only if they are limited."""
    health: Health = field(default_factory=Health)

    def screened(self, t: int, start: Tensor | None, replies: Replies, places: Tensor | None = None) -> Replies:
        """Return the replies without those whose update is far outside, and with bounded sample counts.

        start: what clients started from, `[d]` or `[k, d]`; None compares no updates. places: the numbers of a model
        that are compared; all if None.
        """
        if not self.limits.on:
            return replies
        replies = self.with_believed_counts(replies)
        if start is None or not self.limits.norm or not len(replies) or replies.states.shape[1] != start.shape[-1]:
            return replies
        norms = update_norms(replies.states, start, places)
        typical = float(np.sort(norms)[(len(norms) - 1) // 2])
        past = median(self.norms) if self.norms else typical
        first = median(self.norms[:_FIRST]) if self.norms else typical
        measure = max(first, past, min(typical, self.limits.norm * past))
        far = norms > self.limits.norm * measure if measure > 0 else np.zeros(len(norms), dtype=bool)
        norm = min(typical, self.limits.norm * measure)
        self.norms = [*self.norms[:_FIRST], *[*self.norms[_FIRST:], norm][-_REMEMBERED:]]
        self.health.note(t, replies.clients.tolist(), replies.clients[far].tolist())
        if not far.any():
            return replies
        faults = [
            Fault(int(client), f"its update is {norm / measure:.3g} times as large as updates are here")
            for client, norm in zip(replies.clients[far].tolist(), norms[far].tolist(), strict=True)
        ]
        return replace(replies.take(np.flatnonzero(~far)), faults=(*replies.faults, *faults))

    def with_believed_counts(self, replies: Replies) -> Replies:
        """Return the replies, to a survey or of a round, with the sample counts that are believed."""
        counts = self.counts(replies.clients, replies.samples)
        if counts is not replies.samples:
            replies = replace(replies, samples=counts)
        if replies.withheld_replies is not None:
            replies = replace(replies, withheld_replies=self.with_believed_counts(replies.withheld_replies))
        return replies

    def counts(self, clients: IntArray, claimed: Tensor) -> Tensor:
        """Return the numbers of samples `[k]` that clients count as, from what they claim now."""
        if not self.limits.on or not self.limits.count or not len(clients):
            return claimed
        now = claimed.numpy()
        new = ~self.claims.seen(clients)
        if new.any():
            self.claims.put(clients[new], now[new].astype(np.int64))
        first, typical = self.claims.of(clients), self.claims.median
        believed = np.where(first <= self.limits.count * typical, first, max(1, int(typical)))
        return claimed if np.array_equal(believed, now) else torch.from_numpy(believed).to(claimed.dtype)

    def candidates(self, t: int, reachable: IntArray) -> IntArray:
        """Return the reachable clients that may be invited in round `t`, ascending."""
        if not self.limits.on:
            return reachable
        resting = self.health.resting(t)
        fit = reachable[~np.isin(reachable, list(resting))] if resting else reachable
        fit = fit if len(fit) else reachable
        if not self.limits.invitations:
            return fit
        most = max(1.0, self.limits.invitations * t * self.cohort / self.clients)
        times = self.invited.of(fit)
        allowed = fit[times + 1 <= most]
        # A round is not left short: those who were invited least often fill it up.
        least = fit[np.argsort(times, kind="stable")[: self.cohort]]
        return allowed if len(allowed) >= min(self.cohort, len(fit)) else np.union1d(allowed, least)

    def note_invited(self, cohort: IntArray) -> None:
        """Count a round's invitations."""
        if self.limits.on and self.limits.invitations:
            self.invited.put(cohort, self.invited.of(cohort) + 1)

    def state_dict(self) -> State:
        """Return what a resume needs."""
        return {
            "norms": list(self.norms),
            "claims": self.claims.state(),
            "invited": self.invited.state(),
            "health": self.health.as_mapping(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`; runs of earlier versions have none."""
        self.norms = list(state.get("norms", []))
        self.claims, self.invited = (ClientTally.restored(state.get(name, {})) for name in ("claims", "invited"))
        self.health.recall(state.get("health", {}))

    def saved(self, work: Local) -> State:
        """Return the guard's part of a method's state, with the local work that its norms belong to."""
        return {"guard": {**self.state_dict(), "work": dict(vars(work))}} if self.limits.on else {}

    def recall(self, state: State, work: Local) -> None:
        """Restore the guard's part of a method's state; of earlier versions there may be none."""
        known = dict(state.get("guard", {}))
        if not work.is_as_written(known.get("work", {})):
            # Clients train otherwise from now on: earlier norms are no measure.
            known["norms"] = []
        self.load_state_dict(known)


def update_norms(states: Tensor, start: Tensor, places: Tensor | None = None) -> FloatArray:
    """Return ‖w_k - s_k‖ `[k]` of states `[k, d]`, finite for all that are: norms that overflow are taken in double.

    start: s, `[d]` or `[k, d]`. places: the numbers of a model that count; all if None.
    """
    start = start.to(states.device)
    parts = [
        torch.linalg.vector_norm(part - before, dim=1).double().square()
        for part, before in _blocks(states, start, places)
    ]
    squares: FloatArray = reduce(torch.add, parts).cpu().numpy()
    for row in np.flatnonzero(~np.isfinite(squares)).tolist():
        mine = start if start.dim() == 1 else start[row]
        for part, before in _blocks(states[row][None].double(), mine.double(), places, whole=True):
            squares[row] = (part[0] - before).square().sum()
    return np.sqrt(squares)


def _blocks(
    states: Tensor, start: Tensor, places: Tensor | None, *, whole: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the columns that count of states and of what they started from, a block (or all) at a time."""
    block = _BLOCK_ON_GPU if states.is_cuda else _BLOCK
    block = max(1, states.shape[1]) if whole else block
    if places is None and states.shape[1] <= block:
        yield states, start
        return
    if places is None:
        yield from zip(torch.split(states, block, dim=1), torch.split(start, block, dim=-1), strict=True)
        return
    for columns in torch.split(places.to(states.device), block):
        yield states[:, columns], start[..., columns]


def bounded_shares(counts: FloatArray) -> FloatArray:
    """Return each client's share of all samples, at most twice that of the mean client: `[k]`, with the sum 1.

    What is cut off goes to the others, in proportion to their samples.
    """
    shares: FloatArray = counts / counts.sum()
    most, cut = 2 / len(counts), np.zeros(len(counts), dtype=bool)
    while (shares > most * (1 + 1e-12)).any():
        cut |= shares > most
        left = 1 - most * cut.sum()
        shares = np.where(cut, most, counts * (left / counts[~cut].sum()))
    return shares
