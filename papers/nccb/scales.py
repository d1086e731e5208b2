"""Settings of NCCB's reproduction, and its scales.

As in the paper: users with 150 texts or more, all with as many samples; the next word by an LSTM with an embedding of
200 and 200 units; 5 clients a round, 5 epochs, a rate that is multiplied by 0.9993 after every local epoch. Both
corpora have two layers, as the paper's smaller one; its five layers for Yelp need more data than there are.

The rate is for plain SGD; the paper's 0.002 is for Adam. It was chosen with random selection alone, which reached 6.4,
7.6 and 7.3 % after 20 rounds on the tweets at rates of 1, 2 and 4. The group `rate` runs the others to the end.

NCCB keeps a confidence and k-LinUCB a model for each client, as in the authors' code. `shared` runs both with one for
all clients, as the paper's equations read; `authors` runs NCCB with all values of the authors' code; `regret` records
how far cohorts are from the best ones; `stop-words` hashes stop words, or removes them from the data;
`something-to-win` runs on federations of clients that differ much; `adam` trains with Adam, the paper's rate and its
layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey.data.text import StopWords
from covey.recipes import NCCB_AUTHORS
from papers.grid import Scale
from papers.nccb.corpora import CORPORA, MADE_UP, Corpus
from papers.nccb.uneven import SMALL_UNEVEN, UNEVEN, UnevenFederation

BASELINE, REFERENCE, OURS = "fedavg", "iid", "nccb"

CORE = (BASELINE, OURS, "oort-simple")
LINEAR = "k-linucb"
METHODS = (*CORE, LINEAR, REFERENCE, "oort")
"""In order of their value. The paper compares all but the last, which is Oort as its own authors describe it."""

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
"""Treatment of stop words in the paper, not in the tables."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    OURS: {"covariance": "own", "gamma": 1.0, "stop_words": "ignore"},
    LINEAR: {"model": "disjoint", "stop_words": "ignore"},
}
"""Selectors' options that tell these runs from those made with other defaults."""

SHARED: Mapping[str, Mapping[str, Any]] = {OURS: {"covariance": "diagonal", "gamma": 0.1}, LINEAR: {"model": "shared"}}
"""Variant `shared`: one Z (equation 14), and one θ, for all clients."""

AUTHORS: Mapping[str, Any] = {
    **NCCB_AUTHORS,
    "covariance": "own",
    "width": 16,
    "delta": 0.1,
    "steps": 100,
    "rate": 0.01,
}
"""Variant `authors`: the values of the authors' code (`covey run --method nccb-authors`)."""

ADAM: Mapping[str, Any] = {"optimizer": "adam", "rate": 0.002, "decay": 0.9993}
"""Variant `adam`: the paper's local training, with the layers of its models."""

HASHED = "hashed"
"""Variant with stop words in the hash."""

REGRET = "regret"
"""Variants that end so record their regret; they decide as the runs without."""


@dataclass(frozen=True, kw_only=True)
class NCCBScale(Scale):
    """A scale and the values of the paper's settings at it."""

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
    """Values of k in Fig. 3, in addition to that of the tables."""
    bits: tuple[int, ...]
    """Lengths of a context in Fig. 5, in addition to that of the tables."""
    rates: tuple[float, ...]
    """Learning rates, in addition to that of the tables."""
    checked: tuple[int, ...]
    """Rounds at which rates are compared."""
    uneven: tuple[UnevenFederation, ...]
    """Federations of clients that differ much."""
    uneven_seeds: int


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
        uneven=UNEVEN,
        uneven_seeds=10,
    )


SCALES = {
    "smoke": NCCBScale(
        name="smoke",
        summary="made-up texts, 16 clients, 6 rounds: shows that everything runs, and nothing else",
        rounds=6,
        seeds=2,
        store="nccb-smoke",
        local_only=True,
        corpora=(MADE_UP,),
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
        uneven=SMALL_UNEVEN,
        uneven_seeds=2,
    ),
    "short": _paper_scale("short", "100 of 300 rounds, one seed", 100, 1),
    "paper": _paper_scale("paper", "the paper's settings on tweets and blogs, 300 rounds, three seeds", 300, 3),
}

NAMES: dict[str, str | tuple[str, ...]] = {one.name: one.name for one in (*CORPORA, MADE_UP, *UNEVEN)}
