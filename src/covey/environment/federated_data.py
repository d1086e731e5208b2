"""A federation: the clients' samples, and the truth about them, which only evaluation may see."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.config.sections import Alterations
from covey.data.dataset import Dataset, Samples
from covey.environment.alterations import Altered, alter_images, alter_labels
from covey.environment.partition import split_regardless_of_class
from covey.randomness import generator, key


@dataclass(frozen=True, eq=False)
class Truth:
    """Each client's class shares and skew. Only evaluation may know them."""

    shares: FloatArray
    """`[clients, classes]`, rows sum to one."""
    skew: FloatArray
    """`[clients]`: the environment's own parameter (α), or the distance of the shares from the overall mix."""

    @cached_property
    def mean_shares(self) -> FloatArray:
        """`[classes]`: mean over clients, each with the same weight."""
        mean: FloatArray = self.shares.mean(axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set split among clients."""

    dataset: Dataset
    parts: list[Tensor]
    """Indices into the training samples, one int64 tensor per client."""
    shared: bool
    """True if clients share samples."""
    skew: FloatArray | None = None
    names: tuple[str, ...] = ()
    """The clients' names, if the data has any."""
    alterations: Alterations = field(default_factory=Alterations)
    altered: Altered | None = None
    """The clients whose images or labels are altered; None if there are none."""
    seed: int = 0
    """Seed of the noisy labels."""

    @property
    def clients(self) -> int:
        return len(self.parts)

    @cached_property
    def sizes(self) -> IntArray:
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def samples(self, client: int) -> Samples:
        """Return a client's samples, altered if the client is."""
        x = self.dataset.x[self.parts[client]]
        if self.altered is not None:
            x = alter_images(x, self.altered.features[client], self._white)
        return Samples(x, self.labels(client))

    def labels(self, client: int) -> Tensor:
        """Return a client's labels, altered if the client is."""
        y = self.dataset.y[self.parts[client]]
        if self.altered is None:
            return y
        label_key = key(self.seed, client, "labels")
        return alter_labels(y, self.dataset.classes, self.alterations.noise, self.altered.poisoned[client], label_key)

    @cached_property
    def _white(self) -> int:
        return int(self.dataset.x.max()) if self.dataset.x.dtype == torch.uint8 else 255

    @property
    def known(self) -> bool:
        """True if the samples are the clients' own; False for placeholders, about which `truth` says nothing."""
        return not self.dataset.blank

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

    @cached_property
    def fingerprint(self) -> str:
        """Digest of exactly these samples, split in exactly this way."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.dataset.x, self.dataset.y, self.dataset.test_x, self.dataset.test_y, *self.parts):
            digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def merged(self) -> "Federation":
        """Return a federation of one client that holds all clients' samples, each once and unaltered."""
        together = torch.unique(torch.cat(self.parts))
        return replace(self, parts=[together], shared=False, skew=None, names=(), altered=None)

    def without_skew(self, seed: int) -> "Federation":
        """Return the IID reference: clients of the same sizes, with samples regardless of class, unaltered."""
        rng = generator(seed, "iid reference")
        split = split_regardless_of_class(len(self.dataset.y), self.sizes.tolist(), rng)
        parts = [torch.from_numpy(part) for part in split]
        return replace(self, parts=parts, shared=int(self.sizes.sum()) > len(self.dataset.y), skew=None, altered=None)
