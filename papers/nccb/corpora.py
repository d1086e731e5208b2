"""Corpora of NCCB's reproduction: texts by their users, and the paper's numbers for the data they replace.

The paper's data, Super User and Yelp, were not available. Two other corpora stand in for them: tweets of accounts of
the US Congress and posts of bloggers. They are of the same kind, but differ in size and vocabulary, so accuracies
cannot be compared with the paper's; the order of the methods and their distances can.

Models are trained on stop words, which the paper removes: without them the commonest word is 1 % of all, and random
selection was still there after 40 rounds (at a rate of 0.5; at a rate of 2, at 1.8 % after 10), so that methods would
differ by less than the test set resolves. Contexts leave them out, as the paper's do: on the tweets, the fingerprints
of two halves of one user's samples differ in 21.1 of 64 bits and those of two users in 26.7, with stop words in 8.1 and
10.2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.data.dataset import Dataset
from covey.data.documents import Writing
from covey.data.text import Cut, StopWords, from_writings
from covey.randomness import generator
from papers.printed import by_method, read_printed

OUR_NAMES = {
    "random": ("fedavg",),
    "nccb": ("nccb",),
    "oort": ("oort-simple", "oort"),
    "linucb": ("k-linucb",),
    "iid": ("iid",),
}
"""Method in the paper → methods here; we have two forms of Oort."""


@dataclass(frozen=True, kw_only=True)
class PrintedCorpus:
    """Numbers that the paper prints for one data set."""

    name: str
    accuracy: Mapping[str, float]
    """Table 1, in percent."""
    improvement: Mapping[str, float]
    """Table 1: above random, as a share of it, in percent."""
    rounds: Mapping[str, int]
    """Table 2."""
    saved: Mapping[str, float]
    """Table 2: rounds saved, as a share of random's, in percent."""


def _printed(name: str) -> PrintedCorpus:
    found = read_printed(__file__)[name]
    tables = {key: by_method(value, OUR_NAMES) for key, value in found.items() if key != "name"}
    return PrintedCorpus(name=found["name"], **tables)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Texts by their users, and the paper's data set that they stand in for."""

    name: str
    title: str
    about: str
    """Description for sentences."""
    dataset: Mapping[str, Any]
    clients: int
    """All users but those held back for testing."""
    fewer_clients: tuple[int, ...]
    """Other numbers of clients in Fig. 4."""
    layers: int
    """Layers of the paper's model for the data set that this corpus stands in for."""
    printed: PrintedCorpus | None = None


def _corpus(name: str, title: str, about: str, clients: int, layers: int, printed: PrintedCorpus) -> Corpus:
    dataset = {
        "name": name,
        "minimum": 150,
        "samples": 300,
        "test_users": 50,
        "test_samples": 200,
        "vocabulary": 10_000,
        "length": 10,
        "stop_words": "keep",
    }
    fewer = (100, 200, 300, 400)
    return Corpus(
        name=name,
        title=title,
        about=about,
        dataset=dataset,
        clients=clients,
        fewer_clients=fewer,
        layers=layers,
        printed=printed,
    )


CORPORA = (
    _corpus("tweets", "tweets", "tweets of accounts of the US Congress", 535, 2, _printed("super-user")),
    _corpus("blogs", "blogs", "posts of the Blog Authorship Corpus", 466, 5, _printed("yelp")),
)

MADE_UP = Corpus(
    name="made-up",
    title="made-up texts",
    about="texts of made-up users in four topics",
    dataset={"name": "papers.nccb:made_up", "samples": 20, "test_users": 4, "test_samples": 10, "stop_words": "keep"},
    clients=16,
    fewer_clients=(8,),
    layers=1,
)


def made_up(
    data_dir: Path | None,
    /,
    *,
    users: int = 20,
    texts: int = 5,
    words: int = 8,
    samples: int = 20,
    test_users: int = 4,
    test_samples: int = 10,
    stop_words: StopWords = "keep",
) -> Dataset:
    """Return texts of made-up users in four topics, each with its own words; for trials without files."""

    def read() -> Iterator[Writing]:
        rng = generator("made-up texts")
        popularity = 1 / np.arange(1, 21)
        popularity /= popularity.sum()
        for user in range(users):
            for _ in range(texts):
                topic_words = [f"topic{user % 4}word{word}" for word in rng.choice(20, size=words, p=popularity)]
                yield f"user {user}", "the " + " ".join(topic_words)

    cut = Cut(
        minimum=1, texts=0, samples=samples, users=0, test_users=test_users, test_samples=test_samples,
        vocabulary=100, length=5, stop_words=stop_words,
    )  # fmt: skip
    return from_writings("made-up", Path("made-up texts"), read, cut)


_TOPIC_SHARES = (0.40, 0.25, 0.15, 0.10, 0.06, 0.04)
"""Share of the users who write about each topic; topic i has 10·2^i words of its own."""

_STOP_WORDS = ("the", "of", "and", "to", "in", "that", "is", "for", "on", "with")


def topics(
    data_dir: Path | None,
    /,
    *,
    users: int = 100,
    test_users: int = 24,
    texts: int = 10,
    words: int = 20,
    samples: int = 100,
    test_samples: int = 40,
    stop_words: StopWords = "keep",
) -> Dataset:
    """Return texts of made-up users in six topics, the rarer the harder; test users are spread evenly over topics.

    A topic's word is followed by the same word of the topic in four of five cases, else by one drawn by Zipf's law.
    Stop words follow two of five words, in shares of each user's own.
    """

    def read() -> Iterator[Writing]:
        rng = generator("texts by topic")
        count = len(_TOPIC_SHARES)
        following = [rng.permutation(10 * 2**topic) for topic in range(count)]
        shares = np.cumsum(_TOPIC_SHARES)
        trained = rng.permutation(np.searchsorted(shares, (np.arange(users) + 0.5) / users))
        for user, topic in enumerate([*trained.tolist(), *(np.arange(test_users) % count).tolist()]):
            popularity = 1 / np.arange(1, 1 + len(following[topic]))
            popularity /= popularity.sum()
            habit = rng.dirichlet(np.ones(len(_STOP_WORDS)))
            for _ in range(texts):
                drawn = rng.choice(len(popularity), size=words, p=popularity)
                follows, stopped = rng.random((2, words)) < np.array([[0.8], [0.4]])
                said, word = [], int(drawn[0])
                for place in range(words):
                    word = int(following[topic][word] if follows[place] else drawn[place])
                    said.append(f"topic{topic}word{word}")
                    if stopped[place]:
                        said.append(str(rng.choice(_STOP_WORDS, p=habit)))
                yield f"user {user}", " ".join(said)

    cut = Cut(
        minimum=1, texts=0, samples=samples, users=0, test_users=test_users, test_samples=test_samples,
        vocabulary=1000, length=5, stop_words=stop_words,
    )  # fmt: skip
    return from_writings("topics", Path("made-up texts by topic"), read, cut)
