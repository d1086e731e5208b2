"""The clients of a Flower strategy as the round loop sees them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from covey.arrays import IntArray
from covey.core.client_health import Attendance, Health
from covey.core.interfaces import Runtime
from covey.core.messages import Order
from covey.core.replies import Replies, checked
from covey.core.round_record import RoundRecord
from covey.core.scores import Scores
from covey.flower.exchange import Exchange

_log = logging.getLogger("flwr")


class StrategyRuntime(Runtime):
    """Reaches clients over the grid that Flower hands to a strategy.

    Surveys are executed at once. Flower sends the messages of the round's own order itself, so these are made by
    `messages`, and their answers are read by `read`.
    """

    live = True
    holdings_known = False

    def __init__(self, exchange: Exchange, grid: Grid, *, strikes: int, expected: str) -> None:
        self.exchange = exchange
        self.grid = grid
        self.attendance = Attendance(exchange.roster.clients, Health(strikes or 1 << 30))
        self.history: list[dict[str, Any]] = []
        """One entry for each round: the clients invited, those that answered, and the faults."""
        self._expected = expected
        self._unexpected: set[str] = set()
        self._refused: set[str] = set()
        self._say_how_known()

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.attendance.restore(rows)

    def available(self, t: int) -> IntArray:
        """Return the clients that can be reached and do not rest, and begin the round's entry in the history."""
        roster = self.exchange.roster
        roster.refresh(self.grid, self.exchange.timeout)
        self._warn_of_unexpected(roster.unexpected)
        for refused in roster.refused:
            if refused["key"] not in self._refused:
                self._refused.add(refused["key"])
                _log.warning("A node gets no orders: %s (key %s).", refused["reason"], refused["key"])
        reachable = roster.available()
        resting = self.attendance.health.resting(t).intersection(reachable.tolist())
        entry: dict[str, Any] = {"round": t, "reachable": len(reachable), "invited": [], "answered": [], "faults": []}
        self.history.append({**entry, "resting": self._names(sorted(resting))})
        return self.attendance.invite(t, reachable)

    def execute(self, order: Order) -> Replies:
        return self._noted(self.exchange.execute(self.grid, order))

    def messages(self, order: Order) -> list[Message]:
        """Return the messages of the round's own order, for Flower to send."""
        self.history[-1]["invited"] = self._names(order.clients.tolist())
        return self.exchange.messages(order)

    def read(self, order: Order, answers: Iterable[Message]) -> Replies:
        """Return the replies in the answers that Flower received."""
        replies = self._noted(self.exchange.read(self.grid, order, answers))
        self.history[-1]["answered"] = self._names(replies.clients.tolist())
        self.attendance.note(order, replies)
        return replies

    def evaluate(self, states: Tensor) -> Scores:
        raise NotImplementedError("Clients of a strategy evaluate their models themselves.")

    def annotate(self, record: RoundRecord) -> RoundRecord:
        record = self.attendance.annotate(record)
        if refused := self.exchange.roster.refused:
            record["refused"] = refused
        return record

    def note_unscored(self, reasons: Mapping[int, str]) -> None:
        """Add the clients that declined to evaluate, and why, to the round's entry."""
        for client, reason in sorted(reasons.items()):
            (name,) = self._names([client])
            self.history[-1].setdefault("unscored", []).append({"client": name, "reason": reason})

    def _noted(self, found: Replies) -> Replies:
        """Check replies, and add their faults to the round's entry."""
        replies = checked(found)
        for fault in replies.faults:
            (name,) = self._names([fault.client])
            self.history[-1]["faults"].append({"client": name, "reason": fault.reason})
            _log.warning("Client %s: %s", name, fault.reason)
        return replace(replies, timing=replace(replies.timing, wall_seconds=replies.round_seconds))

    def _say_how_known(self) -> None:
        """Say which clients' names rest on their nodes' word alone."""
        claimed = [name for name, how in self.exchange.roster.identities().items() if how == "claimed"]
        if claimed:
            named = f"{', '.join(claimed[:10])}{' …' * (len(claimed) > 10)}"
            _log.info("Nodes state these names themselves, and no key is tied to them (keys= does): %s", named)

    def _warn_of_unexpected(self, found: set[str]) -> None:
        """Name nodes that are none of the clients, once."""
        if new := sorted(found - self._unexpected):
            _log.warning("Left out, as %s: %s", self._expected, ", ".join(new))
        self._unexpected |= found

    def _names(self, clients: Iterable[int]) -> list[str]:
        return [self.exchange.roster.names[client] for client in clients]
