"""Runs of FedACS's tables and figures, the most valuable first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.fedacs.scales import (
    BASELINE,
    CLUSTERED,
    CORE,
    ENVIRONMENTS,
    HISTORY,
    METHODS,
    OBSERVED,
    OURS,
    POISONED,
    POOL,
    REFERENCE,
    RIVAL,
    STEP,
    FedACSScale,
)
from papers.grid import ANY, Group, PlannedRun, Request, Scale


def groups(scale: Scale, request: Request) -> list[Group]:
    """Return all runs of the paper's tables and figures, the most valuable first."""
    assert isinstance(scale, FedACSScale)
    plan = _FedACSRuns(scale, request.rounds or scale.rounds)
    seeds = request.seeds or tuple(range(scale.seeds))
    few = request.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    methods = request.methods or METHODS
    core = tuple(name for name in CORE if name in methods)
    others = tuple(name for name in methods if name not in CORE)
    everything = []
    for environment in ENVIRONMENTS:
        feeds = ("table-2", "table-3", "figure-6", *(("figure-8", "figure-9") if environment.name == "uniform" else ()))
        for title, part in ((environment.title, core), (f"{environment.title}, others", others)):
            runs = [plan.run(environment.name, method, seed) for seed in seeds for method in part]
            if runs:
                everything.append(Group(title, feeds, tuple(runs)))
    return everything + _figures(plan, scale, few)


def _figures(plan: "_FedACSRuns", scale: FedACSScale, seeds: Sequence[int]) -> list[Group]:
    """Return the runs of the side figures, and of local training as printed."""
    printed = [plan.run("uniform", name, seed, "printed", local=scale.printed) for seed in seeds for name in CORE]
    early = [
        plan.run("uniform", OURS, seed, f"early{scale.early_stop}", selector={"early_stop": scale.early_stop})
        for seed in seeds
    ]
    pools = [
        plan.run("uniform", OURS, seed, f"pool{pool:g}", selector={"pool": pool})
        for seed in seeds
        for pool in scale.pools
    ]
    observed = [
        plan.run(OBSERVED, name, seed, environment={"group": scale.group}, measured=scale.measured)
        for seed in seeds
        for name in (BASELINE, OURS)
    ]
    own: dict[str, Any] = {
        "environment": {"samples": scale.own_samples},
        "local": {**scale.authors, "batch": scale.own_batch},
    }
    section_3 = [
        plan.run(name, method, seed, "section3", **own)
        for seed in seeds
        for name, method in (
            ("uniform", REFERENCE),
            *((one.name, BASELINE) for one in ENVIRONMENTS if one.drop is not None),
        )
    ]
    numbers = [
        plan.run("iid", BASELINE, seed, f"clients{count}", clients=count, **own)
        for seed in seeds
        for count in scale.client_numbers
    ]
    poisoned = [
        plan.run("uniform", name, seed, POISONED, altered={"poison": scale.poisoned})
        for seed in seeds
        for name in (BASELINE, OURS, RIVAL)
    ]
    clustered = [
        plan.run(
            CLUSTERED,
            name,
            seed,
            environment={"samples": scale.cluster_samples, "groups": "overlapping"},
            local={**scale.authors, "batch": scale.own_batch},
            rounds=scale.cluster_rounds,
        )
        for seed in seeds
        for name in (BASELINE, OURS)
    ]
    return [
        Group("clients with wrong labels", ("poisoners",), tuple(poisoned)),
        Group("cluster skew", ("clusters",), tuple(clustered)),
        Group("the recipe as printed", ("printed",), tuple(printed)),
        Group("early stop", ("figure-10",), tuple(early)),
        Group("size of the pool", ("figure-7", "figure-9"), tuple(pools)),
        Group("scores of all clients", ("figure-4", "figure-8"), tuple(observed)),
        Group("what skew costs", ("figure-2",), tuple(section_3)),
        Group("what few data cost", ("figure-5",), tuple(numbers)),
    ]


@dataclass(frozen=True)
class _FedACSRuns:
    """Makes planned runs of one scale."""

    scale: FedACSScale
    rounds: int

    def run(
        self,
        environment_name: str,
        method: str,
        seed: int,
        variant: str = "",
        *,
        environment: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        selector: Mapping[str, Any] | None = None,
        clients: int | None = None,
        altered: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        measured: tuple[int, ...] = (),
    ) -> PlannedRun:
        """Return a run with the settings of section VII, changed as given."""
        scale = self.scale
        # IID takes only the numbers of samples from an environment, and these are the same in all of them.
        where, split = (ANY, "uniform") if method == REFERENCE else (environment_name, environment_name)
        settings: dict[str, Any] = {
            "method": method,
            "dataset": scale.dataset,
            "environment": {"name": split, "samples": scale.samples, **(environment or {})},
            "model": scale.model,
            "clients": clients or scale.clients,
            "cohort": scale.cohort,
            "rounds": min(self.rounds, rounds or self.rounds),
            "seed": seed,
            "evaluate_every": scale.evaluate_every,
            "local": local or scale.authors,
        }
        if method == OURS:
            bandit = {"pool": POOL, "history": HISTORY, "step": STEP, "early_stop": None}
            settings["selector"] = {**bandit, **(selector or {})}
        if altered:
            settings["altered"] = dict(altered)
        at = tuple(t for t in measured if t <= self.rounds)
        return PlannedRun(where, method, seed, settings, variant, at)
