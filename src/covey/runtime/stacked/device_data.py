"""Samples resident on the device, and who holds which, as flat tables."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.data.dataset import Dataset, Samples
from covey.environment.alterations import FEATURES, alter_images
from covey.environment.federated_data import Federation


class Gallery:
    """A data set's training samples on the device, once as they are and once more for each way they are altered."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.dataset = dataset
        self.device = device
        self.x = dataset.x.to(device)
        self.test_x = dataset.test_x.to(device)
        self.test_y = dataset.test_y.to(device)
        self._starts: dict[str | None, int] = {None: 0}

    def start(self, kind: str | None) -> int:
        """Where the samples altered in this way begin; they are added when they are first asked for."""
        if kind not in self._starts:
            white = int(self.dataset.x.max())
            feature = next(feature for feature in FEATURES if feature == kind)
            self._starts[kind] = len(self.x)
            self.x = torch.cat([self.x, alter_images(self.dataset.x, feature, white).to(self.device)])
        return self._starts[kind]


@dataclass(frozen=True, eq=False)
class Table:
    """Each client's samples one after another."""

    sample: Tensor
    """`[total]`, int32: place in the gallery."""
    label: Tensor
    """`[total]`, int64"""
    start: Tensor
    """`[clients]`, int64: where a client's samples begin."""

    def to(self, device: torch.device) -> "Table":
        return Table(self.sample.to(device), self.label.to(device), self.start.to(device))


@dataclass(frozen=True, eq=False)
class Holdings:
    """Who holds what, on the device and on the host."""

    resident: Table
    host: Table
    sizes: np.ndarray
    """`[clients]`"""

    def on(self, device: torch.device) -> Table:
        return self.host if device.type == "cpu" else self.resident

    def samples(self, clients: list[int], gallery: Gallery) -> tuple[Samples, list[int]]:
        """The samples of these clients one after another, on the device, and how many each has."""
        counts = [int(self.sizes[client]) for client in clients]
        begin = self.host.start[clients].tolist()
        places = np.concatenate([np.arange(at, at + count) for at, count in zip(begin, counts, strict=True)])
        index = torch.from_numpy(places).to(gallery.device)
        return Samples(gallery.x[self.resident.sample[index]], self.resident.label[index]), counts

    @classmethod
    def of(cls, federation: Federation, gallery: Gallery) -> "Holdings":
        kinds = federation.altered.features if federation.altered else (None,) * federation.clients
        samples = [part + gallery.start(kind) for part, kind in zip(federation.parts, kinds, strict=True)]
        if federation.altered:
            labels = [federation.labels(client) for client in range(federation.clients)]
        else:
            labels = [federation.dataset.y[part] for part in federation.parts]
        begin = np.concatenate([[0], np.cumsum(federation.sizes)[:-1]])
        host = Table(torch.cat(samples).to(torch.int32), torch.cat(labels), torch.from_numpy(begin))
        return cls(host.to(gallery.device), host, federation.sizes)
