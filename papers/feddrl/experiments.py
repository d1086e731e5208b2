"""Runs of FedDRL's tables and figures, the most valuable first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.feddrl.scales import (
    BASELINE,
    DELTA,
    FEDERATED,
    METHODS,
    ONLINE,
    OURS,
    PROXIMAL,
    REFERENCE,
    RULE,
    SET,
    SHARDS,
    SHUFFLED,
    SPLITS,
    SPREAD,
    WITH_AGENT,
    Data,
    FedDRLScale,
    environment_name,
)
from papers.grid import AgentPlan, Group, PlannedRun, Request, Scale


def groups(scale: Scale, request: Request) -> list[Group]:
    """Return all runs of the paper's tables and figures, the most valuable first."""
    assert isinstance(scale, FedDRLScale)
    plan = _FedDRLRuns(scale, request.rounds or scale.rounds, request.methods or METHODS)
    seeds = request.seeds or tuple(range(scale.seeds))
    few = request.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    first, hard = scale.first, scale.hard
    everything = [*plan.table(first, ("ce", "cn"), scale.many, seeds, ("table-3", *_FIGURES, "figure-6", "figure-8"))]
    if hard is not first:
        everything += plan.table(hard, ("ce", "cn"), scale.many, few, ("table-3", *_FIGURES, "figure-7"))
    everything += plan.rule(first, ("ce", "cn"), scale.many, seeds)
    everything += plan.online(first, ("ce", "cn"), scale.many, seeds)
    everything += plan.table(first, ("pa",), scale.many, few, ("table-3", *_FIGURES))
    everything += plan.table(first, ("pa", "ce", "cn"), scale.few, few, ("table-3", *_FIGURES))
    everything += plan.deltas(first, few)
    for data in scale.data[1:]:
        for clients in (scale.many, scale.few):
            splits = ("pa",) if data is hard and clients == scale.many else ("pa", "ce", "cn")
            more = ("figure-6",) if data is hard and clients == scale.few else ()
            everything += plan.table(data, splits, clients, few, ("table-3", *_FIGURES, *more))
    everything += plan.cohorts(hard, few)
    for clients in (scale.many, scale.few):
        everything += plan.table(hard, SHARDS, clients, few, ("table-4",))
    return everything


_FIGURES = ("figure-5", "figure-9", "figure-10")
"""Figures from the runs of Table 3."""


@dataclass(frozen=True)
class _FedDRLRuns:
    """Makes planned runs of one scale."""

    scale: FedDRLScale
    rounds: int
    methods: Sequence[str]

    def table(
        self, data: Data, splits: Sequence[str], clients: int, seeds: Sequence[int], feeds: tuple[str, ...]
    ) -> Iterator[Group]:
        """All methods on some splits; SingleSet in its own group, since the others would wait for its only client."""
        title = f"{data.title}, {clients} clients, {' and '.join(SPLITS[split] for split in splits)}"
        for name, methods in ((title, FEDERATED), (f"{title}, SingleSet", (REFERENCE,))):
            runs = [
                self.run(data, split, clients, method, seed)
                for seed in seeds
                for split in splits
                for method in methods
                if method in self.methods
            ]
            if runs:
                yield Group(name, feeds if methods is FEDERATED else feeds[:1], tuple(runs))

    def rule(self, data: Data, splits: Sequence[str], clients: int, seeds: Sequence[int]) -> Iterator[Group]:
        """FedDRL for sets before it has learned anything: the rule that learning has to beat."""
        runs = [
            self.run(data, split, clients, SET, seed, RULE, trained=False)
            for seed in seeds
            for split in splits
            if SET in self.methods
        ]
        if runs:
            yield Group(f"{data.title}, {clients} clients, FedDRL for sets without learning", (RULE,), tuple(runs))

    def online(self, data: Data, splits: Sequence[str], clients: int, seeds: Sequence[int]) -> Iterator[Group]:
        """Agents that learn in the run itself."""
        runs = [
            self.run(data, split, clients, method, seed, ONLINE, aggregator={"learn": True})
            for seed in seeds
            for split in splits
            for method in WITH_AGENT
            if method in self.methods
        ]
        if runs:
            yield Group(f"{data.title}, {clients} clients, agents without a first stage", (ONLINE,), tuple(runs))

    def deltas(self, data: Data, seeds: Sequence[int]) -> Iterator[Group]:
        """Figure 8, with the agents of the tables' δ."""
        runs = [
            self.run(data, "ce", self.scale.many, method, seed, f"delta{delta:g}", delta=delta)
            for seed in seeds
            for delta in self.scale.deltas
            for method in FEDERATED
            if method in self.methods
        ]
        if runs:
            yield Group(f"{data.title}, {self.scale.many} clients: δ", ("figure-8",), tuple(runs))

    def cohorts(self, data: Data, seeds: Sequence[int]) -> Iterator[Group]:
        """Figure 7; FedDRL needs an agent for each K, FedDRL for sets does not."""
        for cohort in self.scale.cohorts:
            runs = [
                self.run(data, "ce", self.scale.many, method, seed, f"cohort{cohort}", cohort=cohort)
                for seed in seeds
                for method in FEDERATED
                if method in self.methods
            ]
            if runs:
                yield Group(f"{data.title}, {cohort} of {self.scale.many} clients a round", ("figure-7",), tuple(runs))

    def run(
        self,
        data: Data,
        split: str,
        clients: int,
        method: str,
        seed: int,
        variant: str = "",
        *,
        aggregator: Mapping[str, Any] | None = None,
        delta: float = DELTA,
        cohort: int | None = None,
        trained: bool = True,
    ) -> PlannedRun:
        """Return a run with the settings of the tables, changed as given; the agent is untrained unless `trained`."""
        scale, name = self.scale, environment_name(data, split, clients)
        settings = self.settings(data, split, clients, method, delta, cohort)
        settings |= {"rounds": self.rounds, "seed": seed}
        each = data.samples_each(split, clients, delta)
        agent = None
        if method == REFERENCE:
            settings["rounds"] = min(self.rounds, scale.single_rounds)
            settings["evaluate_every"] = 1
            each = each * clients // settings["cohort"]
        elif method in (BASELINE, PROXIMAL):
            settings["aggregator"] = {"fairness": True}
        elif method in WITH_AGENT:
            settings["aggregator"] = {"learn": False, **(aggregator or {})}
            if trained and not settings["aggregator"]["learn"]:
                agent = self.agent(data, split, clients, method, seed, cohort if method == OURS else None)
            if agent is not None or method == OURS:
                settings["numbering"] = SHUFFLED
        return PlannedRun(name, method, seed, settings, variant, samples=each, agent=agent)

    def agent(self, data: Data, split: str, clients: int, method: str, seed: int, cohort: int | None) -> AgentPlan:
        """Return the agent of one seed, trained on the federation of that seed, at the δ of the tables."""
        scale = self.scale
        settings = self.settings(data, split, clients, method, DELTA, cohort)
        rounds = scale.worker_rounds
        settings |= {"rounds": rounds, "seed": seed, "evaluate_every": rounds, "aggregator": {"learn": True}}
        settings["numbering"] = SHUFFLED
        name = f"{environment_name(data, split, clients)}-{method}" + (f"-cohort{cohort}" if cohort else "")
        return AgentPlan(f"{name}-{scale.workers}x{rounds}-seed{seed}", settings, scale.workers, scale.offline)

    def settings(
        self, data: Data, split: str, clients: int, method: str, delta: float, cohort: int | None
    ) -> dict[str, Any]:
        """Return the settings of all runs on a federation, without rounds and seed."""
        scale = self.scale
        return {
            "method": method,
            "dataset": data.dataset,
            "environment": self.environment(data, split, clients, delta),
            "model": dict(data.model),
            "clients": clients,
            "cohort": min(cohort or scale.cohort, clients),
            "evaluate_every": data.evaluate_every,
            "local": dict(scale.local),
        }

    def environment(self, data: Data, split: str, clients: int, delta: float) -> dict[str, Any]:
        """Return the environment as in the authors' lists.

        With few clients, groups are disjoint; with many, labels outside the main group are random.
        """
        if split == "pa":
            return {"name": "pareto", "labels": data.labels}
        if split in ("equal", "unequal"):
            return {"name": f"shards-{split}"}
        name = "clustered-equal" if split == "ce" else "clustered-unequal"
        own: dict[str, Any] = {"name": name, "delta": delta, "labels": data.labels}
        own["groups"] = "disjoint" if clients == self.scale.few else "overlapping"
        if split == "cn":
            # Unequal sizes are multiples of the equal size, which only the environment knows.
            return {**own, "spread": data.spread.get(clients, SPREAD)}
        held = data.held.get(clients)
        return own if held is None else {**own, "samples": held}
