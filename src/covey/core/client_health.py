"""Rest for clients that fail: after some failures in a row a client is not invited for a round, then two, four, …"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covey.arrays import IntArray
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.core.round_record import RoundRecord


@dataclass
class Health:
    """Each client's failures in a row, and the round until which it is rested."""

    strikes: int = 2
    """Failures in a row after which a client is rested."""
    longest: int = 16
    """Longest rest of a client, in rounds."""
    failures: dict[int, int] = field(default_factory=dict)
    """Client → failures in a row."""
    until: dict[int, int] = field(default_factory=dict)
    """Client → the last round of its rest."""

    def note(self, t: int, invited: Iterable[int], failed: Iterable[int], *, forgiving: bool = True) -> None:
        """Count the failures of a round's clients. With `forgiving`, one sound answer clears a client's failures.

        Surveys do not forgive: a client may answer questions well and fail whenever it trains.
        """
        lost = set(failed)
        if not lost and not self.failures and not self.until:
            return
        for client in invited:
            if client not in lost:
                if forgiving:
                    self.failures.pop(client, None)
                    self.until.pop(client, None)
                continue
            self.failures[client] = count = self.failures.get(client, 0) + 1
            if count >= self.strikes:
                self.until[client] = t + min(2 ** min(count - self.strikes, 30), self.longest)

    def as_mapping(self) -> dict[str, dict[str, int]]:
        """Return the counts that a resume needs, for the round's record; empty while nobody fails."""
        if not self.failures:
            return {}
        return {
            "failures": {str(client): count for client, count in sorted(self.failures.items())},
            "until": {str(client): last for client, last in sorted(self.until.items())},
        }

    def recall(self, kept: Mapping[str, Mapping[str, int]]) -> None:
        """Restore the counts from a round's record."""
        self.failures = {int(client): count for client, count in kept.get("failures", {}).items()}
        self.until = {int(client): last for client, last in kept.get("until", {}).items()}

    def resting(self, t: int) -> set[int]:
        """Return the clients that rest in round `t`."""
        return {client for client, last in self.until.items() if t <= last}


class Attendance:
    """Decides which reachable clients may be invited, and rests those that keep failing."""

    def __init__(self, clients: int, health: Health, minimum: int = 1) -> None:
        self.clients = clients
        self.health = health
        self.minimum = minimum
        """Clients that a round needs; if fewer would be left, nobody rests."""
        self.away: list[int] = []
        """Clients that cannot be reached in the current round."""
        self.resting: list[int] = []
        """Clients that can be reached and are left out of the current round."""

    def invite(self, t: int, reachable: IntArray) -> IntArray:
        """Return the clients of `reachable` that do not rest in round `t`, ascending."""
        rested = self.health.resting(t)
        fit = reachable[~np.isin(reachable, list(rested))] if rested else reachable
        if len(fit) < self.minimum:
            fit = reachable
        self.away = np.setdiff1d(np.arange(self.clients), reachable).tolist()
        self.resting = np.setdiff1d(reachable, fit).tolist()
        return fit

    def note(self, order: Order, replies: Replies, *, forgiving: bool = True) -> None:
        """Count the clients whose replies to an order were lost; a lost measurement alone is no failure."""
        lost = [fault.client for fault in replies.faults if fault.measurement is None]
        self.health.note(order.round, order.clients.tolist(), lost, forgiving=forgiving)

    def annotate(self, record: RoundRecord) -> RoundRecord:
        """Return a round's record with the clients that were away or rested, and the counts that a resume needs."""
        record = {**record, "away": self.away, "resting": self.resting}
        if health := self.health.as_mapping():
            record["health"] = health
        return record

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Restore failures and rests from the records of a run that is resumed."""
        self.health.recall(rows[-1].get("health", {}) if rows else {})
