"""Samples on the device, and tables of each client's samples."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.client.holdout import trained_on, training_places
from covey.client.trainer_fit import class_counts
from covey.data.dataset import Dataset, Samples
from covey.data.sample_store import OnDevice, SampleStore, brightest, in_place_of_tensor, stored
from covey.environment.alterations import FEATURES, alter_images
from covey.environment.client_parts import together
from covey.environment.federated_data import Federation
from covey.errors import require

_PIECE_BYTES = 1 << 24
"""Bytes of samples that are read at a time."""


class DeviceDataset:
    """A dataset on the device: training samples as they are, then a copy of all of them for each alteration in use.

    Where they do not fit (`streams`), `x` holds the samples of the launch alone, read when it begins; rows are numbered
    as if it held all.
    """

    def __init__(self, dataset: Dataset, device: torch.device, memory: int = 0) -> None:
        self.dataset = dataset
        self.device = device
        store = stored(dataset.x)
        self.streams = store is not None and not _fits(store, device, memory)
        empty = torch.empty(0, *dataset.shape, dtype=dataset.x.dtype, device=device)
        self.x: Tensor = empty if self.streams else dataset.x.to(device)
        tests = stored(dataset.test_x)
        apart = tests is not None and not _fits(tests, device, memory)
        self.test_x = in_place_of_tensor(OnDevice(tests, device)) if tests and apart else dataset.test_x.to(device)
        self.test_y = dataset.test_y.to(device)
        self._starts: dict[str | None, int] = {None: 0}

    def start(self, kind: str | None) -> int:
        """Return the row of `x` where samples altered in this way begin; the first call for a kind appends them."""
        if kind not in self._starts and self.streams:
            self._starts[kind] = len(self._starts) * len(self.dataset.x)
            require(self._starts[kind] + len(self.dataset.x) < 1 << 31, "There are too many samples for the stack.")
        elif kind not in self._starts:
            whole = self.dataset.x if stored(self.dataset.x) is None else self.x[: len(self.dataset.x)]
            self._starts[kind] = len(self.x)
            self.x = torch.cat([self.x, self._altered(whole, kind).to(self.device)])
        return self._starts[kind]

    def _altered(self, x: Tensor, kind: str | None) -> Tensor:
        if kind is None:
            return x
        feature = next(feature for feature in FEATURES if feature == kind)
        return alter_images(x, feature, self._white)

    @cached_property
    def _white(self) -> int:
        return brightest(self.dataset.x)

    def rows(self, places: Tensor) -> Tensor:
        """Return these rows, on the device."""
        if not self.streams:
            return self.x[places]
        count = len(self.dataset.x)
        found = self.dataset.x[places.cpu().long() % count]
        for kind, start in self._starts.items():
            here = (places.cpu().long() // count) == start // count
            if kind is not None and bool(here.any()):
                found[here] = self._altered(found[here], kind)
        return found.to(self.device)

    def placed(self, sample: Tensor) -> Tensor:
        """Return where a launch's rows lie in `x`; where samples do not fit, they are read into it now."""
        if not self.streams:
            return sample
        used, places = torch.unique(sample, return_inverse=True)
        if len(used) > len(self.x):
            # Its size changes seldom: another tensor means that steps are recorded anew.
            room = 1 << (len(used) - 1).bit_length()
            self.x = torch.zeros(room, *self.dataset.shape, dtype=self.x.dtype, device=self.device)
        at_once = max(1, _PIECE_BYTES // max(1, self.x[:1].nbytes))
        for at in range(0, len(used), at_once):
            self.x[at : at + at_once][: len(used) - at] = self.rows(used[at : at + at_once])
        found: Tensor = places.to(sample.dtype)
        return found


def _fits(store: SampleStore, device: torch.device, memory: int) -> bool:
    """True if all rows fit: into the memory that the host gives them, or into a third of a GPU's."""
    if device.type != "cuda":
        return store.resident
    room = torch.cuda.mem_get_info(device)[0]
    return 3 * store.nbytes <= min(memory or room, room)


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The samples of a table's clients, one client after another."""

    sample: Tensor
    """`[total]`, int32: row of `DeviceDataset.x`."""
    label: Tensor
    """`[total]`, int64, or `[total, targets]` where there are no classes"""
    start: Tensor
    """`[rows]`, int64: where each client's samples begin."""

    def to(self, device: torch.device) -> "SampleTable":
        return SampleTable(self.sample.to(device), self.label.to(device), self.start.to(device))


MOST_RESIDENT = 1 << 24
"""Most samples of all clients that a table holds at once; beyond, there is one for the clients of each order."""


@dataclass(frozen=True, eq=False)
class ClientTables:
    """The sample table of a federation, or of some of its clients, on the device and on the host."""

    resident: SampleTable
    host: SampleTable
    sizes: IntArray
    """`[clients]`: number of samples of every client."""
    clients: Tensor | None = None
    """`[rows]`, ascending: the clients in the table; None if all are."""
    _class_counts: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Client and holdout → its class counts, once they are known."""

    def on(self, device: torch.device) -> SampleTable:
        """Return the table on this device, which is the host or the device."""
        return self.host if device.type == "cpu" else self.resident

    def rows(self, clients: Tensor) -> Tensor:
        """Return these clients' rows in the table: int64, on their device."""
        return clients if self.clients is None else torch.searchsorted(self.clients.to(clients.device), clients)

    def samples(self, clients: list[int], data: DeviceDataset) -> tuple[Samples, list[int]]:
        """Return these clients' samples one client after another, on the device, and each client's count."""
        counts = [int(self.sizes[client]) for client in clients]
        begin = self.host.start[self.rows(torch.tensor(clients))].tolist()
        places = np.concatenate([np.arange(at, at + count) for at, count in zip(begin, counts, strict=True)])
        index = torch.from_numpy(places).to(data.device)
        return Samples(data.rows(self.resident.sample[index]), self.resident.label[index]), counts

    def class_counts(self, client: int, holdout: int, classes: int) -> Tensor:
        """Return a client's training samples of each class, `[classes]`, on the host."""
        known = client, holdout
        if known not in self._class_counts:
            numbers = torch.arange(trained_on(int(self.sizes[client]), holdout))
            places = training_places(numbers, holdout) if holdout else numbers
            labels = self.host.label[int(self.host.start[self.rows(torch.tensor(client))]) + places]
            self._class_counts[known] = class_counts(labels, classes)
        return self._class_counts[known]

    @classmethod
    def of(cls, federation: Federation, data: DeviceDataset, only: IntArray | None = None) -> "ClientTables":
        """Build the tables of all clients or of `only` some, and put the altered samples they need on the device."""
        clients = np.arange(federation.clients) if only is None else np.unique(only)
        altered = federation.altered
        if altered is None:
            sample = together(federation.parts, clients)
            label = federation.dataset.y[sample]
        else:
            numbers = clients.tolist()
            starts = (data.start(altered.features[client]) for client in numbers)
            parts = [federation.parts[client] + at for client, at in zip(numbers, starts, strict=True)]
            sample, label = torch.cat(parts), torch.cat([federation.labels(client) for client in numbers])
        begin = np.concatenate([[0], np.cumsum(federation.sizes[clients])[:-1]])
        host = SampleTable(sample.to(torch.int32), label, torch.from_numpy(begin))
        held = None if only is None else torch.from_numpy(clients)
        return cls(host.to(data.device), host, federation.sizes, held)
