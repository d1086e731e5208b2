"""What it takes to reproduce a paper, as data: runs in groups, the most valuable first, at several scales.

A run may begin with the model of another one (`Branch`); which clients it then trains on is found out on the way. Or it
may be decided by an agent that is trained beforehand, in runs of its own (`School`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from covey.config.schema import Config
from covey.config.values import chosen
from covey.errors import require
from covey.job.settings import as_config

if TYPE_CHECKING:
    from papers.pages import Page
    from papers.store import Store

ANY = "any"
"""The environment of runs that are the same in all of them (the IID reference)."""

PAGES_ONLY = "tables"
"""What `--only` calls the pages alone, without a run."""

_MACHINE = ("rounds", "seed", "runtime", "workers", "precision", "device", "memory_limit", "data_dir")
"""Settings in which two occasions of one run may differ."""

_COMPOSED = ("selector.clients", "aggregator.clients", "aggregator.ratios", "aggregator.agent")
"""Settings that no plan prescribes: they come of what a base run has estimated, or are where a machine keeps a file."""

_PARTS = ("dataset", "environment", "model", "selector", "aggregator", "many")

Measure = Literal["scores", "estimates"]
"""What is measured of all clients: FedACS's rewards, or estimates of their class shares."""

BranchEstimator = Literal["learned", "ground-truth"]
"""Where a branch's class shares come from: the base run's predictor, or the truth."""


@dataclass(frozen=True)
class Planned:
    """One run that a paper's tables or figures need."""

    environment: str
    """What tables call it; the environment's own name and options are in the settings."""
    method: str
    seed: int
    settings: Mapping[str, Any]
    """Everything that the paper prescribes, as `Config.of` takes it."""
    variant: str = ""
    """What sets it apart from other runs of the same environment, method and seed."""
    measured: tuple[int, ...] = ()
    """After which rounds all clients are measured, for evaluation only (and for branches to be composed by)."""
    measure: Measure = "scores"
    """What is measured of them."""
    kept: tuple[int, ...] = ()
    """After which rounds its model is kept in the work folder, for branches to begin with."""
    branch: "Branch | None" = None
    """Where it begins, if not with an initial model."""
    school: "School | None" = None
    """Where the agent that decides in it is trained, if one is trained beforehand."""
    by_class: bool = False
    """Whether the store keeps the accuracy of every class, and the clients' true class shares."""
    targets: tuple[str, ...] = ()
    """Class mixes on which the store keeps the accuracy: td1, local:7, … and local, every client on its own."""
    samples: int | None = None
    """Samples of a client (on average), where its environment does not say."""

    @property
    def name(self) -> str:
        """Its name in the store and in the work folder."""
        return run_name(self.environment, self.method, self.seed, self.variant)

    @property
    def rounds(self) -> int:
        return int(self.settings["rounds"])

    @property
    def cost(self) -> int:
        """Samples that its clients train on: rounds x cohort x samples x epochs."""
        samples = self.settings["environment"]["samples"] if self.samples is None else self.samples
        return int(self.rounds * self.settings["cohort"] * samples * self.settings["local"]["epochs"])

    def config(self, machine: Mapping[str, Any]) -> Config:
        """The configuration on this machine; an impossible one is refused."""
        return as_config(self.settings, machine)


@dataclass(frozen=True)
class Branch:
    """A beginning at another run's model, on clients that together make a target class mix (On-Demand FL)."""

    base: Planned
    at: int
    """The round of the base run whose model it begins with; one of `base.kept`."""
    target: str
    estimator: BranchEstimator
    estimated: int
    """The round of the base run that its estimates are from; one of `base.measured`."""

    def as_mapping(self) -> dict[str, Any]:
        """What a result says of where it began."""
        return {
            "base": self.base.name,
            "round": self.at,
            "target": self.target,
            "estimator": self.estimator,
            "estimated": self.estimated,
        }


@dataclass(frozen=True)
class School:
    """An agent that is trained beforehand (FedDRL's two stages), and kept in the work folder."""

    name: str
    """Of its file."""
    settings: Mapping[str, Any]
    """Of its workers' runs, as `Config.of` takes them."""
    workers: int
    offline: Mapping[str, Any]
    """How the second stage differs from its defaults."""


def run_name(environment: str, method: str, seed: int, variant: str = "") -> str:
    return f"{environment}-{method}-seed{seed}" + (f"-{variant}" if variant else "")


@dataclass(frozen=True)
class Group:
    """Runs that are wanted together."""

    title: str
    feeds: tuple[str, ...]
    """Tables and figures that it is for: what `--only` takes."""
    runs: tuple[Planned, ...]

    @property
    def cost(self) -> int:
        return sum(run.cost for run in self.runs)

    def blocks(self, most: int) -> Iterator[tuple[Planned, ...]]:
        """The runs seed by seed in blocks of about equal size, none above `most` unless one seed is."""
        seeds = sorted({run.seed for run in self.runs})
        largest = max(sum(run.seed == seed for run in self.runs) for seed in seeds)
        at_once = max(1, most // largest)
        count = -(-len(seeds) // at_once)
        for number in range(count):
            taken = seeds[number * len(seeds) // count : (number + 1) * len(seeds) // count]
            yield tuple(run for run in self.runs if run.seed in taken)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of a paper is run."""

    name: str
    summary: str
    rounds: int
    seeds: int
    store: str
    """Folder of its results, and name of its page; scales with the same one fill the same tables."""
    local_only: bool = False
    """Small enough for any machine: it runs on the CPU, and leaves the results of others alone."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user asks for; None is all that the paper has."""

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
    """A paper that can be reproduced: `groups` says what to run, `page` what the results come to."""

    name: str
    title: str
    scales: Mapping[str, Scale]
    environments: Mapping[str, str | tuple[str, ...]]
    """What users may call an environment → its name in the tables; or a name for several of them."""
    groups: Callable[[Scale, Wanted], Sequence[Group]]
    page: Callable[[Scale, "Store"], "Page"]

    def scale(self, name: str) -> Scale:
        require(name in self.scales, f"There is no scale '{name}' of {self.name}. Scales: {', '.join(self.scales)}.")
        return self.scales[name]

    def plan(self, scale: Scale, wanted: Wanted) -> list[Group]:
        """The groups that are wanted, each run once, in the group that comes first."""
        wanted = replace(wanted, environments=self._environments(wanted.environments))
        everything = self.groups(scale, wanted)
        known = list(dict.fromkeys(name for group in everything for name in group.feeds))
        for name in wanted.only or ():
            require(name in known, f"'{name}' is nothing to reproduce of {self.name}. There are: {', '.join(known)}.")
        seen: set[str] = set()
        plan = []
        for group in everything:
            if wanted.only is not None and not set(wanted.only) & set(group.feeds):
                continue
            runs = tuple(run for run in group.runs if run.name not in seen and _is_wanted(run, wanted))
            seen.update(run.name for run in runs)
            if runs:
                plan.append(replace(group, runs=runs))
        require(len(plan) > 0, f"Nothing of {self.name} is left to run with these environments, methods and groups.")
        return plan

    def _environments(self, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        for name in names:
            known = ", ".join(dict.fromkeys(self._environments_called(*self.environments)))
            require(
                name in self.environments, f"There is no environment '{name}' in {self.name}. Environments: {known}."
            )
        return tuple(dict.fromkeys(self._environments_called(*names)))

    def _environments_called(self, *names: str) -> Iterator[str]:
        for name in names:
            found = self.environments[name]
            yield from [found] if isinstance(found, str) else found


def _is_wanted(run: Planned, wanted: Wanted) -> bool:
    inside = wanted.environments is None or run.environment in (ANY, *wanted.environments)
    return inside and (wanted.methods is None or run.method in wanted.methods)


def differences(planned: Mapping[str, Any], found: Mapping[str, Any], *, common: bool = False) -> list[str]:
    """Settings that are prescribed one way and found another, in words; what a machine may choose aside.

    `common` compares only what both have, so that a setting that is new does not make an old run another one.
    """
    ours, theirs = _flat(planned), _flat(found)
    return [
        f"{key} is {theirs.get(key)!r} and not {value!r}"
        for key, value in ours.items()
        if key not in (*_MACHINE, *_COMPOSED) and theirs.get(key) != value and (key in theirs or not common)
    ]


def made_otherwise(run: Planned, config: Mapping[str, Any], branch: Mapping[str, Any] | None) -> list[str]:
    """How a run that was found is not the planned one (of whatever seed), in words."""
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
    """Sections and parts with dotted keys, sequences as lists."""
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
