"""The grid of runs behind a paper, as data: planned runs in groups, the most valuable first, at several scales.

A run may start from the model of another one (`Branch`); its clients are then chosen while the campaign runs. Or an
agent that was trained beforehand, in runs of its own, decides in it (`AgentPlan`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from covey.config.schema import EARLIER, Config
from covey.config.values import chosen
from covey.errors import require
from covey.job.settings import as_config

if TYPE_CHECKING:
    from papers.page import Page
    from papers.store import Store

ANY = "any"
"""Environment of runs that are the same in all environments (the IID reference)."""

PAGES_ONLY = "tables"
"""Value of `--only` that writes the page without a run."""

_MACHINE = ("rounds", "seed", "runtime", "workers", "precision", "device", "memory_limit", "data_dir")
"""Settings in which two sessions of one run may differ."""

_COMPOSED = ("selector.clients", "aggregator.clients", "aggregator.ratios", "aggregator.agent", "many.features")
"""Settings that no grid prescribes: derived from a base run's estimates, or the path of a file on one machine."""

_PARTS = ("dataset", "environment", "model", "selector", "aggregator", "trainer", "many")

Measure = Literal["scores", "estimates"]
"""Measurements of all clients: FedACS's rewards, or estimates of class shares."""

BranchEstimator = Literal["learned", "ground-truth"]
"""Source of a branch's class shares: the base run's predictor, or the truth."""

OWN_PARTS = ("papers.nccb:RandomCohorts", "papers.nccb:made_up", "papers.nccb:topics")
"""Parts of the plans that are no part of Covey: folders of runs may name them, and no others."""


@dataclass(frozen=True)
class PlannedRun:
    """One run that a paper's tables or figures need."""

    environment: str
    """Its name in tables; the environment's own name and options are in the settings."""
    method: str
    seed: int
    settings: Mapping[str, Any]
    """Everything that the paper prescribes, as `Config.of` takes it."""
    variant: str = ""
    """Distinguishes runs of the same environment, method and seed."""
    measured: tuple[int, ...] = ()
    """Rounds after which all clients are measured, for evaluation and for composing branches."""
    measure: Measure = "scores"
    kept: tuple[int, ...] = ()
    """Rounds after which the model is kept in the work folder, as the start of branches."""
    branch: "Branch | None" = None
    """Start of the run, if not an initial model."""
    agent: "AgentPlan | None" = None
    """Agent that decides in the run, if one is trained beforehand."""
    features: "Features | None" = None
    """Trained model whose features the run uses, if any (convex MOCHA)."""
    by_class: bool = False
    """True if the store keeps the accuracy of every class and the clients' true class shares."""
    targets: tuple[str, ...] = ()
    """Class mixes for which the store keeps the accuracy: td1, local:7, … and local (every client's own mix)."""
    samples: int | None = None
    """Mean number of samples of a client, if the environment does not set it."""

    @property
    def name(self) -> str:
        """Name in the store and in the work folder."""
        return run_name(self.environment, self.method, self.seed, self.variant)

    @property
    def rounds(self) -> int:
        return int(self.settings["rounds"])

    @property
    def cost(self) -> int:
        """Samples that clients train on: rounds x cohort x samples x epochs."""
        samples = self.settings["environment"]["samples"] if self.samples is None else self.samples
        return int(self.rounds * self.settings["cohort"] * samples * self.settings["local"]["epochs"])

    @property
    def base(self) -> "PlannedRun | None":
        """The run whose model this one needs, if any."""
        source = self.branch or self.features
        return None if source is None else source.base

    def config(self, machine: Mapping[str, Any]) -> Config:
        """Return the configuration on this machine; refuse an impossible one."""
        return as_config(self.settings, machine)


@dataclass(frozen=True)
class Branch:
    """Start from another run's model, on clients composed to a target class mix (On-Demand FL)."""

    base: PlannedRun
    at: int
    """Round of the base run whose model is used; one of `base.kept`."""
    target: str
    estimator: BranchEstimator
    estimated: int
    """Round of the base run whose estimates are used; one of `base.measured`."""

    def as_mapping(self) -> dict[str, Any]:
        """Return the part of a result that records where the run started."""
        return {
            "base": self.base.name,
            "round": self.at,
            "target": self.target,
            "estimator": self.estimator,
            "estimated": self.estimated,
        }


@dataclass(frozen=True)
class Features:
    """The model of another run, whose layers below the last one turn samples into features."""

    base: PlannedRun
    at: int
    """Round of the base run whose model is used; one of `base.kept`."""

    @property
    def name(self) -> str:
        """What a result says of it."""
        return f"{self.base.name} after round {self.at}"


@dataclass(frozen=True)
class AgentPlan:
    """An agent that is trained beforehand (FedDRL's two stages) and kept in the work folder."""

    name: str
    """Stem of its file."""
    settings: Mapping[str, Any]
    """Settings of its workers' runs, as `Config.of` takes them."""
    workers: int
    offline: Mapping[str, Any]
    """Options of the second stage that differ from the defaults."""


def run_name(environment: str, method: str, seed: int, variant: str = "") -> str:
    return f"{environment}-{method}-seed{seed}" + (f"-{variant}" if variant else "")


@dataclass(frozen=True)
class Group:
    """Runs that are made together."""

    title: str
    feeds: tuple[str, ...]
    """Tables and figures that need it: the names that `--only` accepts."""
    runs: tuple[PlannedRun, ...]

    @property
    def cost(self) -> int:
        return sum(run.cost for run in self.runs)

    def blocks(self, most: int) -> Iterator[tuple[PlannedRun, ...]]:
        """Yield blocks of whole seeds and about equal size, of at most `most` runs unless one seed has more."""
        seeds = sorted({run.seed for run in self.runs})
        largest = max(sum(run.seed == seed for run in self.runs) for seed in seeds)
        at_once = max(1, most // largest)
        count = -(-len(seeds) // at_once)
        for number in range(count):
            taken = seeds[number * len(seeds) // count : (number + 1) * len(seeds) // count]
            yield tuple(run for run in self.runs if run.seed in taken)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Extent of a reproduction: rounds, seeds, and where its results are kept."""

    name: str
    summary: str
    rounds: int
    seeds: int
    store: str
    """Folder of its results and name of its page; scales that share it fill the same tables."""
    local_only: bool = False
    """True if small enough for any machine: it runs on the CPU, and its results are kept apart from the others'."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Part of a paper that a user asks for; None means everything."""

    seeds: tuple[int, ...] | None = None
    environments: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    rounds: int | None = None
    only: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None:
            require(len(self.seeds) >= 1, "There must be at least one seed.")
            require(len(set(self.seeds)) == len(self.seeds), f"The seeds {list(self.seeds)} are not all different.")
        require(self.rounds is None or self.rounds >= 1, f"rounds must be at least 1, not {self.rounds}.")


@dataclass(frozen=True)
class Paper:
    """A paper that can be reproduced: the runs it needs and the page made from their results."""

    name: str
    title: str
    scales: Mapping[str, Scale]
    environments: Mapping[str, str | tuple[str, ...]]
    """Name that users may give → environment's name in the tables, or a tuple of several."""
    groups: Callable[[Scale, Request], Sequence[Group]]
    make_page: Callable[["Paper", Scale, "Store"], "Page"]

    def scale(self, name: str) -> Scale:
        require(name in self.scales, f"There is no scale '{name}' of {self.name}. Scales: {', '.join(self.scales)}.")
        return self.scales[name]

    def page(self, scale: Scale, store: "Store") -> "Page":
        """Return the page of a scale's results.

        A short scale is the beginning of the full one: its page is the full scale's, with gaps.
        """
        full = [one for one in self.scales.values() if one.store == scale.store][-1]
        return self.make_page(self, full, store)

    def plan(self, scale: Scale, request: Request) -> list[Group]:
        """Return the requested groups; a run of several groups is in the first of them only."""
        request = replace(request, environments=self._environments(request.environments))
        everything = self.groups(scale, request)
        known = list(dict.fromkeys(name for group in everything for name in group.feeds))
        for name in request.only or ():
            require(name in known, f"'{name}' is nothing to reproduce of {self.name}. There are: {', '.join(known)}.")
        seen: set[str] = set()
        plan = []
        for group in everything:
            if request.only is not None and not set(request.only) & set(group.feeds):
                continue
            runs = tuple(run for run in group.runs if run.name not in seen and _is_requested(run, request))
            seen.update(run.name for run in runs)
            if runs:
                plan.append(replace(group, runs=runs))
        require(len(plan) > 0, f"Nothing of {self.name} is left to run with these environments, methods and groups.")
        return plan

    def _environments(self, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        for name in names:
            known = ", ".join(dict.fromkeys(self._environments_named(*self.environments)))
            require(
                name in self.environments, f"There is no environment '{name}' in {self.name}. Environments: {known}."
            )
        return tuple(dict.fromkeys(self._environments_named(*names)))

    def _environments_named(self, *names: str) -> Iterator[str]:
        for name in names:
            found = self.environments[name]
            yield from [found] if isinstance(found, str) else found


def _is_requested(run: PlannedRun, request: Request) -> bool:
    inside = request.environments is None or run.environment in (ANY, *request.environments)
    return inside and (request.methods is None or run.method in request.methods)


def differences(planned: Mapping[str, Any], found: Mapping[str, Any], *, common: bool = False) -> list[str]:
    """Return the settings that differ from the planned ones, in words; settings of the machine are ignored.

    With `common`, only settings that both have are compared, so that a new option does not make old runs invalid.
    Runs from before a setting existed have the value that it had then.
    """
    ours, theirs = _flat(planned), {**EARLIER, **_flat(found)}
    return [
        f"{key} is {theirs.get(key)!r} and not {value!r}"
        for key, value in ours.items()
        if key not in (*_MACHINE, *_COMPOSED) and theirs.get(key) != value and (key in theirs or not common)
    ]


def run_differences(run: PlannedRun, config: Mapping[str, Any], branch: Mapping[str, Any] | None) -> list[str]:
    """Return how a run that was found differs from the planned one, in words; seeds are ignored."""
    other = differences(run.settings, config)
    if run.branch is not None:
        ours, theirs = run.branch.as_mapping(), branch or {}
        other += [
            f"its {key} is {theirs.get(key)!r} and not {value!r}"
            for key, value in ours.items()
            if key != "base" and theirs.get(key) != value
        ]
    return other


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under dotted keys, with sequences as lists."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _PARTS:
            name, options = chosen(key, value)
            value = options if name is None else {"name": name, **options}
        if isinstance(value, Mapping):
            flat |= {f"{key}.{option}": _plain(item) for option, item in value.items()}
        else:
            flat[key] = _plain(value)
    return flat


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
