"""A whole number for each client that was seen, in two arrays: cheap to look up, and to write for many clients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from covey.arrays import IntArray, State

_LISTED = 4096
"""Most clients that a state lists by name; more are written as arrays."""


class ClientTally:
    """Client → number, ascending by client."""

    def __init__(self) -> None:
        self.clients: IntArray = np.empty(0, dtype=np.int64)
        self.numbers: IntArray = np.empty(0, dtype=np.int64)
        self._median: float | None = None

    @property
    def median(self) -> float:
        """Median of all numbers."""
        if self._median is None:
            self._median = float(np.median(self.numbers))
        return self._median

    def of(self, clients: IntArray) -> IntArray:
        """Return the numbers of these clients, 0 for those that were not seen."""
        at, seen = self._places(clients)
        return np.where(seen, self.numbers[at] if len(self.numbers) else 0, 0)

    def seen(self, clients: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """True for clients that have a number."""
        return self._places(clients)[1]

    def put(self, clients: IntArray, numbers: IntArray) -> None:
        """Set the numbers of different clients."""
        at, seen = self._places(clients)
        self._median = None
        self.numbers[at[seen]] = numbers[seen]
        if not seen.all():
            order = np.argsort(clients[~seen])
            new = clients[~seen][order]
            places = np.searchsorted(self.clients, new)
            self.clients = np.insert(self.clients, places, new)
            self.numbers = np.insert(self.numbers, places, numbers[~seen][order])

    def _places(self, clients: IntArray) -> tuple[IntArray, np.ndarray[Any, np.dtype[np.bool_]]]:
        at = np.searchsorted(self.clients, clients)
        inside = np.minimum(at, len(self.clients) - 1)
        seen = (self.clients[inside] == clients) if len(self.clients) else np.zeros(len(clients), dtype=np.bool_)
        return inside, seen

    def state(self) -> State:
        """Return the numbers for a checkpoint: by the client's name, or as arrays if there are many."""
        if len(self.clients) <= _LISTED:
            pairs = zip(self.clients.tolist(), self.numbers.tolist(), strict=True)
            return {str(client): number for client, number in pairs}
        return {"clients": self.clients, "numbers": self.numbers}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "ClientTally":
        """Restore the result of `state`."""
        made = cls()
        if "clients" in state:
            made.clients = np.array(state["clients"], dtype=np.int64)
            made.numbers = np.array(state["numbers"], dtype=np.int64)
        elif state:
            pairs = sorted((int(client), int(number)) for client, number in state.items())
            made.clients, made.numbers = np.array(pairs, dtype=np.int64).T.copy()
        return made
