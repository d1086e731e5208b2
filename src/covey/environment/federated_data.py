"""A federation: clients' samples, and the truth about them that only evaluation may see."""

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
from covey.environment.partition import deal_regardless_of_class
from covey.randomness import generator, key


@dataclass(frozen=True, eq=False)
class Truth:
    """What nobody outside evaluation may know: each client's class shares and skew."""

    shares: FloatArray
    """`[clients, classes]`, rows sum to one."""
    skew: FloatArray
    """`[clients]`: the environment's own parameter (α), or else the distance of the shares from the overall mix."""

    @cached_property
    def mean_shares(self) -> FloatArray:
        """`[classes]`: over clients, each as much as any other."""
        mean: FloatArray = self.shares.mean(axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set dealt to clients."""

    dataset: Dataset
    parts: list[Tensor]
    """Indices into the training samples, one int64 tensor per client."""
    shared: bool
    """Whether clients share samples."""
    skew: FloatArray | None = None
    names: tuple[str, ...] = ()
    """What the data calls its clients, where it does."""
    alterations: Alterations = field(default_factory=Alterations)
    altered: Altered | None = None
    """Which clients' images or labels are altered, where any are."""
    seed: int = 0
    """Decides which labels are noisy."""

    @property
    def clients(self) -> int:
        return len(self.parts)

    @cached_property
    def sizes(self) -> IntArray:
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def samples(self, client: int) -> Samples:
        """What a client holds, altered where it is one of those."""
        x = self.dataset.x[self.parts[client]]
        if self.altered is not None:
            x = alter_images(x, self.altered.features[client], self._white)
        return Samples(x, self.labels(client))

    def labels(self, client: int) -> Tensor:
        """A client's labels, altered where it is one of those."""
        y = self.dataset.y[self.parts[client]]
        if self.altered is None:
            return y
        place = key(self.seed, client, "labels")
        return alter_labels(y, self.dataset.classes, self.alterations.noise, self.altered.poisoned[client], place)

    @cached_property
    def _white(self) -> int:
        return int(self.dataset.x.max()) if self.dataset.x.dtype == torch.uint8 else 255

    @property
    def known(self) -> bool:
        """Whether the samples are those that clients hold; of blanks in their place, `truth` says nothing."""
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
        """A short name for exactly these samples dealt in exactly this way."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.dataset.x, self.dataset.y, self.dataset.test_x, self.dataset.test_y, *self.parts):
            digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def merged(self) -> "Federation":
        """All data in one place: one client that holds every sample anybody holds, once, and unaltered."""
        together = torch.unique(torch.cat(self.parts))
        return replace(self, parts=[together], shared=False, skew=None, names=(), altered=None)

    def without_skew(self, seed: int) -> "Federation":
        """The IID reference: the same clients with as many samples each, dealt regardless of class, and unaltered."""
        rng = generator(seed, "iid reference")
        hands = deal_regardless_of_class(len(self.dataset.y), self.sizes.tolist(), rng)
        parts = [torch.from_numpy(hand) for hand in hands]
        return replace(self, parts=parts, shared=int(self.sizes.sum()) > len(self.dataset.y), skew=None, altered=None)
