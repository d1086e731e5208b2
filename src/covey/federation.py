"""A federation: clients' samples, and the truth about them that only evaluation may see."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covey.config import Config
from covey.data.dataset import Dataset, load_dataset
from covey.environments import FloatArray, IntArray, deal, deal_regardless_of_class
from covey.randomness import generator


@dataclass(frozen=True, eq=False)
class Truth:
    """What nobody outside evaluation may know: each client's class shares and skew."""

    shares: FloatArray
    """`[clients, classes]`, rows sum to one."""
    skew: FloatArray
    """`[clients]`: the environment's own parameter (α), or else the distance of the shares from the overall mix."""


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set dealt to clients."""

    dataset: Dataset
    parts: list[Tensor]
    """Indices into the training samples, one int64 tensor per client."""
    shared: bool
    """Whether clients share samples."""
    skew: FloatArray | None = None

    @property
    def clients(self) -> int:
        return len(self.parts)

    @cached_property
    def sizes(self) -> IntArray:
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    @cached_property
    def truth(self) -> Truth:
        labels = self.dataset.y
        counts = np.stack(
            [torch.bincount(labels[part], minlength=self.dataset.classes).numpy() for part in self.parts]
        ).astype(np.float64)
        shares = counts / counts.sum(axis=1, keepdims=True)
        if self.skew is not None:
            return Truth(shares, self.skew)
        overall = counts.sum(axis=0) / counts.sum()
        return Truth(shares, np.abs(shares - overall).sum(axis=1) / 2)

    def merged(self) -> "Federation":
        """All data in one place: one client that holds every sample anybody holds, once."""
        return replace(self, parts=[torch.unique(torch.cat(self.parts))], shared=False, skew=None)

    def without_skew(self, seed: int) -> "Federation":
        """The IID reference: the same clients with the same numbers of samples, dealt regardless of class."""
        rng = generator(seed, "iid reference")
        hands = deal_regardless_of_class(len(self.dataset.y), self.sizes.tolist(), rng)
        parts = [torch.from_numpy(hand) for hand in hands]
        return replace(self, parts=parts, shared=int(self.sizes.sum()) > len(self.dataset.y), skew=None)


def build_federation(config: Config) -> Federation:
    """The federation that a configuration describes."""
    folder = Path(config.data_dir) if config.data_dir else None
    dataset = load_dataset(config.dataset.name, folder, dict(config.dataset.options))
    dealt = deal(
        config.environment.name,
        dict(config.environment.options),
        dataset.y.numpy(),
        dataset.classes,
        config.clients,
        generator(config.seed, "environment"),
    )
    return Federation(dataset, [torch.from_numpy(part) for part in dealt.parts], dealt.shared, dealt.skew)
