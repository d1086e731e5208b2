"""Splits of a data set's training samples among clients, and the tools that environments make them with."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.environment.client_parts import Parts, Slices
from covey.environment.keyed_parts import KeyedPool
from covey.errors import Refusal, require
from covey.randomness import generator
from covey.registries import environments


@dataclass(frozen=True, eq=False)
class Deal:
    """A split: each client's indices into the training set, and each client's skew if the environment states it."""

    parts: Sequence[IntArray]
    """A list, or `Parts` that are made when they are asked for."""
    shared: bool
    """True if a sample may belong to several clients."""
    skew: FloatArray | None = None
    """`[clients]`: α of an α-dominance client; evaluation takes it for the true skew."""


Environment = Callable[..., Deal]
"""`environment(labels, classes, clients, rng, *, option=default, ...) -> Deal`"""

_BY_KEY: dict[str, Environment] = {}


def by_key(name: str) -> Callable[[Environment], Environment]:
    """Register how the environment called `name` draws each client's samples by a key of its own.

    Class counts and skew are those of the environment; only which samples of a class a client holds is drawn apart.
    Environments without shared samples have none: their parts are slices of one order of all samples.
    """

    def add(environment: Environment) -> Environment:
        _BY_KEY[name] = environment
        return environment

    return add


def split_samples(
    name: str,
    options: dict[str, object],
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    keyed: bool = False,
) -> Deal:
    """Split samples by the environment called `name`; refuse a split that leaves a client without samples.

    `keyed` draws shared samples for each client apart, where the environment can (`by_key`).
    """
    environment: Environment = environments[name].part
    chosen = environments.options(name, options)
    result = (_BY_KEY.get(name, environment) if keyed else environment)(labels, classes, clients, rng, **chosen)
    empty = np.flatnonzero(sizes_of(result.parts) == 0)
    if len(result.parts) != clients or len(empty):
        raise Refusal(
            f"The environment '{name}' gave samples to {len(result.parts) - len(empty)} of {clients} clients; every "
            "client needs at least one."
        )
    return result


def sizes_of(parts: Sequence[IntArray]) -> IntArray:
    """Return each client's number of samples: `[clients]`."""
    return parts.sizes if isinstance(parts, Parts) else np.array([len(part) for part in parts], dtype=np.int64)


def client_order(clients: int, seed: int, numbering: str) -> IntArray:
    """Return each client's place in its environment's own order: `[clients]`.

    Environments form their groups in order, so that unless clients are shuffled, a number tells what a client holds.
    """
    if numbering == "environment":
        return np.arange(clients)
    return generator(seed, "client numbers").permutation(clients)


class ClassPools:
    """A shuffled pool of samples for each class, taken from in turn and reshuffled when exhausted.

    FedACS's authors assign images this way: 200 clients of 2,000 images share 50,000. A client gets a sample twice
    only if it takes more samples than the pool holds.
    """

    def __init__(self, labels: IntArray, classes: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self._next = [0] * classes
        self.taken = np.zeros(classes, dtype=np.int64)
        """`[classes]`: samples taken so far."""

    def take(self, label: int, count: int) -> IntArray:
        """Return the next `count` samples of class `label`."""
        pool, at = self._pools[label], self._next[label]
        require(
            count == 0 or len(pool) > 0,
            f"Class {label} has no training sample; "
            "choose a data set with samples of every class, or an environment such as dirichlet or iid.",
        )
        if count == 0:
            return np.empty(0, dtype=np.int64)
        self.taken[label] += count
        whole, rest = divmod(count, len(pool))
        part = pool[at : at + rest]
        at += len(part)
        if at == len(pool):
            reshuffled, at = self._rng.permutation(pool), rest - len(part)
            if at > 0:
                repeated = np.isin(reshuffled, part)
                reshuffled = np.concatenate([reshuffled[~repeated], reshuffled[repeated]])
            self._pools[label] = reshuffled
            part = np.concatenate([part, reshuffled[:at]])
        self._next[label] = at
        return np.concatenate([np.tile(pool, whole), part])


def split_regardless_of_class(
    available: int, sizes: IntArray, rng: np.random.Generator, *, keyed: bool = False
) -> Sequence[IntArray]:
    """Return parts of the given sizes from one shuffled pool, reshuffled when exhausted; or drawn by key."""
    if int(sizes.sum()) <= available:
        return Slices.cut(rng.permutation(available), sizes, ascending=True)
    if keyed:
        return KeyedPool(available, sizes, int(rng.integers(2**63)))
    pool = ClassPools(np.zeros(available, dtype=np.int64), 1, rng)
    return [np.sort(pool.take(0, size)) for size in sizes.tolist()]


def samples_per_client(labels: IntArray, clients: int, samples: int | None, reuse: float) -> int:
    """Return `samples` if given, else the number that uses each training sample `reuse` times."""
    if samples is not None:
        require(samples >= 1, f"environment.samples must be at least 1, not {samples}.")
        return samples
    require(reuse > 0, f"environment.reuse must be above 0, not {reuse:g}.")
    count = int(len(labels) * reuse / clients)
    require(
        count >= 1,
        f"{len(labels)} training samples used {reuse:g} times give none to each of {clients} clients; "
        "lower --clients or raise environment.reuse or environment.samples.",
    )
    return count


def require_labels(labels: int, classes: int) -> None:
    """Refuse more labels per client than the data set has."""
    require(
        1 <= labels <= classes,
        f"environment.labels must be from 1 to the data set's {classes} classes, not {labels}.",
    )


def split_by_class(counts: IntArray, labels: IntArray, rng: np.random.Generator) -> Slices:
    """Return disjoint parts with `counts` `[clients, classes]` samples of each class, chosen at random."""
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in range(counts.shape[1])]
    taken = np.concatenate([own[:count] for own, count in zip(members, counts.sum(axis=0), strict=True)])
    owners = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    return Slices.cut(taken[np.lexsort((taken, owners))], counts.sum(axis=1))


def allot(total: int, shares: FloatArray) -> IntArray:
    """Round `total` · `shares` (summing to one) to counts that sum to `total`, each within one of its exact share."""
    exact = total * shares
    counts: IntArray = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def dirichlet_shares(alpha: float, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw from Dirichlet(α·1), exact for any α: Gamma(α) = Gamma(α+1)·U^(1/α), kept in logarithms."""
    gammas = np.log(rng.standard_gamma(alpha + 1, size))
    return normalised_powers(np.log(1 - rng.random(size)), 1 / alpha, gammas)


def normalised_powers(logs: FloatArray, power: float, offsets: FloatArray | float = 0.0) -> FloatArray:
    """Return exp(power·logs + offsets), scaled to sum to one, without overflow for any power."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.where(logs == logs.max(), 0.0, (logs - logs.max()) * power) + offsets
    shares: FloatArray = np.exp(scaled - scaled.max())
    shares /= shares.sum()
    return shares


def fill_up(parts: Slices, minimum: int, rng: np.random.Generator) -> Slices:
    """Return parts with samples moved from the largest clients to those with fewer than `minimum`."""
    sizes = parts.sizes
    changed: dict[int, IntArray] = {}
    # The largest client first, and of equals the first; entries that are out of date are passed over.
    largest = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(largest)
    for poor in np.flatnonzero(sizes < minimum).tolist():
        while sizes[poor] < minimum:
            while -largest[0][0] != sizes[largest[0][1]]:
                heapq.heappop(largest)
            rich = largest[0][1]
            at = int(rng.integers(sizes[rich]))
            giving, getting = (changed[one] if one in changed else parts.of(one) for one in (rich, poor))
            changed[poor], changed[rich] = np.append(getting, giving[at]), np.delete(giving, at)
            for client, change in ((poor, 1), (rich, -1)):
                sizes[client] += change
                heapq.heappush(largest, (-int(sizes[client]), client))
    return replace(parts, changed=changed)
