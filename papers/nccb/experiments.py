"""Runs of NCCB's tables and figures, the most valuable first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.grid import Group, PlannedRun, Request, Scale
from papers.nccb.corpora import Corpus
from papers.nccb.scales import (
    ADAM,
    AUTHORS,
    BASELINE,
    BITS,
    CORE,
    DEFAULTS,
    HASHED,
    LINEAR,
    METHODS,
    OTHER_WAY,
    OURS,
    REFERENCE,
    REGRET,
    SHARED,
    NCCBScale,
)
from papers.nccb.uneven import UnevenFederation

_RANDOM = {"name": "papers.nccb:RandomCohorts"}
"""The selector of random runs that record their regret."""


def groups(scale: Scale, request: Request) -> list[Group]:
    """Return all runs of the paper's tables and figures, the most valuable first."""
    assert isinstance(scale, NCCBScale)
    plan = _NCCBRuns(scale, request.rounds)
    seeds = request.seeds or tuple(range(scale.seeds))
    few = request.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    many = request.seeds or tuple(range(scale.uneven_seeds))
    methods = request.methods or METHODS
    printed = tuple(name for name in METHODS if name in methods)
    others = tuple(name for name in methods if name not in METHODS)
    everything = [group for corpus in scale.corpora for group in _tables(plan, corpus, corpus.title, printed, seeds)]
    everything += [group for corpus in scale.corpora for group in _variants(plan, corpus, seeds)]
    everything += [_something_to_win(plan, one, many) for one in scale.uneven]
    for make in (_regret, _adam, _thresholds, _bits, _clients, _rates, _stop_words):
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


def _variants(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    shared = [plan.run(corpus, method, seed, "shared", selector=SHARED[method]) for seed in seeds for method in SHARED]
    yield Group(f"{corpus.title}: one confidence for all clients", ("shared",), tuple(shared))
    authors = [plan.run(corpus, OURS, seed, "authors", selector=AUTHORS) for seed in seeds]
    yield Group(f"{corpus.title}: the authors' values", ("authors",), tuple(authors))


def _something_to_win(plan: "_NCCBRuns", federation: UnevenFederation, seeds: Sequence[int]) -> Group:
    runs = []
    for seed in seeds:
        runs.append(plan.uneven(federation, BASELINE, seed, selector=_RANDOM))
        runs.append(plan.uneven(federation, OURS, seed, selector={REGRET: True}))
        runs.append(plan.uneven(federation, OURS, seed, "shared", selector={**SHARED[OURS], REGRET: True}))
        runs += [plan.uneven(federation, method, seed) for method in ("oort-simple", "oort", REFERENCE)]
    return Group(f"{federation.title}: something to win", ("something-to-win",), tuple(runs))


def _regret(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = []
    for seed in seeds:
        runs.append(plan.run(corpus, BASELINE, seed, REGRET, selector=_RANDOM))
        for method in (OURS, LINEAR):
            runs.append(plan.run(corpus, method, seed, REGRET, selector={REGRET: True}))
            shared = {**SHARED[method], REGRET: True}
            runs.append(plan.run(corpus, method, seed, f"shared-{REGRET}", selector=shared))
    yield Group(f"{corpus.title}: regret", ("regret",), tuple(runs))


def _adam(plan: "_NCCBRuns", corpus: Corpus, seeds: Sequence[int]) -> Iterator[Group]:
    runs = [
        plan.run(corpus, method, seed, "adam", local=ADAM, layers=corpus.layers)
        for seed in seeds
        for method in (*CORE, LINEAR)
    ]
    yield Group(f"{corpus.title}: Adam and the paper's layers", ("adam",), tuple(runs))


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
        runs = []
        for seed in seeds:
            runs.append(plan.run(corpus, OURS, seed, HASHED, selector={"stop_words": "hash"}))
            for method in (*CORE, REFERENCE):
                runs.append(plan.run(corpus, method, seed, OTHER_WAY, dataset={"stop_words": OTHER_WAY}))
        yield Group(f"{corpus.title}: stop words hashed, or removed", ("stop-words",), tuple(runs))


@dataclass(frozen=True)
class _NCCBRuns:
    """Makes planned runs of one scale."""

    scale: NCCBScale
    rounds: int | None
    """Rounds that a user asks for."""

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
        layers: int | None = None,
    ) -> PlannedRun:
        """Return a run with the settings of the tables, changed as given."""
        scale = self.scale
        settings: dict[str, Any] = {
            "dataset": {**corpus.dataset, **(dataset or {})},
            "environment": "natural",
            "model": {**scale.model, **({"layers": layers} if layers else {})},
            "clients": clients or corpus.clients,
            "cohort": scale.cohort,
            "rounds": self.rounds or scale.rounds,
            "seed": seed,
            "evaluate_every": scale.evaluate_every,
            "local": {**scale.local, **(local or {})},
            **_parts(method, scale.clusters, scale.threshold, selector),
        }
        return PlannedRun(corpus.name, method, seed, settings, variant, samples=int(corpus.dataset["samples"]))

    def uneven(
        self,
        federation: UnevenFederation,
        method: str,
        seed: int,
        variant: str = "",
        *,
        selector: Mapping[str, Any] | None = None,
    ) -> PlannedRun:
        """Return a run on a federation of clients that differ much."""
        settings: dict[str, Any] = {
            "dataset": dict(federation.dataset),
            "environment": dict(federation.environment),
            "model": dict(federation.model),
            "clients": federation.clients,
            "cohort": federation.cohort,
            "rounds": self.rounds or federation.rounds,
            "seed": seed,
            "evaluate_every": self.scale.evaluate_every,
            "local": dict(federation.local),
            **_parts(method, federation.clusters, federation.threshold, selector),
        }
        return PlannedRun(federation.name, method, seed, settings, variant, samples=federation.samples)


def _parts(method: str, clusters: int, threshold: int, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a run's method, with the options of its selector that the plan prescribes."""
    if given is _RANDOM:
        return {"selector": dict(_RANDOM), "aggregator": "average"}
    own = {"bits": BITS, "clusters": clusters, "threshold": threshold} if method == OURS else {}
    options = {**own, **DEFAULTS.get(method, {}), **(given or {})}
    return {"method": method, **({"selector": options} if options else {})}
