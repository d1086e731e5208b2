"""What clients keep between their visits, in a simulation: a row for each client that was ever seen.

In a run folder, rows lie in segments (`KeptSegments`): a checkpoint writes those that changed since the last one, and
holds the index alone. Without a folder, all rows are in memory and in `state_dict`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from covey.arrays import State
from covey.core.kept_segments import MOST_SEGMENTS, KeptSegments
from covey.core.trainer import KeptRow
from covey.errors import Refusal, require

_MOVED_AT_ONCE = 1 << 28
"""Most bytes of rows that are moved from old segments to a new one."""

_DEVICE_SHARE = 16
"""Rows that come from a GPU stay there while all runs' take at most this part of its memory, a sixteenth."""


@runtime_checkable
class StoresRows(Protocol):
    """A method that writes what its clients keep to the run folder, beside the checkpoint."""

    def attach_folder(self, folder: Path, *, runs: int = 1) -> None:
        """Receive the run folder, once `load_state_dict` is done; a limit on memory holds for so many runs together."""
        ...

    def checkpointed(self) -> None:
        """Remove what the last checkpoint, which is on disk now, has replaced."""
        ...


class ClientStore:
    """Client → what it kept. On real clients the rows stay there, and this holds the rounds that they are from.

    Rows that clients wrote on a GPU stay there until they are written to disk, as far as there is room.

    limit: most bytes of rows in the host's memory, once there is a folder; 0 is none. Those used least recently leave
        first.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._rounds: dict[int, int] = {}
        self._memory: dict[int, Tensor] = {}
        """Rows in memory, the one used last at the end."""
        self._bytes = 0
        """Of rows in the host's memory."""
        self._device_bytes = 0
        self._runs = 1
        """Runs that share the device."""
        self._segment_of: dict[int, int] = {}
        """Client → the segment with its row; rows that are not on disk yet have none."""
        self._sizes: dict[int, int] = {}
        """Segment → number of its rows, of which some may be of no use any more."""
        self._next = 0
        self._segments: KeptSegments | None = None

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def bytes_in_memory(self) -> int:
        return self._bytes

    def of(self, clients: Iterable[int]) -> dict[int, KeptRow]:
        """Return the rows of those of these clients that have one."""
        known = [client for client in clients if client in self._rounds]
        found = self._read([client for client in known if client not in self._memory])
        rows = {}
        for client in known:
            values = found[client] if client in found else self._memory[client]
            self._remember(client, values)
            rows[client] = KeptRow(self._rounds[client], values)
        self._make_room()
        return rows

    def put(self, t: int, rows: Mapping[int, Tensor]) -> None:
        """Keep rows that clients wrote in round `t`, in place of their earlier ones."""
        for client, values in rows.items():
            self._release(client)
            row = self._placed(values.detach())
            # A row of a larger tensor would keep all of that in memory.
            alone = row.untyped_storage().nbytes() == row.nbytes
            self._rounds[client] = t
            self._segment_of.pop(client, None)
            self._remember(client, row if alone else row.clone())
        self._make_room()

    def forget(self) -> None:
        """Drop all rows: every client is as if it had never been seen."""
        self._rounds, self._memory, self._segment_of, self._bytes, self._device_bytes = {}, {}, {}, 0, 0

    def attach(self, folder: Path, width: int, runs: int = 1) -> None:
        """Keep rows of `width` values in a run folder, from now on; what a kill has left there is removed.

        The limit, and a GPU's room, are shared by so many runs.
        """
        self.limit, self._runs = -(-self.limit // runs), runs
        segments = KeptSegments(folder)
        for client, row in self._memory.items():
            require(
                row.shape == (width,) and row.is_floating_point(),
                f"The checkpoint in {folder} does not fit its settings: client {client} kept {row.numel():,} numbers, "
                f"and its trainer keeps {width:,}.",
            )
        for number, clients in sorted(self._clients_by_segment(self._segment_of).items()):
            rounds = segments.rounds(number, width)
            self._sizes[number] = len(rounds)
            for client in clients:
                require(
                    rounds.get(client) == self._rounds[client],
                    f"The file {segments.path(number)} is not of this run: it has no row of client {client} from round "
                    f"{self._rounds[client]}.",
                )
        self._segments = segments
        self.checkpointed()

    def checkpointed(self) -> None:
        """Remove segments that nothing refers to. Called once the checkpoint with the last `state_dict` is on disk."""
        if self._segments is not None:
            used = set(self._segment_of.values())
            self._segments.remove_except(used)
            self._sizes = {number: self._sizes[number] for number in sorted(used)}

    def state_dict(self) -> State:
        """Return the index, with all rows on disk; without a folder, the rows themselves."""
        if not self._rounds:
            return {}
        clients = sorted(self._rounds)
        index = {
            "clients": torch.tensor(clients),
            "rounds": torch.tensor([self._rounds[client] for client in clients]),
        }
        if self._segments is None:
            rows = self.of(clients)
            return {**index, "rows": torch.stack([rows[client].values.cpu() for client in clients])}
        self._write_changed()
        self._compact()
        places = torch.tensor([self._segment_of[client] for client in clients])
        return {**index, "segments": places}

    def load_state_dict(self, state: State) -> None:
        limit, segments, runs = self.limit, self._segments, self._runs
        ClientStore.__init__(self, limit)
        self._segments, self._runs = segments, runs
        if not state:
            return
        clients, rounds = (_numbers(state[name], name) for name in ("clients", "rounds"))
        inline = "rows" in state
        places = state["rows"] if inline else _numbers(state["segments"], "segments")
        require(
            0 < len({*clients}) == len(clients) == len(rounds) == len(places),
            "its index of what clients keep is damaged",
        )
        self._rounds = dict(zip(clients, rounds, strict=True))
        if inline:
            for client, row in zip(clients, places, strict=True):
                self._remember(client, row.clone())
            return
        self._segment_of = dict(zip(clients, places, strict=True))
        # All rows of the last segment are of use when a checkpoint is written.
        self._next = max(places) + 1
        require(self._next < MOST_SEGMENTS, "its index of what clients keep is damaged")

    def _clients_by_segment(self, clients: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for client in clients:
            found.setdefault(self._segment_of[client], []).append(client)
        return found

    def _read(self, clients: Iterable[int]) -> dict[int, Tensor]:
        """Return rows that are on disk alone."""
        wanted = self._clients_by_segment(clients)
        if wanted and self._segments is None:
            raise Refusal("What the clients keep lies in the folder of their run, which is not at hand.")
        found: dict[int, Tensor] = {}
        for number, those in sorted(wanted.items()):
            assert self._segments is not None
            found |= self._segments.read(number, those)
        return found

    def _remember(self, client: int, values: Tensor) -> None:
        """Hold a row in memory, as the one used last."""
        self._release(client)
        self._count(values.nbytes, values.device)
        self._memory[client] = values

    def _release(self, client: int) -> None:
        """Drop a client's row from memory, if it is there."""
        before = self._memory.pop(client, None)
        if before is not None:
            self._count(-before.nbytes, before.device)

    def _count(self, size: int, device: torch.device) -> None:
        if device.type == "cpu":
            self._bytes += size
        else:
            self._device_bytes += size

    def _placed(self, row: Tensor) -> Tensor:
        """Return a new row where it is to stay: on its GPU while there is room."""
        if row.device.type == "cpu":
            return row
        room = room_on(row.device) // self._runs
        return row if self._device_bytes + row.nbytes <= room else row.cpu()

    def _make_room(self) -> None:
        """Drop rows from memory until the limit holds; those that are not on disk are written first."""
        if self._segments is None or not self.limit or self._bytes <= self.limit:
            return
        if self._dropped():
            return
        self._write_changed()
        self._dropped()

    def _dropped(self) -> bool:
        """Drop rows that are on disk, least recently used first; True once the limit holds."""
        for client, row in list(self._memory.items()):
            if self._bytes <= self.limit:
                break
            if client in self._segment_of and row.device.type == "cpu":
                self._release(client)
        return self._bytes <= self.limit

    def _write_changed(self) -> None:
        """Write the rows that are not on disk yet."""
        changed = [client for client in self._memory if client not in self._segment_of]
        if changed:
            self._write({client: KeptRow(self._rounds[client], self._memory[client]) for client in changed})

    def _write(self, rows: Mapping[int, KeptRow]) -> None:
        assert self._segments is not None
        self._segments.write(self._next, rows)
        self._sizes[self._next] = len(rows)
        self._segment_of.update(dict.fromkeys(rows, self._next))
        self._next += 1

    def _compact(self) -> None:
        """Move the rows of segments of which less than half is of use to new segments."""
        live = Counter(self._segment_of.values())
        sparse = {number for number, count in live.items() if 2 * count < self._sizes[number]}
        moved = deque(sorted(client for client, number in self._segment_of.items() if number in sparse))
        most = min(_MOVED_AT_ONCE, self.limit or _MOVED_AT_ONCE)
        while moved:
            rows: dict[int, KeptRow] = {}
            size = 0
            while moved and size < most:
                client = moved.popleft()
                values = self._memory.get(client)
                values = self._read([client])[client] if values is None else values
                rows[client] = KeptRow(self._rounds[client], values)
                size += values.nbytes
            self._write(rows)


def room_on(device: torch.device) -> int:
    """Return the bytes of a GPU that rows may take."""
    return int(torch.cuda.get_device_properties(device).total_memory) // _DEVICE_SHARE


def _numbers(value: Any, name: str) -> list[int]:
    """Return a list of whole numbers from 0 of an index; refuse anything else."""
    good = isinstance(value, Tensor) and value.dim() == 1 and value.dtype == torch.int64
    require(good and bool((value >= 0).all()), f"its {name} of what clients keep are no whole numbers")
    numbers: list[int] = value.tolist()
    return numbers
