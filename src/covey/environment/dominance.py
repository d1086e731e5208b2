"""FedACS's environments of α-dominance clients (Definitions 1, 3 and 4, Fig. 4 and section VII)."""

import heapq
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray
from covey.environment.keyed_parts import KeyedParts
from covey.environment.partition import ClassPools, Deal, Environment, by_key, samples_per_client
from covey.errors import require
from covey.registries import environments

OBSERVED = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""α of the six observation groups of FedACS's Fig. 4."""


def dominance_counts(alpha: float, dominant: int, samples: int, classes: int) -> IntArray:
    """Return the samples per class of an α-dominance client (FedACS Definition 1): `[classes]`, summing to `samples`.

    ⌊M(1-α)/C⌋ of every class, the rest of the dominant class.
    """
    common = int(samples * (1 - alpha) / classes + 1e-9)
    counts = np.full(classes, common, dtype=np.int64)
    counts[dominant] += samples - common * classes
    return counts


def split_by_dominance(
    alphas: FloatArray,
    labels: IntArray,
    classes: int,
    samples: int,
    rng: np.random.Generator,
    class_numbers: Sequence[int] | None = None,
) -> Sequence[IntArray]:
    """Return the samples of α-dominance clients; each one's dominant class is the one taken least so far.

    With `class_numbers`, client i holds only that many classes, those taken least so far.
    """
    pools = ClassPools(labels, classes, rng)
    parts = []
    for client, alpha in enumerate(alphas):
        number = classes if class_numbers is None else class_numbers[client]
        held = np.argsort(pools.taken, kind="stable")[:number]
        counts = np.zeros(classes, dtype=np.int64)
        counts[held] = dominance_counts(float(alpha), 0, samples, number)
        parts.append(np.concatenate([pools.take(label, int(own)) for label, own in enumerate(counts)]))
    return parts


@dataclass(frozen=True, eq=False)
class DominanceCounts:
    """How many samples α-dominance clients take of each class, kept as a few numbers a client."""

    alphas: FloatArray
    samples: int
    dominant: IntArray
    """`[clients]`: the class taken least before the client's turn."""
    held: NDArray[np.uint8] | None
    """`[clients, classes / 8]`: bits of the classes that a client holds; None if each holds all."""
    numbers: IntArray
    """`[clients]`: number of these classes."""
    classes: int

    def __call__(self, places: IntArray) -> IntArray:
        alphas, numbers = self.alphas[places], self.numbers[places]
        common = (self.samples * (1 - alphas) / numbers + 1e-9).astype(np.int64)
        counts = np.repeat(common[:, None], self.classes, axis=1)
        if self.held is not None:
            counts *= np.unpackbits(self.held[places], axis=1, count=self.classes)
        counts[np.arange(len(places)), self.dominant[places]] += self.samples - common * numbers
        return counts

    @classmethod
    def of(cls, alphas: FloatArray, classes: int, samples: int, numbers: IntArray | None = None) -> "DominanceCounts":
        """Find the class of each client that is taken least so far, without taking anything."""
        clients = len(alphas)
        wide = np.full(clients, classes, dtype=np.int64) if numbers is None else numbers
        common = (samples * (1 - alphas) / wide + 1e-9).astype(np.int64)
        excess = (samples - common * wide).tolist()
        dominant: IntArray = np.empty(clients, dtype=np.int64)
        if numbers is None:
            # All classes grow by as much, so that the excess alone decides.
            least = [(0, label) for label in range(classes)]
            for client, more in enumerate(excess):
                taken, dominant[client] = least[0]
                heapq.heapreplace(least, (taken + more, int(dominant[client])))
            return cls(alphas, samples, dominant, None, wide, classes)
        held = np.zeros((clients, -(-classes // 8)), dtype=np.uint8)
        totals = [0] * classes
        for client, (number, each, more) in enumerate(zip(numbers.tolist(), common.tolist(), excess, strict=True)):
            own = sorted(range(classes), key=totals.__getitem__)[:number]
            dominant[client] = own[0]
            for label in own:
                totals[label] += each
                held[client, label >> 3] |= 128 >> (label & 7)
            totals[own[0]] += more
        return cls(alphas, samples, dominant, held, wide, classes)


def draw_by_dominance(
    alphas: FloatArray,
    labels: IntArray,
    classes: int,
    samples: int,
    rng: np.random.Generator,
    class_numbers: Sequence[int] | None = None,
) -> Sequence[IntArray]:
    """Return samples of the classes and in the numbers of `split_by_dominance`, drawn by a key for each client."""
    numbers = None if class_numbers is None else np.array(class_numbers, dtype=np.int64)
    counts = DominanceCounts.of(alphas, classes, samples, numbers)
    sizes = np.full(len(alphas), samples, dtype=np.int64)
    return KeyedParts(labels, classes, sizes, counts, int(rng.integers(2**63)))


Split = Callable[..., Sequence[IntArray]]
"""`split_by_dominance` or `draw_by_dominance`."""


def _dealt_or_drawn(name: str) -> Callable[[Environment], Environment]:
    """Register an environment that takes a split first, once with samples dealt in turn and once drawn by client."""

    def add(environment: Environment) -> Environment:
        @wraps(environment)
        def dealt(*given: Any, **options: Any) -> Deal:
            return environment(split_by_dominance, *given, **options)

        whole = inspect.signature(environment)
        vars(dealt)["__signature__"] = whole.replace(parameters=list(whole.parameters.values())[1:])
        by_key(name)(partial(environment, draw_by_dominance))
        return environments.add(name)(dealt)

    return add


@_dealt_or_drawn("uniform")
def uniform(
    split: Split,
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """FedACS Definition 3: α-dominance clients with α uniform in [0, 1]; clients share samples.

    Each client holds `samples`, or enough to use every training sample `reuse` times (the paper's
    200 clients of 2,000 use each of 50,000 images 8 times).
    """
    count = samples_per_client(labels, clients, samples, reuse)
    alphas = rng.uniform(0.0, 1.0, size=clients)
    return Deal(split(alphas, labels, classes, count, rng), shared=True, skew=alphas)


@_dealt_or_drawn("uniform-observed")
def uniform_observed(
    split: Split,
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    group: int = 10,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """FedACS Fig. 4: as `uniform`, the last clients in six groups at α = 0, 0.2, ... 1; clients share samples.

    The last 6·`group` clients are the observation groups, the least skewed group first; the others
    have α uniform in [0, 1]. The paper has groups of 10 among 200 clients.
    """
    require(group >= 1, f"environment.group must be at least 1, not {group}.")
    observed = np.repeat(OBSERVED, group)
    fitting = clients // 20 or 1
    require(
        clients > len(observed),
        f"Six observation groups of {group} leave none of {clients} clients for the uniform part; "
        + (f"set environment.group={fitting} or raise --clients." if clients > 6 * fitting else "raise --clients."),
    )
    count = samples_per_client(labels, clients, samples, reuse)
    alphas = np.concatenate([rng.uniform(0.0, 1.0, size=clients - len(observed)), observed])
    return Deal(split(alphas, labels, classes, count, rng), shared=True, skew=alphas)


@_dealt_or_drawn("inverse-pareto")
def inverse_pareto(
    split: Split,
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    shape: float = 2.0,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """FedACS Definition 4: α-dominance clients, α = 2 - x with x of a Pareto law cut to [1, 2]; clients share samples.

    Most clients are heavily skewed, the more so the larger `shape` is. x is drawn by inverting its
    distribution F(x) = (1 - x^-s)/(1 - 2^-s), so α has the density s(2-α)^-(s+1)/(1 - 2^-s): the
    exponent of eq. 5 is printed as -s, which does not integrate to one.
    """
    require(shape > 0, f"environment.shape must be above 0, not {shape:g}.")
    count = samples_per_client(labels, clients, samples, reuse)
    alphas = inverse_pareto_quantiles(rng.random(clients), shape)
    return Deal(split(alphas, labels, classes, count, rng), shared=True, skew=alphas)


def inverse_pareto_quantiles(probability: FloatArray, shape: float) -> FloatArray:
    """Return α = 2 - F⁻¹(p) for the Pareto law of shape s cut to [1, 2]: F⁻¹(p) = (1 - p(1 - 2^-s))^(-1/s)."""
    mass = -np.expm1(-shape * np.log(2.0))
    alphas: FloatArray = np.clip(2.0 - np.exp(-np.log1p(-probability * mass) / shape), 0.0, 1.0)
    return alphas


@_dealt_or_drawn("few-class")
def few_class(
    split: Split,
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """FedACS section VII: clients of 1 to all classes, α-dominance with α uniform within them; clients share samples.

    The number of classes is uniform, too, and a client holds those taken least so far. α alone does
    not order these clients (one class at α = 0 is as skewed as can be), so the environment states no
    skew, and evaluation uses the distance from the overall mix.
    """
    count = samples_per_client(labels, clients, samples, reuse)
    alphas = rng.uniform(0.0, 1.0, size=clients)
    numbers = rng.integers(1, classes, size=clients, endpoint=True)
    return Deal(split(alphas, labels, classes, count, rng, numbers.tolist()), shared=True)
