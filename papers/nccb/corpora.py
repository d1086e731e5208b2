"""Corpora of NCCB's reproduction: texts by their users, and the paper's numbers for the data they replace.

The paper's data, Super User and Yelp, were not available. Two other corpora stand in for them: tweets of accounts of
the US Congress and posts of bloggers. They are of the same kind, but differ in size and vocabulary, so accuracies
cannot be compared with the paper's; the order of the methods and their distances can.

Stop words are kept, where the paper removes them: without them the commonest word is 1 % of all, and random selection
was still there after 40 rounds (at a rate of 0.5; at a rate of 2, at 1.8 % after 10), so that methods would differ by
less than the test set resolves. Contexts are as informative either way: on the tweets, the fingerprints of two halves
of one user's samples differ in 8.1 of 64 bits and those of two users in 10.2; without stop words in 21.1 and 26.7.
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
    printed: PrintedCorpus | None = None


def _corpus(name: str, title: str, about: str, clients: int, printed: PrintedCorpus) -> Corpus:
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
        printed=printed,
    )


CORPORA = (
    _corpus("tweets", "tweets", "tweets of accounts of the US Congress", 535, _printed("super-user")),
    _corpus("blogs", "blogs", "posts of the Blog Authorship Corpus", 466, _printed("yelp")),
)

MADE_UP = Corpus(
    name="made-up",
    title="made-up texts",
    about="texts of made-up users in four topics",
    dataset={"name": "papers.nccb:made_up", "samples": 20, "test_users": 4, "test_samples": 10, "stop_words": "keep"},
    clients=16,
    fewer_clients=(8,),
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
