"""The roster: which node is which client.

Flower numbers nodes at random. A node states its name (`client = "north"` in its node configuration) or its partition;
clients are numbered by sorted names, or by partition. A node that returns under another number is the same client.
Where clients' public keys are pinned, as on a fleet, a node is the client whose key it signs its calls with, whatever
it states.

An app that knows nothing of Covey states nothing. Its node is the client whose key it has, or under whose name it was
registered; else nodes are numbered in the order of their registration, which in a simulation is that of partitions.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from covey.arrays import IntArray
from covey.core.client_health import Health
from covey.core.printable_text import printable
from covey.core.round_record import RefusedNode
from covey.errors import Refusal
from covey.flower.node_kinds import NodeKind, ask_for_mod, ask_who
from covey.flower.public_keys import LONGEST, fingerprint, unpinned

_log = logging.getLogger("flwr")

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
        plain: bool | None = False,
        question: RecordDict | None = None,
    ) -> None:
        """`plain` says whether apps know nothing of Covey; None finds out. `question` asks them for the mod, too."""
        self.clients = clients
        self.plain = plain
        self.question = question
        self._answers: dict[int, Message] = {}
        """Plain node → its answer to the question, a report of the initial model."""
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
        """Node → the name that it states, or is given."""
        self._kind_of_node: dict[int, NodeKind] = {}
        """Node → what its app knows of Covey, where that was asked."""
        self._failed: dict[int, str] = {}
        """Node → the error that it answered instead of a name."""
        self._numbered_nodes: set[int] = set()
        """Nodes that the server named, as they state nothing."""
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
            self._name_registered(grid)
            seen = set(self._name_of_node.values())
            unnamed = len(self._unnamed())
            there = seen >= set(self.names) if self.names else len(seen) + unnamed >= self.clients
            over = time.monotonic() > end
            # Keys say who a node is, and not what its app knows.
            known = self.plain is False or self._kind_of_node.keys() >= self._name_of_node.keys()
            if there and (known or over):
                break
            if over:
                raise Refusal(self._absent(seen, len(list(grid.get_node_ids()))))
            time.sleep(0.2)
        if not self.names:
            self._number(grid)
            self.names = sorted(self._name_of_node.values(), key=_in_order)[: self.clients]
        self._assign(grid)

    def refresh(self, grid: Grid, timeout: float) -> None:
        """Update which nodes are connected."""
        self._looks += 1
        resting = self._silent.resting(self._looks)
        asked = self._ask(grid, min(timeout, max(self.patience, 1.0)), resting)
        known = self._name_of_node.keys() | self._kind_of_node.keys()
        self._silent.note(self._looks, asked, [node for node in asked if node not in known])
        self._name_registered(grid)
        self._replace_gone(grid)
        self._assign(grid)

    def available(self) -> IntArray:
        """Return the clients that can be reached, ascending."""
        return np.array(sorted(self._nodes), dtype=np.int64)

    def node_of(self, client: int) -> int | None:
        """Return the node of a client; None if it is not connected."""
        return self._nodes.get(client)

    def kind_of(self, client: int) -> NodeKind:
        """Return what a client's app knows of Covey."""
        node = self._nodes.get(client)
        return NodeKind.COVEY if node is None else self._kind_of_node.get(node, NodeKind.COVEY)

    def report_of(self, client: int) -> Message | None:
        """Return a plain client's report of the initial model, if it was asked for one."""
        return self._answers.get(self._nodes.get(client, 0))

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
            present: Collection[int] = self._name_of_node
        else:
            present = list(grid.get_node_ids())
        if self.keys is not None and self.plain is False:
            return []
        known = self._kind_of_node if self.plain is not False else self._name_of_node
        unknown = [node for node in present if node not in known and node not in resting]
        if unknown:
            self._ask_kinds(grid, unknown, limit)
        return unknown

    def _ask_kinds(self, grid: Grid, nodes: Collection[int], limit: float) -> None:
        """Ask nodes who they are, and those that do not know the question for the mod."""
        stated: dict[int, str] = {}
        plain = set(nodes)
        if not self.plain:
            stated, plain, failed = ask_who(grid, nodes, limit)
            self._failed = {**self._failed, **failed}
            self._kind_of_node |= dict.fromkeys(stated, NodeKind.COVEY)
        if self.plain is not False:
            self._kind_of_node |= dict.fromkeys(plain, NodeKind.PLAIN)
        if self.plain is None and plain and self.question is not None:
            with_mod, others = ask_for_mod(grid, plain, self.question, max(limit, self.patience))
            self._kind_of_node |= dict.fromkeys(with_mod, NodeKind.MOD)
            stated |= with_mod
            self._answers |= others
        if self.keys is None:
            self._name_of_node |= {node: printable(name)[:LONGEST] for node, name in stated.items()}

    def _unnamed(self) -> list[int]:
        """Return plain nodes without a name."""
        kinds = self._kind_of_node.items()
        return [node for node, kind in kinds if kind is not NodeKind.COVEY and node not in self._name_of_node]

    def _name_registered(self, grid: Grid) -> None:
        """Name plain nodes as they were registered, where clients have names."""
        if not self.names or not (unnamed := set(self._unnamed())):
            return
        for node in grid.get_nodes():
            if int(node.node_id) in unnamed and str(node.name) in self.names:
                self._name_of_node[int(node.node_id)] = str(node.name)

    def _number(self, grid: Grid) -> None:
        """Name plain nodes by their places in the order of registration."""
        unnamed, taken = set(self._unnamed()), set(self._name_of_node.values())
        for place, node in enumerate(sorted(grid.get_nodes(), key=_registered)):
            if int(node.node_id) in unnamed:
                name = str(place)
                while name in taken:
                    name = f"{name}+"
                taken.add(name)
                self._name_of_node[int(node.node_id)] = name
                self._numbered_nodes.add(int(node.node_id))

    def _replace_gone(self, grid: Grid) -> None:
        """Give new plain nodes the places of numbered ones that are gone: a restart may change a node's number."""
        if not self._numbered_nodes or not (unnamed := set(self._unnamed())):
            return
        nodes = sorted(grid.get_nodes(), key=_registered)
        present = {int(node.node_id) for node in nodes}
        held = {self._name_of_node[node] for node in self._numbered_nodes & present}
        once = [self._name_of_node[node] for node in self._numbered_nodes if node not in present]
        free = sorted((name for name in set(once) - held if name in self._numbers), key=_in_order)
        newcomers = (int(node.node_id) for node in nodes if int(node.node_id) in unnamed)
        for name, node in zip(free, newcomers, strict=False):
            self._name_of_node[node] = name
            self._numbered_nodes.add(node)
            _log.warning(
                "A node takes the place of client %s, whose node left. Whether it is the same client, only keys= tell.",
                name,
            )

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
            # A numbered node that comes back has its place again.
            numbered = [number for number in numbers if number in self._numbered_nodes]
            self._nodes[self._numbers[name]] = numbered[0] if numbered else numbers[-1] if first is None else first
            if first is not None or self.keys is not None:
                self._bound.add(name)
            for number in numbers if first is not None else ():
                if number != first:
                    reason = f"it states the name {name}, which is registered with another key"
                    key = fingerprint(bytes(present[number].public_key))
                    self.refused.append(RefusedNode(name=name, key=key, reason=reason))

    def identities(self) -> dict[str, str]:
        """Return connected client's name → how it is known: by a pinned or registered key, its word, a number."""
        known = "pinned key" if self.keys is not None else "registered key"
        found = {}
        for client, node in sorted(self._nodes.items()):
            name = self.names[client]
            word = "numbered" if node in self._numbered_nodes else "claimed"
            found[name] = known if name in self._bound else word
        return found

    def _absent(self, seen: set[str], connected: int) -> str:
        after, there = f"after {self.patience:g} seconds", f"(nodes connected: {connected})"
        unnamed = len(self._unnamed())
        said = f" A node was asked who it is, and {next(iter(self._failed.values()))}." if self._failed else ""
        if self.names:
            absent = [name for name in self.names if name not in seen]
            listed = f"{', '.join(absent[:10])}{' …' * (len(absent) > 10)}"
            remedy = " Apps without Covey state no name: give keys=, or register their nodes under these names."
            return f"Not there {after}: {listed} {there}.{remedy * (unnamed > 0)}{said}"
        return (
            f"{self.clients} clients are expected, and {after} {len(seen) + unnamed} have said who they are {there}: "
            f"start more nodes, expect fewer, or wait longer (patience).{said}"
        )


def _in_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _registered(node: Any) -> tuple[str, int]:
    """Return a node's key in the order of registration."""
    return str(node.registered_at), int(node.node_id)
