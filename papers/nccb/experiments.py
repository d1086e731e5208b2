"""Runs of NCCB's tables and figures, the most valuable first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.grid import Group, PlannedRun, Request, Scale
from papers.nccb.corpora import Corpus
from papers.nccb.scales import BASELINE, BITS, CORE, METHODS, OTHER_WAY, OURS, OWN, REFERENCE, TABLES, NCCBScale


def groups(scale: Scale, request: Request) -> list[Group]:
    """Return all runs of the paper's tables and figures, the most valuable first."""
    assert isinstance(scale, NCCBScale)
    plan = _NCCBRuns(scale, request.rounds or scale.rounds)
    seeds = request.seeds or tuple(range(scale.seeds))
    few = request.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    methods = request.methods or METHODS
    printed = tuple(name for name in TABLES if name in methods)
    others = tuple(name for name in methods if name not in TABLES)
    everything = [group for corpus in scale.corpora for group in _tables(plan, corpus, corpus.title, printed, seeds)]
    everything += [group for corpus in scale.corpora for group in _own(plan, corpus, seeds)]
    for make in (_thresholds, _bits, _clients, _rates, _stop_words):
        everything += [group for corpus in scale.corpora for group in make(plan, corpus, few)]
    for corpus in scale.corpora:
        everything += _tables(plan, corpus, f"{corpus.title}, others", others, seeds)
    return everything


def _tables(
    plan: "_NCCBRuns", corpus: Corpus, title: str, methods: Sequence[str], seeds: Sequence[int]
) -> Iterator[Group]:
    runs = tuple(plan.run(corpus, method, seed) for seed in seeds for method in methods)
    if runs:
        yield Group(title, ("table-1", "table-2"), runs)


def _own(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = tuple(plan.run(corpus, OURS, seed, OWN, selector={"covariance": OWN}) for seed in seeds)
    yield Group(f"{corpus.title}: a confidence for each client", ("confidence",), runs)


def _rates(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    if corpus is plan.scale.corpora[0]:
        rates = [
            plan.run(corpus, BASELINE, seed, f"rate{rate:g}", local={"rate": rate})
            for seed in seeds[:1]
            for rate in plan.scale.rates
        ]
        yield Group(f"{corpus.title}: the rate", ("rate",), tuple(rates))


def _thresholds(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, OURS, seed, f"threshold{threshold}", selector={"threshold": threshold})
        for seed in seeds
        for threshold in plan.scale.thresholds
    ]
    yield Group(f"{corpus.title}: exploring threshold", ("figure-3",), tuple(runs))


def _bits(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, OURS, seed, f"bits{bits}", selector={"bits": bits})
        for seed in seeds
        for bits in plan.scale.bits
    ]
    yield Group(f"{corpus.title}: bits of a context", ("figure-5",), tuple(runs))


def _clients(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, OURS, seed, f"clients{count}", clients=count)
        for seed in seeds
        for count in corpus.fewer_clients
    ]
    yield Group(f"{corpus.title}: number of clients", ("figure-4",), tuple(runs))


def _stop_words(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    if corpus is plan.scale.corpora[0]:
        runs = [
            plan.run(corpus, method, seed, OTHER_WAY, dataset={"stop_words": OTHER_WAY})
            for seed in seeds
            for method in (*CORE, REFERENCE)
        ]
        yield Group(f"{corpus.title}: stop words removed", ("stop-words",), tuple(runs))


@dataclass(frozen=True)
class _NCCBRuns:
    """Makes planned runs of one scale."""

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
    ) -> PlannedRun:
        """Return a run with the settings of the tables, changed as given."""
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
        return PlannedRun(corpus.name, method, seed, settings, variant, samples=int(corpus.dataset["samples"]))
