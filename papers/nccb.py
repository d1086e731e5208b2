"""NCCB: what to run for the tables and figures of Cao, Pan, Zhu and Liu, "Birds of a Feather Help: Context-aware Client
Selection for Efficient Federated Learning", AAAI workshop 2022.

The paper's data, Super User and Yelp, are not at hand. In their place stand two corpora of texts by their users, tweets
of accounts of the US Congress and posts of bloggers: the same kind of data, and neither the same size nor the same
words. Accuracies can therefore not be compared with the paper's, only the order of the methods and how far apart they
are.

As in the paper: users with 150 texts or more, all with as many samples; the next word by an LSTM with an embedding of
200 and 200 units; 5 clients a round, 5 epochs, a rate that falls by 0.9993 with every local epoch. Both corpora have
two layers, which the paper has for the smaller one; its five for Yelp need more data than there are.

Two choices are ours. The rate is that of plain SGD, where the paper's 0.002 belongs to Adam. It was chosen by random
selection alone, which came to 6.4, 7.6 and 7.3 % after 20 rounds on the tweets at rates of 1, 2 and 4; the group `rate`
runs the others to the end. Stop words are kept, where the paper removes them: without them the commonest word is 1 % of
all and random selection was still there after 40 rounds (at a rate of 0.5; at 2, at 1.8 % after 10), so that methods
would differ by less than the test set can tell. Contexts tell as much either way: on the tweets, the fingerprints of
two halves of one user's samples differ in 8.1 of 64 bits and those of two users in 10.2; without stop words in 21.1 and
26.7. The group `stop-words` runs the other way. And the group `confidence` runs NCCB with a confidence for each client,
as the authors' code has it and the paper's equations do not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.data.dataset import Dataset
from covey.data.documents import Writing
from covey.data.text import Cut, StopWords, from_writings
from covey.randomness import generator
from papers.pages import Page
from papers.plan import Group, Paper, Planned, Scale, Wanted
from papers.store import Store

BASELINE, REFERENCE, OURS = "fedavg", "iid", "nccb"

CORE = (BASELINE, OURS, "oort-simple")
METHODS = (*CORE, "k-linucb", REFERENCE, "oort")
"""In order of their value."""

TABLES = METHODS[:-1]
"""What the paper compares; the last one is Oort as its own authors describe it."""

TITLES = {
    "fedavg": "random",
    "nccb": "NCCB",
    "oort-simple": "Oort (as compared)",
    "oort": "Oort (original)",
    "k-linucb": "k-LinUCB",
    "iid": "IID",
}

THRESHOLD, BITS = 10, 64
"""k of Algorithm 1 and the length of a context, as in the tables."""

LOCAL = {"epochs": 5, "batch": 10, "rate": 2.0, "decay": 0.9993}

OTHER_WAY: StopWords = "remove"
"""What the tables do not do with stop words, and the paper does."""

OWN = "own"
"""NCCB with a Z for each client: not in the paper's equation 14, but in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What the paper reports of one data set."""

    name: str
    accuracy: Mapping[str, float]
    """Table 1, in percent."""
    improvement: Mapping[str, float]
    """Table 1: above random, as a share of it, in percent."""
    rounds: Mapping[str, int]
    """Table 2."""
    saved: Mapping[str, float]
    """Table 2: rounds saved, as a share of random's, in percent."""


def _each(**by_paper_name: float) -> dict[str, Any]:
    """The paper's figures by our names; it has one Oort, we have two."""
    ours = {
        "random": ["fedavg"],
        "nccb": ["nccb"],
        "oort": ["oort-simple", "oort"],
        "linucb": ["k-linucb"],
        "iid": ["iid"],
    }
    return {name: value for paper, value in by_paper_name.items() for name in ours[paper]}


SUPER_USER = Printed(
    name="Super User",
    accuracy=_each(random=10.035, nccb=11.784, oort=11.372, linucb=11.122),
    improvement=_each(random=0.0, nccb=17.429, oort=13.323, linucb=10.832),
    rounds=_each(random=283, nccb=134, oort=181, linucb=213),
    saved=_each(random=0.0, nccb=52.7, oort=36.0, linucb=24.7),
)

YELP = Printed(
    name="Yelp",
    accuracy=_each(random=11.176, nccb=12.547, oort=12.116, linucb=11.810, iid=12.800),
    improvement=_each(random=0.0, nccb=12.267, oort=8.410, linucb=5.673, iid=14.531),
    rounds=_each(random=196, nccb=101, oort=109, linucb=108, iid=98),
    saved=_each(random=0.0, nccb=48.5, oort=44.4, linucb=44.9, iid=50.0),
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Texts by their users, and which of the paper's data sets they stand in for."""

    name: str
    title: str
    about: str
    """What they are, in words."""
    dataset: Mapping[str, Any]
    clients: int
    """All users but those that are held back for testing."""
    fewer_clients: tuple[int, ...]
    """Numbers of clients in Fig. 4 besides."""
    printed: Printed | None = None


def _corpus(name: str, title: str, about: str, clients: int, printed: Printed) -> Corpus:
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
    _corpus("tweets", "tweets", "tweets of accounts of the US Congress", 535, SUPER_USER),
    _corpus("blogs", "blogs", "posts of the Blog Authorship Corpus", 466, YELP),
)

_MADE_UP = Corpus(
    name="made-up",
    title="made-up texts",
    about="texts of made-up users in four topics",
    dataset={"name": f"{__name__}:made_up", "samples": 20, "test_users": 4, "test_samples": 10, "stop_words": "keep"},
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
    """Texts of made-up users in four topics with words of their own; for trials, no file needed."""

    def read() -> Iterator[Writing]:
        rng = generator("made-up texts")
        popularity = 1 / np.arange(1, 21)
        popularity /= popularity.sum()
        for user in range(users):
            for _ in range(texts):
                said = [f"topic{user % 4}word{word}" for word in rng.choice(20, size=words, p=popularity)]
                yield f"user {user}", "the " + " ".join(said)

    cut = Cut(
        minimum=1, texts=0, samples=samples, users=0, test_users=test_users, test_samples=test_samples,
        vocabulary=100, length=5, stop_words=stop_words,
    )  # fmt: skip
    return from_writings("made-up", Path("made-up texts"), read, cut)


@dataclass(frozen=True, kw_only=True)
class NCCBScale(Scale):
    """A scale with the numbers that the paper's settings come down to at it."""

    corpora: tuple[Corpus, ...]
    model: Mapping[str, Any]
    cohort: int
    local: Mapping[str, Any]
    clusters: int
    threshold: int
    evaluate_every: int
    figure_seeds: int
    """Seeds of sweeps."""
    thresholds: tuple[int, ...]
    """Values of k in Fig. 3 besides that of the tables."""
    bits: tuple[int, ...]
    """Lengths of a context in Fig. 5 besides that of the tables."""
    rates: tuple[float, ...]
    """Rates that were not chosen."""
    checked: tuple[int, ...]
    """Rounds at which rates are compared."""


def _paper_scale(name: str, summary: str, rounds: int, seeds: int) -> NCCBScale:
    return NCCBScale(
        name=name,
        summary=summary,
        rounds=rounds,
        seeds=seeds,
        store="nccb",
        corpora=CORPORA,
        model={"name": "lstm", "embedding": 200, "hidden": 200, "layers": 2, "dropout": 0.0},
        cohort=5,
        local=LOCAL,
        clusters=20,
        threshold=THRESHOLD,
        evaluate_every=2,
        figure_seeds=2,
        thresholds=(0, 5, 15, 20, 100, 200),
        bits=(8, 16, 32),
        rates=(1.0, 4.0),
        checked=(50, 100, 200, 300),
    )


SCALES = {
    "smoke": NCCBScale(
        name="smoke",
        summary="made-up texts, 16 clients, 6 rounds: shows that everything runs, and nothing else",
        rounds=6,
        seeds=2,
        store="nccb-smoke",
        local_only=True,
        corpora=(_MADE_UP,),
        model={"name": "lstm", "embedding": 8, "hidden": 8, "layers": 1},
        cohort=3,
        local={**LOCAL, "epochs": 1},
        clusters=4,
        threshold=1,
        evaluate_every=1,
        figure_seeds=1,
        thresholds=(0, 3),
        bits=(8, 32),
        rates=(1.0,),
        checked=(3, 6),
    ),
    "short": _paper_scale("short", "100 of 300 rounds, one seed", 100, 1),
    "paper": _paper_scale("paper", "the paper's settings on tweets and blogs, 300 rounds, three seeds", 300, 3),
}

NAMES: dict[str, str | tuple[str, ...]] = {corpus.name: corpus.name for corpus in (*CORPORA, _MADE_UP)}


def groups(scale: Scale, wanted: Wanted) -> list[Group]:
    """Everything that the paper's tables and figures need, the most valuable first."""
    assert isinstance(scale, NCCBScale)
    plan = _Plan(scale, wanted.rounds or scale.rounds)
    seeds = wanted.seeds or tuple(range(scale.seeds))
    few = wanted.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    methods = wanted.methods or METHODS
    printed = tuple(name for name in TABLES if name in methods)
    others = tuple(name for name in methods if name not in TABLES)
    everything = [group for corpus in scale.corpora for group in _tables(plan, corpus, corpus.title, printed, seeds)]
    everything += [group for corpus in scale.corpora for group in _own(plan, corpus, seeds)]
    for make in (_thresholds, _bits, _clients, _rates, _stop_words):
        everything += [group for corpus in scale.corpora for group in make(plan, corpus, few)]
    for corpus in scale.corpora:
        everything += _tables(plan, corpus, f"{corpus.title}, others", others, seeds)
    return everything


def _tables(plan: "_Plan", corpus: Corpus, title: str, methods: Sequence[str], seeds: Sequence[int]) -> Iterator[Group]:
    runs = tuple(plan.run(corpus, method, seed) for seed in seeds for method in methods)
    if runs:
        yield Group(title, ("table-1", "table-2"), runs)


def _own(plan: "_Plan", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = tuple(plan.run(corpus, OURS, seed, OWN, selector={"covariance": OWN}) for seed in seeds)
    yield Group(f"{corpus.title}: a confidence for each client", ("confidence",), runs)


def _rates(plan: "_Plan", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    if corpus is plan.scale.corpora[0]:
        rates = [
            plan.run(corpus, BASELINE, seed, f"rate{rate:g}", local={"rate": rate})
            for seed in seeds[:1]
            for rate in plan.scale.rates
        ]
        yield Group(f"{corpus.title}: the rate", ("rate",), tuple(rates))


def _thresholds(plan: "_Plan", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, OURS, seed, f"threshold{threshold}", selector={"threshold": threshold})
        for seed in seeds
        for threshold in plan.scale.thresholds
    ]
    yield Group(f"{corpus.title}: exploring threshold", ("figure-3",), tuple(runs))


def _bits(plan: "_Plan", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, OURS, seed, f"bits{bits}", selector={"bits": bits})
        for seed in seeds
        for bits in plan.scale.bits
    ]
    yield Group(f"{corpus.title}: bits of a context", ("figure-5",), tuple(runs))


def _clients(plan: "_Plan", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, OURS, seed, f"clients{count}", clients=count)
        for seed in seeds
        for count in corpus.fewer_clients
    ]
    yield Group(f"{corpus.title}: number of clients", ("figure-4",), tuple(runs))


def _stop_words(plan: "_Plan", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    if corpus is plan.scale.corpora[0]:
        runs = [
            plan.run(corpus, method, seed, OTHER_WAY, dataset={"stop_words": OTHER_WAY})
            for seed in seeds
            for method in (*CORE, REFERENCE)
        ]
        yield Group(f"{corpus.title}: stop words removed", ("stop-words",), tuple(runs))


@dataclass(frozen=True)
class _Plan:
    scale: NCCBScale
    rounds: int

    def run(
        self,
        corpus: Corpus,
        method: str,
        seed: int,
        variant: str = "",
        *,
        dataset: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        selector: Mapping[str, Any] | None = None,
        clients: int | None = None,
    ) -> Planned:
        """A run with the settings of the tables, changed as given."""
        scale = self.scale
        settings: dict[str, Any] = {
            "method": method,
            "dataset": {**corpus.dataset, **(dataset or {})},
            "environment": "natural",
            "model": dict(scale.model),
            "clients": clients or corpus.clients,
            "cohort": scale.cohort,
            "rounds": self.rounds,
            "seed": seed,
            "evaluate_every": scale.evaluate_every,
            "local": {**scale.local, **(local or {})},
        }
        if method == OURS:
            bandit = {"bits": BITS, "clusters": scale.clusters, "threshold": scale.threshold}
            settings["selector"] = {**bandit, **(selector or {})}
        return Planned(corpus.name, method, seed, settings, variant, samples=int(corpus.dataset["samples"]))


def page(scale: Scale, store: Store) -> Page:
    """All tables and figures from the store."""
    from papers.nccb_page import page_of

    # A short reproduction is the beginning of the paper's, and its page is the paper's, not yet complete.
    full = next(one for one in reversed(SCALES.values()) if one.store == scale.store)
    return page_of(PAPER, full, store)


PAPER = Paper(
    name="nccb",
    title="NCCB: a neural contextual bandit on SimHash contexts, on stand-ins for its data (Cao et al. 2022)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    page=page,
)
