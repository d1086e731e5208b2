"""Samples on the device, and tables of each client's samples."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.data.dataset import Dataset, Samples
from covey.environment.alterations import FEATURES, alter_images
from covey.environment.federated_data import Federation


class DeviceDataset:
    """A dataset on the device: training samples as they are, then a copy of all of them for each alteration in use."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.dataset = dataset
        self.device = device
        self.x = dataset.x.to(device)
        self.test_x = dataset.test_x.to(device)
        self.test_y = dataset.test_y.to(device)
        self._starts: dict[str | None, int] = {None: 0}

    def start(self, kind: str | None) -> int:
        """Return the row of `x` where samples altered in this way begin; the first call for a kind appends them."""
        if kind not in self._starts:
            white = int(self.dataset.x.max())
            feature = next(feature for feature in FEATURES if feature == kind)
            self._starts[kind] = len(self.x)
            self.x = torch.cat([self.x, alter_images(self.dataset.x, feature, white).to(self.device)])
        return self._starts[kind]


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The samples of all clients, one client after another."""

    sample: Tensor
    """`[total]`, int32: row of `DeviceDataset.x`."""
    label: Tensor
    """`[total]`, int64"""
    start: Tensor
    """`[clients]`, int64: where each client's samples begin."""

    def to(self, device: torch.device) -> "SampleTable":
        return SampleTable(self.sample.to(device), self.label.to(device), self.start.to(device))


@dataclass(frozen=True, eq=False)
class ClientTables:
    """One federation's sample table, on the device and on the host."""

    resident: SampleTable
    host: SampleTable
    sizes: IntArray
    """`[clients]`: number of samples."""

    def on(self, device: torch.device) -> SampleTable:
        """Return the table on this device, which is the host or the device."""
        return self.host if device.type == "cpu" else self.resident

    def samples(self, clients: list[int], data: DeviceDataset) -> tuple[Samples, list[int]]:
        """Return these clients' samples one client after another, on the device, and each client's count."""
        counts = [int(self.sizes[client]) for client in clients]
        begin = self.host.start[clients].tolist()
        places = np.concatenate([np.arange(at, at + count) for at, count in zip(begin, counts, strict=True)])
        index = torch.from_numpy(places).to(data.device)
        return Samples(data.x[self.resident.sample[index]], self.resident.label[index]), counts

    @classmethod
    def of(cls, federation: Federation, data: DeviceDataset) -> "ClientTables":
        """Build a federation's tables, and put the altered samples it needs on the device."""
        kinds = federation.altered.features if federation.altered else (None,) * federation.clients
        samples = [part + data.start(kind) for part, kind in zip(federation.parts, kinds, strict=True)]
        if federation.altered:
            labels = [federation.labels(client) for client in range(federation.clients)]
        else:
            labels = [federation.dataset.y[part] for part in federation.parts]
        begin = np.concatenate([[0], np.cumsum(federation.sizes)[:-1]])
        host = SampleTable(torch.cat(samples).to(torch.int32), torch.cat(labels), torch.from_numpy(begin))
        return cls(host.to(data.device), host, federation.sizes)
