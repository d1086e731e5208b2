"""The roster: which node is which client.

Flower numbers nodes at random. A node states its name (`client = "north"` in its node configuration) or its partition;
clients are numbered by sorted names, or by partition. A node that returns under another number is the same client.
Where clients' public keys are pinned, as on a fleet, a node is the client whose key it signs its calls with, whatever
it states.
"""

import time
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from covey.arrays import IntArray
from covey.core.client_health import Health
from covey.core.round_record import RefusedNode
from covey.errors import Refusal
from covey.flower.printable_text import printable
from covey.flower.public_keys import LONGEST, fingerprint, unpinned
from covey.flower.wire import WHO

IDENTITY = "covey.identity"

_FIRST = 5.0
"""Seconds that the first question stays open while the server waits for clients; each further one stays open twice as
long. Late nodes are asked soon, and slow ones have time."""


class Roster:
    """Clients and the nodes that they are reached at."""

    def __init__(
        self,
        clients: int,
        names: Sequence[str] | None = None,
        *,
        patience: float = 60.0,
        keys: Mapping[bytes, str] | None = None,
    ) -> None:
        self.clients = clients
        self.keys = keys
        """Public key → client's name; None if clients have no pinned keys, and nodes state their names."""
        self.refused: list[RefusedNode] = []
        """Connected nodes that pass for a client or are nobody's; they get no order."""
        self.patience = patience
        """Seconds to wait for clients that are not connected yet."""
        self.names: list[str] = list(names) if names is not None else []
        """`[clients]`; if none are given, empty until all clients were seen."""
        self._nodes: dict[int, int] = {}
        """Client → node."""
        self._bound: set[str] = set()
        """Names that are bound to a node's key, pinned or registered."""
        self._name_of_node: dict[int, str] = {}
        """Node → the name that it states."""
        self._numbered: dict[str, int] = {}
        self._looks = 0
        self._silent = Health()
        """Nodes that do not state a name. Each question costs time, so they are asked less and less often."""

    def wait(self, grid: Grid, timeout: float) -> None:
        """Wait until every client is connected, and number them; refuse after `patience` seconds."""
        end, limit = time.monotonic() + self.patience, _FIRST
        while True:
            self._ask(grid, min(timeout, limit, max(end - time.monotonic(), 1.0)))
            limit *= 2
            seen = set(self._name_of_node.values())
            if (self.names and seen >= set(self.names)) or (not self.names and len(seen) >= self.clients):
                break
            if time.monotonic() > end:
                raise Refusal(self._absent(seen, len(list(grid.get_node_ids()))))
            time.sleep(0.2)
        if not self.names:
            self.names = sorted(seen, key=_in_order)[: self.clients]
        self._assign(grid)

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Update which nodes are connected."""
        self._looks += 1
        resting = self._silent.resting(self._looks)
        asked = self._ask(grid, min(timeout, max(self.patience, 1.0)), resting)
        self._silent.note(self._looks, asked, [node for node in asked if node not in self._name_of_node])
        self._assign(grid)

    def available(self) -> IntArray:
        """Return the clients that can be reached, ascending."""
        return np.array(sorted(self._nodes), dtype=np.int64)

    def node_of(self, client: int) -> int | None:
        """Return the node of a client; None if it is not connected."""
        return self._nodes.get(client)

    def client_of(self, node: int) -> int | None:
        """Return the client of a node; None if it is none of this run's clients, or passes for one."""
        name = self._name_of_node.get(node)
        client = None if name is None else self._numbers.get(name)
        return client if name not in self._bound or client is None or self._nodes.get(client) == node else None

    @property
    def unexpected(self) -> set[str]:
        """Names of nodes that are not clients of this run."""
        return set(self._name_of_node.values()) - self._numbers.keys()

    @property
    def _numbers(self) -> dict[str, int]:
        if len(self._numbered) != len(self.names):
            self._numbered = {name: client for client, name in enumerate(self.names)}
        return self._numbered

    def _ask(self, grid: Grid, limit: float, resting: Collection[int] = ()) -> list[int]:
        """Ask nodes without a known name, except those that rest; return the nodes asked."""
        if self.keys is not None:
            nodes = {int(node.node_id): node for node in grid.get_nodes()}
            named = {number: self.keys.get(bytes(node.public_key)) for number, node in nodes.items()}
            self._name_of_node = {number: name for number, name in named.items() if name is not None}
            others = [nodes[number] for number, name in named.items() if name is None]
            self.refused = [unpinned(str(node.name), bytes(node.public_key), self.names) for node in others]
            return []
        unknown = [node for node in grid.get_node_ids() if node not in self._name_of_node and node not in resting]
        if not unknown:
            return []
        asked = [Message(RecordDict(), dst_node_id=node, message_type=WHO, ttl=limit) for node in unknown]
        for answer in grid.send_and_receive(asked, timeout=limit):
            stated = answer.content.config_records.get(IDENTITY) if answer.has_content() else None
            if stated is not None and "name" in stated:
                self._name_of_node[answer.metadata.src_node_id] = printable(str(stated["name"]))[:LONGEST]
        return unknown

    def _assign(self, grid: Grid) -> None:
        """Decide which connected node is which client.

        Of two nodes that state one name, the one counts that was registered under that name, and first. Where neither
        was, the later one counts: the client was restarted.
        """
        present = {int(node.node_id): node for node in grid.get_nodes()}
        stating: dict[str, list[int]] = {}
        for number, name in self._name_of_node.items():
            if number in present and name in self._numbers:
                stating.setdefault(name, []).append(number)
        if self.keys is None:
            self.refused = []
        self._nodes, self._bound = {}, set()
        for name, numbers in stating.items():
            registered = [number for number in numbers if name and present[number].name == name]
            first = min(registered, key=lambda number: present[number].registered_at, default=None)
            self._nodes[self._numbers[name]] = numbers[-1] if first is None else first
            if first is not None or self.keys is not None:
                self._bound.add(name)
            for number in numbers if first is not None else ():
                if number != first:
                    reason = f"it states the name {name}, which is registered with another key"
                    key = fingerprint(bytes(present[number].public_key))
                    self.refused.append(RefusedNode(name=name, key=key, reason=reason))

    def identities(self) -> dict[str, str]:
        """Return connected client's name → how it is known: by a pinned key, a registered key, or its node's word."""
        known = "pinned key" if self.keys is not None else "registered key"
        names = [self.names[client] for client in sorted(self._nodes)]
        return {name: known if name in self._bound else "claimed" for name in names}

    def _absent(self, seen: set[str], connected: int) -> str:
        after, there = f"after {self.patience:g} seconds", f"(nodes connected: {connected})"
        if self.names:
            absent = [name for name in self.names if name not in seen]
            return f"Not there {after}: {', '.join(absent[:10])}{' …' * (len(absent) > 10)} {there}."
        return (
            f"{self.clients} clients are expected, and {after} {len(seen)} have said who they are {there}: start more "
            "nodes, expect fewer, or wait longer (patience)."
        )


def identity(context: Context) -> RecordDict:
    """Return the name that a node states."""
    given = context.node_config
    name = given.get("client", given.get("partition-id", context.node_id))
    return RecordDict({IDENTITY: ConfigRecord({"name": str(name)})})


def _in_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)
