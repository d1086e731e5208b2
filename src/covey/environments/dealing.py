"""What an environment is, the registry of them, and how samples are dealt."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import Refusal, require
from covey.registry import Registry

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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

environments: Registry[Environment] = Registry("environment", "environments", parts_of_users=True)


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

    This is how FedACS's authors deal images, so that 200 clients of 2,000 share 50,000 of them.
    """

    def __init__(self, labels: IntArray, classes: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._decks = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self._next = [0] * classes
        self.dealt = np.zeros(classes, dtype=np.int64)

    def deal(self, label: int, count: int) -> IntArray:
        """The next `count` samples of class `label`."""
        require(count == 0 or len(self._decks[label]) > 0, f"Class {label} has no training sample to deal.")
        self.dealt[label] += count
        hand = [np.empty(0, dtype=np.int64)]
        while count > 0:
            deck, at = self._decks[label], self._next[label]
            taken = deck[at : at + count]
            hand.append(taken)
            count -= len(taken)
            self._next[label] = at + len(taken)
            if self._next[label] == len(deck):
                self._decks[label], self._next[label] = self._rng.permutation(deck), 0
        return np.concatenate(hand)


def deal_regardless_of_class(available: int, sizes: list[int], rng: np.random.Generator) -> list[IntArray]:
    """Hands of the given sizes from one shuffled deck, reshuffled when exhausted."""
    deck = ClassDecks(np.zeros(available, dtype=np.int64), 1, rng)
    return [np.sort(deck.deal(0, size)) for size in sizes]


def samples_per_client(labels: IntArray, clients: int, samples: int | None, reuse: float) -> int:
    """`samples` where it is given, else as many as use each training sample `reuse` times."""
    require(reuse > 0, f"environment.reuse must be above 0, not {reuse}.")
    count = int(len(labels) * reuse / clients) if samples is None else samples
    require(
        count >= 1,
        f"{len(labels)} training samples used {reuse:g} times give none to each of {clients} clients; "
        "lower --clients or raise environment.reuse or environment.samples.",
    )
    return count


def dirichlet_shares(alpha: float, size: int, rng: np.random.Generator) -> FloatArray:
    """A draw from Dirichlet(α·1), exact for any α: Gamma(α) = Gamma(α+1)·U^(1/α), kept in logarithms."""
    logs = np.log(rng.standard_gamma(alpha + 1, size)) + np.log(1 - rng.random(size)) / alpha
    shares: FloatArray = np.exp(logs - logs.max())
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
