"""SimHash: fingerprints of clients' data, close in Hamming distance for similar data (Cao et al., NCCB, eqs. 5 to 7).

Each word is hashed to as many bits as the fingerprint has. A bit of 1 adds the word's weight to the sum at its place, a
bit of 0 subtracts it; the fingerprint is the sign of the sums. The expected share of bits in which two texts differ is
the angle between their word counts, over π. A client sends only the bits.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey import randomness
from covey.arrays import FloatArray, IntArray
from covey.core.interfaces import Probe
from covey.errors import Refusal, require
from covey.registries import probes

if TYPE_CHECKING:
    from covey.client.learner import Learner
    from covey.data.dataset import Samples

Form = Literal["auto", "tokens", "quantised", "projection"]
StopWordHash = Literal["ignore", "hash"]
Bits = NDArray[np.bool_]
Packed = NDArray[np.uint8]

_rooms = threading.local()

_SIGNS_KEPT = 1 << 20
"""Most signs of coordinates that are kept as numbers, to multiply by."""

FORMS = ("auto", "tokens", "quantised", "projection")


@probes.add("simhash")
@dataclass(frozen=True)
class SimHash(Probe):
    """A fingerprint of the client's samples. It does not depend on the model.

    Sent: `bits`, uint8 `[bits / 8]`.

    form: the values that are hashed. tokens counts the words of texts, without those that are never an answer in the
        data set (padding, unknown words). It counts words in samples and not in labels: a word weighs as often as it
        occurs in a window, and one that occurs only as a label, such as a text's last, weighs nothing. quantised and
        projection take the mean of the normalised samples: quantised hashes some of its values, projection all. auto
        is tokens for texts (samples of integers) and projection otherwise.
    step: η of the quantised form (equation 5), in standard deviations of the data set.
    stop_words: ignore leaves the stop words of a text out of its fingerprint, as the paper does, whether or not models
        are trained on them: they are the same in all texts, and hide what a text is about. hash counts them as any
        other word. A client knows stop words by their numbers, which the data set names (`Dataset.stop_words`; those
        in `covey.data.text` do) and a simulation or a fleet's server tells it. Where nobody names them, as in a Flower
        client app of your own, all words are hashed.
    """

    bits: int = 64
    form: Form = "auto"
    step: float = 1.0
    stop_words: StopWordHash = "ignore"

    name = "simhash"
    uses_model = False

    def __post_init__(self) -> None:
        require(
            8 <= self.bits <= 256 and self.bits % 8 == 0,
            f"bits must be a multiple of 8 from 8 to 256, not {self.bits}.",
        )
        require(self.form in FORMS, f"form is auto, tokens, quantised or projection, not '{self.form}'.")
        require(self.step > 0, f"step must be above 0, not {self.step:g}.")
        require(self.stop_words in ("ignore", "hash"), f"stop_words is ignore or hash, not '{self.stop_words}'.")

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"bits": (self.bits // 8,)}

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        return {"bits": torch.from_numpy(packed(self._fingerprint(learner, samples)))}

    def _fingerprint(self, learner: "Learner", samples: "Samples") -> Bits:
        texts = is_text(samples.x)
        form = self.form if self.form != "auto" else "tokens" if texts else "projection"
        if texts != (form == "tokens"):
            have, can = ("words", "auto or tokens") if texts else ("no words", "auto, quantised or projection")
            raise Refusal(f"The samples are {have}, for which the form is {can}, not {form}.")
        if form == "tokens":
            stopped = learner.stop_words if self.stop_words == "ignore" else ()
            return of_tokens(samples.x, self.bits, ignored=[*learner.never.tolist(), *stopped])
        mean = mean_input(learner, samples.x)
        return projected(mean, self.bits) if form == "projection" else quantised(mean, self.bits, self.step)


def is_text(x: Tensor) -> bool:
    """True if stored samples are tokens (integers; images are bytes) and not measurements."""
    return x.dtype != torch.uint8 and not x.is_floating_point()


def of_tokens(tokens: Tensor, bits: int = 64, ignored: Sequence[int] = ()) -> Bits:
    """Return the fingerprint of token ids of any shape, each weighted by its count: `[bits]`."""
    different, counts = (values.cpu().numpy() for values in torch.unique(tokens, return_counts=True))
    kept = ~np.isin(different, np.asarray(ignored, dtype=np.int64))
    return fingerprint(hashes_of_numbers(different[kept], bits), counts[kept])


def of_words(words: Sequence[str], bits: int = 64) -> Bits:
    """Return the fingerprint of a text, each word weighted by its count: `[bits]`."""
    different, counts = np.unique(np.array(words, dtype=object), return_counts=True)
    return fingerprint(hashes_of_words(different.tolist(), bits), counts)


def projected(vector: FloatArray, bits: int = 64) -> Bits:
    """Return the side of `bits` random hyperplanes on which `[d]` lies: SimHash of coordinates weighted by value."""
    if len(vector) * bits <= _SIGNS_KEPT:
        # The same sums as below, of the same numbers in the same order.
        signs = _signs_of_coordinates(len(vector), bits)
        sums: FloatArray = np.multiply(signs, vector[:, None], out=_room(signs)).sum(axis=0)
        return sums > 0
    return fingerprint(_hashes_of_coordinates(len(vector), bits), vector)


def quantised(vector: FloatArray, bits: int = 64, step: float = 1.0) -> Bits:
    """True where h_i = ⌊(v_i' - b_i) / η⌋ is odd, for random coordinates v' and offsets b in [0, η) (equation 5).

    Two values less than a step apart differ in a bit with a probability of their distance in steps.
    """
    chosen, shares = _places(len(vector), bits)
    odd: Bits = np.floor((vector[chosen] - shares * step) / step) % 2 == 1
    return odd


def fingerprint(hashes: Bits, weights: NDArray[Any]) -> Bits:
    """Combine hashes `[features, bits]` with weights `[features]` to one fingerprint `[bits]` (equation 7).

    A sum of exactly 0, which the paper does not define, gives 0.
    """
    sums: FloatArray = weighted(hashes, weights).sum(axis=0)
    return sums > 0


def weighted(hashes: Bits, weights: NDArray[Any]) -> FloatArray:
    """Return w_i where a feature's bit is 1, else -w_i (equation 6): `[features, bits]`."""
    values = np.asarray(weights, dtype=np.float64)[:, None]
    return np.where(hashes, values, -values)


def hashes_of_numbers(numbers: IntArray, bits: int = 64) -> Bits:
    """Hash integers, the same on every machine: `[n, bits]`."""
    pieces = -(-bits // 64)
    words = randomness.bits(randomness.as_tensor(randomness.keys("simhash", numbers)), pieces).numpy()
    places = np.arange(64, dtype=np.uint64)
    hashes: Bits = ((words.view(np.uint64)[:, :, None] >> places) & np.uint64(1)) == 1
    return hashes.reshape(len(numbers), 64 * pieces)[:, :bits]


def hashes_of_words(words: Sequence[str], bits: int = 64) -> Bits:
    """Hash words (BLAKE2b), the same on every machine: `[n, bits]`."""
    digests = [list(hashlib.blake2b(word.encode(), digest_size=bits // 8).digest()) for word in words]
    return unpacked(np.array(digests, dtype=np.uint8).reshape(len(words), bits // 8))


def packed(bits: Bits) -> Packed:
    """Pack bits `[..., bits]` into bytes `[..., bits / 8]`."""
    return np.packbits(bits, axis=-1)


def unpacked(contexts: Packed) -> Bits:
    """Unpack bytes `[..., bits / 8]` into bits `[..., bits]`."""
    return np.unpackbits(contexts, axis=-1).view(np.bool_)


def hamming(one: Bits, other: Bits) -> IntArray:
    """Return the number of bits in which fingerprints `[..., bits]` differ."""
    different: IntArray = np.count_nonzero(one != other, axis=-1)
    return different


def mean_input(learner: "Learner", x: Tensor) -> FloatArray:
    """Return the mean of stored samples `[n, ...]`, normalised per channel and flat: `[d]`.

    Bytes are summed as integers and the rest is computed on the host, so that a GPU gives the same bits.
    """
    mean = _total(x).double() / len(x)
    normalised = mean * learner.scale.cpu().double() + learner.shift.cpu().double()
    values: FloatArray = normalised.flatten().numpy()
    return values


def _total(x: Tensor) -> Tensor:
    """Return the sum of samples `[n, ...]`, on the host: of whole numbers int64, of others float64."""
    if x.is_floating_point():
        return x.sum(dim=0, dtype=torch.float64).cpu()
    if x.device.type != "cpu":
        return x.sum(dim=0, dtype=torch.int64).cpu()
    # PyTorch makes a copy of all samples as int64 first. Those of many clients leave memory full of holes.
    return torch.from_numpy(np.asarray(x.numpy().sum(axis=0, dtype=np.int64)))


@lru_cache(maxsize=4)
def _hashes_of_coordinates(count: int, bits: int) -> Bits:
    return hashes_of_numbers(np.arange(count), bits)


@lru_cache(maxsize=4)
def _signs_of_coordinates(count: int, bits: int) -> FloatArray:
    """Return 1 where a coordinate's bit is 1, else -1: `[count, bits]`."""
    return np.where(_hashes_of_coordinates(count, bits), 1.0, -1.0)


def _room(like: FloatArray) -> FloatArray:
    """Return an array of the same shape to write to, one a thread.

    A million clients that each take and free megabytes, and leave a few bytes behind, would leave memory full of holes.
    """
    room: FloatArray | None = getattr(_rooms, "room", None)
    if room is None or room.shape != like.shape:
        room = _rooms.room = np.empty_like(like)
    return room


@lru_cache(maxsize=4)
def _places(count: int, bits: int) -> tuple[IntArray, FloatArray]:
    """Return the coordinate of each bit, none repeated before all are used, and its offset in steps."""
    passes = range(-(-bits // count))
    orders = [randomness.permutation(randomness.key("simhash", "coordinates", at), count) for at in passes]
    chosen = torch.cat(orders)[:bits]
    shares = randomness.uniform(randomness.key("simhash", "offsets"), bits)
    return chosen.numpy(), shares.double().numpy()
