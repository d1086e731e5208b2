"""Splits of a data set's training samples among clients, and the tools that environments make them with."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.errors import Refusal, require
from covey.randomness import generator
from covey.registries import environments


@dataclass(frozen=True, eq=False)
class Deal:
    """A split: each client's indices into the training set, and each client's skew if the environment states it."""

    parts: list[IntArray]
    shared: bool
    """True if a sample may belong to several clients."""
    skew: FloatArray | None = None
    """`[clients]`: α of an α-dominance client; evaluation takes it for the true skew."""


Environment = Callable[..., Deal]
"""`environment(labels, classes, clients, rng, *, option=default, ...) -> Deal`"""


def split_samples(
    name: str, options: dict[str, object], labels: IntArray, classes: int, clients: int, rng: np.random.Generator
) -> Deal:
    """Split samples by the environment called `name`; refuse a split that leaves a client without samples."""
    result = environments[name].part(labels, classes, clients, rng, **environments.options(name, options))
    empty = [client for client, part in enumerate(result.parts) if len(part) == 0]
    if len(result.parts) != clients or empty:
        raise Refusal(
            f"The environment '{name}' gave samples to {len(result.parts) - len(empty)} of {clients} clients; every "
            "client needs at least one."
        )
    return result


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


def split_regardless_of_class(available: int, sizes: list[int], rng: np.random.Generator) -> list[IntArray]:
    """Return parts of the given sizes from one shuffled pool, reshuffled when exhausted."""
    pool = ClassPools(np.zeros(available, dtype=np.int64), 1, rng)
    return [np.sort(pool.take(0, size)) for size in sizes]


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


def split_by_class(counts: IntArray, labels: IntArray, rng: np.random.Generator) -> list[IntArray]:
    """Return disjoint parts with `counts` `[clients, classes]` samples of each class, chosen at random."""
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in range(counts.shape[1])]
    taken = np.concatenate([own[:count] for own, count in zip(members, counts.sum(axis=0), strict=True)])
    owners = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    return np.split(taken[np.lexsort((taken, owners))], np.cumsum(counts.sum(axis=1))[:-1])


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


def fill_up(parts: list[IntArray], minimum: int, rng: np.random.Generator) -> list[IntArray]:
    """Move samples from the largest clients to those with fewer than `minimum`."""
    sizes = np.array([len(part) for part in parts])
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = int(np.argmax(sizes))
            at = int(rng.integers(sizes[rich]))
            parts[poor] = np.append(parts[poor], parts[rich][at])
            parts[rich] = np.delete(parts[rich], at)
            sizes[poor] += 1
            sizes[rich] -= 1
    return parts
