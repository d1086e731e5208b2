"""What an environment is, the registry of them, and how samples are dealt."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.errors import Refusal, require
from covey.registries import environments


@dataclass(frozen=True, eq=False)
class Deal:
    """Who got what: indices into the training set per client, and the skew parameter of each where there is one."""

    parts: list[IntArray]
    shared: bool
    """Whether one sample may belong to several clients."""
    skew: FloatArray | None = None
    """`[clients]`: α of an α-dominance client; what evaluation calls the true skew."""


Environment = Callable[..., Deal]
"""`deal(labels, classes, clients, rng, *, option=default, ...) -> Deal`"""


def deal(
    name: str, options: dict[str, object], labels: IntArray, classes: int, clients: int, rng: np.random.Generator
) -> Deal:
    """Deal with the environment called `name`; every client ends with at least one sample, or it is refused."""
    result = environments[name].part(labels, classes, clients, rng, **environments.options(name, options))
    empty = [client for client, part in enumerate(result.parts) if len(part) == 0]
    if len(result.parts) != clients or empty:
        raise Refusal(
            f"The environment '{name}' dealt to {len(result.parts)} of {clients} clients, {len(empty)} of them nothing."
        )
    return result


class ClassDecks:
    """Samples of each class as a shuffled deck, dealt cyclically and reshuffled when exhausted.

    This is how FedACS's authors deal images, so that 200 clients of 2,000 share 50,000 of them. Nobody
    is dealt a sample twice in one hand unless the hand is larger than the deck.
    """

    def __init__(self, labels: IntArray, classes: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._decks = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self._next = [0] * classes
        self.dealt = np.zeros(classes, dtype=np.int64)

    def deal(self, label: int, count: int) -> IntArray:
        """The next `count` samples of class `label`."""
        deck, at = self._decks[label], self._next[label]
        require(
            count == 0 or len(deck) > 0,
            f"Class {label} has no training sample to deal; "
            "choose a data set with samples of every class, or an environment such as dirichlet or iid.",
        )
        if count == 0:
            return np.empty(0, dtype=np.int64)
        self.dealt[label] += count
        whole, rest = divmod(count, len(deck))
        taken = deck[at : at + rest]
        at += len(taken)
        if at == len(deck):
            fresh, at = self._rng.permutation(deck), rest - len(taken)
            if at > 0:
                repeated = np.isin(fresh, taken)
                fresh = np.concatenate([fresh[~repeated], fresh[repeated]])
            self._decks[label] = fresh
            taken = np.concatenate([taken, fresh[:at]])
        self._next[label] = at
        return np.concatenate([np.tile(deck, whole), taken])


def deal_regardless_of_class(available: int, sizes: list[int], rng: np.random.Generator) -> list[IntArray]:
    """Hands of the given sizes from one shuffled deck, reshuffled when exhausted."""
    deck = ClassDecks(np.zeros(available, dtype=np.int64), 1, rng)
    return [np.sort(deck.deal(0, size)) for size in sizes]


def samples_per_client(labels: IntArray, clients: int, samples: int | None, reuse: float) -> int:
    """`samples` where it is given, else as many as use each training sample `reuse` times."""
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
    """Refuse a number of labels per client that the data set cannot give."""
    require(
        1 <= labels <= classes,
        f"environment.labels must be from 1 to the data set's {classes} classes, not {labels}.",
    )


def deal_by_class(counts: IntArray, labels: IntArray, rng: np.random.Generator) -> list[IntArray]:
    """Disjoint hands with `counts` `[clients, classes]` samples of each class, chosen at random."""
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in range(counts.shape[1])]
    taken = np.concatenate([own[:count] for own, count in zip(members, counts.sum(axis=0), strict=True)])
    owners = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    return np.split(taken[np.lexsort((taken, owners))], np.cumsum(counts.sum(axis=1))[:-1])


def allot(total: int, shares: FloatArray) -> IntArray:
    """`total` samples by `shares` (summing to one): each count is within one of its exact share, the sum is exact."""
    exact = total * shares
    counts: IntArray = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def dirichlet_shares(alpha: float, size: int, rng: np.random.Generator) -> FloatArray:
    """A draw from Dirichlet(α·1), exact for any α: Gamma(α) = Gamma(α+1)·U^(1/α), kept in logarithms."""
    gammas = np.log(rng.standard_gamma(alpha + 1, size))
    return normalised_powers(np.log(1 - rng.random(size)), 1 / alpha, gammas)


def normalised_powers(logs: FloatArray, power: float, offsets: FloatArray | float = 0.0) -> FloatArray:
    """exp(power·logs + offsets), scaled to sum to one; for any power, as large as it may be."""
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
