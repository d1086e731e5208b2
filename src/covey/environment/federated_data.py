"""A federation: the clients' samples, and the truth about them, which only evaluation may see."""

import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.config.sections import Alterations
from covey.data.dataset import Dataset, Samples
from covey.data.sample_store import brightest, in_place_of_tensor, stored
from covey.environment.alterations import Altered, alter_images, alter_labels
from covey.environment.client_parts import ClientParts, blocks_of, together
from covey.environment.partition import split_regardless_of_class
from covey.environment.truth import Truth
from covey.randomness import generator, key


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """A data set split among clients."""

    dataset: Dataset
    parts: Sequence[Tensor]
    """Indices into the training samples, one int64 tensor per client: a list, or a plan that makes them (`ClientParts`)
    when they are asked for."""
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
    test_parts: list[Tensor] | None = None
    """Each client's own rows of the test set, an int64 tensor per client, possibly empty; None if they have none."""

    def __repr__(self) -> str:
        sizes = self.sizes
        spread = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        return f"Federation({self.dataset.name}: {self.clients:,} clients of {spread} samples)"

    def _repr_html_(self) -> str:
        return html.escape(repr(self))

    @property
    def clients(self) -> int:
        return len(self.parts)

    @cached_property
    def sizes(self) -> IntArray:
        if isinstance(self.parts, ClientParts):
            return self.parts.sizes
        return np.array([len(part) for part in self.parts], dtype=np.int64)

    def class_counts(self, clients: IntArray) -> IntArray:
        """Return these clients' samples of each class, or of each group in its place, not altered: `[k, classes]`."""
        bins, count = self.dataset.bins, self.dataset.bin_count
        if isinstance(self.parts, ClientParts):
            return self.parts.class_counts(clients, bins, count)
        return np.stack([np.bincount(bins[self.parts[one].numpy()], minlength=count) for one in clients])

    def samples(self, client: int) -> Samples:
        """Return a client's samples, altered if the client is."""
        x = self.dataset.x[self.parts[client]]
        if self.altered is not None:
            x = alter_images(x, self.altered.features[client], self._white)
        return Samples(x, self.labels(client))

    def samples_in_batches(self, client: int) -> Samples:
        """Return a client's samples to train on; where memory may not hold them, batches are read one by one."""
        store = stored(self.dataset.x)
        part = store.part(self.parts[client]) if store is not None and self.altered is None else None
        return self.samples(client) if part is None else Samples(in_place_of_tensor(part), self.labels(client))

    def labels(self, client: int) -> Tensor:
        """Return a client's labels, altered if the client is."""
        y = self.dataset.y[self.parts[client]]
        if self.altered is None:
            return y
        label_key = key(self.seed, client, "labels")
        noise, poisoned = self.alterations.noise, self.altered.poisoned[client]
        return alter_labels(y, self.dataset.classes, noise, poisoned, label_key, self.dataset.learns)

    @cached_property
    def _white(self) -> int:
        return brightest(self.dataset.x)

    @property
    def known(self) -> bool:
        """True if the samples are the clients' own; False for placeholders, about which `truth` says nothing."""
        return not self.dataset.blank

    @cached_property
    def truth(self) -> Truth:
        return Truth.of(self.class_counts, self.sizes, self.dataset.bin_count, self.skew).with_tests(self.test_parts)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of exactly these samples, split in exactly this way; of samples in a store, of some of them."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (
            self.dataset.x,
            self.dataset.y,
            self.dataset.test_x,
            self.dataset.test_y,
            *self.parts,
            *(self.test_parts or ()),
        ):
            if (store := stored(tensor)) is not None:
                digest.update(store.digest())
                continue
            digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        if self.dataset.stated_scale:
            digest.update(repr((self.dataset.mean, self.dataset.deviation)).encode())
        return digest.hexdigest()

    def held(self) -> Tensor:
        """Return the training samples that some client holds, ascending and each once."""
        seen = torch.zeros(len(self.dataset.y), dtype=torch.bool)
        for clients in blocks_of(self.sizes):
            seen[together(self.parts, clients)] = True
            # A million clients that share a few thousand samples have soon used them all.
            if bool(seen.all()):
                break
        return torch.nonzero(seen).flatten()

    def merged(self) -> "Federation":
        """Return a federation of one client that holds all clients' samples, each once and unaltered."""
        return replace(self, parts=[self.held()], shared=False, skew=None, names=(), altered=None, test_parts=None)

    def without_skew(self, seed: int) -> "Federation":
        """Return the IID reference: clients of the same sizes, with samples regardless of class, unaltered."""
        rng = generator(seed, "iid reference")
        keyed = isinstance(self.parts, ClientParts) and self.parts.keyed
        split = split_regardless_of_class(len(self.dataset.y), self.sizes, rng, keyed=keyed)
        shared = int(self.sizes.sum()) > len(self.dataset.y)
        return replace(self, parts=ClientParts.of(split), shared=shared, skew=None, altered=None, test_parts=None)
