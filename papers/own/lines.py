"""Runs of the comparison, the most valuable first: groups that somebody with half an hour of a GPU can run in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.grid import ANY, Branch, Group, PlannedRun, Request, Scale
from papers.nccb.corpora import Corpus
from papers.own.scales import (
    AVERAGED,
    AVERAGING,
    BASELINE,
    CLIENT_PART,
    CORRECTED,
    FACTORS,
    FEW,
    MOMENTUM,
    OTHERS,
    OURS,
    PARTS,
    PLUS,
    PRINTED,
    REFERENCE,
    SELECTING,
    SKEWED,
    TEXT_SERVER,
    OwnScale,
    Setting,
)
from papers.store import OWN_MIX

PREFIXES = ("td1", "td2", "td3")
TUNED, TUNED_FROM_OURS = "on-demand", "on-demand-covey"

Line = tuple[str, str]
"""Method and variant."""

FIRST: tuple[Line, ...] = ((OURS, ""), *((name, PLUS) for name in SELECTING))
"""Lines that come first in every setting: six, so that two seeds advance together."""

SECOND: tuple[Line, ...] = tuple((name, AVERAGED) for name in PRINTED)

SET_PRINTED: tuple[Line, ...] = (("fedavg", AVERAGED), ("feddrl-set", AVERAGED))

THIRD: tuple[Line, ...] = (
    *((name, PLUS) for name in OTHERS),
    *((name, AVERAGED) for name in CLIENT_PART),
    (REFERENCE, AVERAGED),
    (OURS, CORRECTED),
)


def groups(scale: Scale, request: Request) -> list[Group]:
    """Return all runs, the most valuable first; the first four groups take about 25 minutes of a GPU."""
    assert isinstance(scale, OwnScale)
    plan = _OwnRuns(scale, request.rounds)
    few = request.seeds or tuple(range(scale.few_seeds))
    rest = tuple(seed for seed in range(scale.seeds) if seed not in few) if request.seeds is None else ()
    order = [FEW, *(name for name in SKEWED if name != FEW)]
    clusters = list(scale.clustered_environments)
    main, more = clusters[:2], clusters[2:]
    everything = [
        *plan.skewed(order[:1], FIRST, few, ("few-class", "must")),
        *plan.reference(few),
        *plan.clustered(main[::-1], (*FIRST, ("feddrl", AVERAGED)), few, ("clusters", "must")),
        *plan.skewed(order[1:2], FIRST, few, ("uniform", "must")),
        *plan.skewed(order[:2], SECOND, few, ("printed", "must")),
        *plan.skewed(order[2:], (*FIRST, *SECOND), few, ("other-environments", "must")),
        *plan.clustered(
            main[::-1], (("fedavg", AVERAGED), ("feddrl-set", AVERAGED)), few, ("clusters-printed", "must")
        ),
        *plan.factorial(few),
        *plan.robustness(few),
        *plan.on_demand(few),
        *plan.texts(few),
        *plan.skewed(order, (*FIRST, *SECOND), rest, ("five-seeds",)),
        *plan.reference(rest),
        *plan.clustered(main[::-1], FIRST, rest, ("five-seeds",)),
        *plan.clustered(more[::-1], (*FIRST, ("feddrl", AVERAGED)), few, ("unequal-clusters",)),
        *plan.skewed(order, THIRD, few, ("more-rivals",)),
        *plan.clustered(main[::-1], THIRD, few, ("more-rivals",)),
        *plan.noise(few),
    ]
    return [group for group in everything if group.runs]


@dataclass(frozen=True)
class _OwnRuns:
    """Makes planned runs of one scale."""

    scale: OwnScale
    rounds: int | None
    """Most rounds of any run, if requested."""

    def skewed(
        self, environments: Sequence[str], lines: Sequence[Line], seeds: Sequence[int], feeds: tuple[str, ...]
    ) -> Iterator[Group]:
        """Lines in FedACS's environments, a group each."""
        for name in environments:
            runs = [self.skewed_run(name, *line, seed) for seed in seeds for line in lines]
            yield Group(f"{SKEWED[name]}, {_named(seeds)}", feeds, _distinct(runs))

    def reference(self, seeds: Sequence[int]) -> Iterator[Group]:
        """IID with momentum and averaging: the same in all of FedACS's environments."""
        runs = [self.skewed_run(FEW, REFERENCE, PLUS, seed) for seed in seeds]
        yield Group(f"IID, {_named(seeds)}", ("iid", "must"), tuple(runs))

    def skewed_run(self, environment: str, method: str, variant: str, seed: int, **changes: Any) -> PlannedRun:
        """Return a run in one of FedACS's environments."""
        setting = self.scale.skewed
        where = ANY if method == REFERENCE else environment
        # IID takes only the numbers of samples from an environment, and these are the same in all of them.
        split = {"name": "uniform" if method == REFERENCE else environment, "samples": setting.samples}
        return self.run(setting, where, split, method, variant, seed, **changes)

    def clustered(
        self, environments: Sequence[str], lines: Sequence[Line], seeds: Sequence[int], feeds: tuple[str, ...]
    ) -> Iterator[Group]:
        """Lines in FedDRL's federations, a group each."""
        for name in environments:
            split = dict(self.scale.clustered_environments[name])
            runs = [self.run(self.scale.clustered, name, split, *line, seed) for seed in seeds for line in lines]
            yield Group(f"{name}, {_named(seeds)}", feeds, _distinct(runs))

    def factorial(self, seeds: Sequence[int]) -> Iterator[Group]:
        """Selection x momentum x client correction; every run also gives the model before averaging."""
        lines = [
            (method, variant + end)
            for end in ("", f"-{CORRECTED}")
            for method in FACTORS
            for variant in (AVERAGED, PLUS)
        ]
        runs = [self.skewed_run(FEW, *line, seed) for seed in seeds for line in lines]
        yield Group(f"which parts earn their place, {_named(seeds)}", ("ablation", "must"), _distinct(runs))

    def robustness(self, seeds: Sequence[int]) -> Iterator[Group]:
        """The method and random selection with the same server, where things are harder."""
        scale, runs = self.scale, []
        local = scale.skewed.local
        for seed in seeds:
            runs.append(self.skewed_run(FEW, OURS, "updates", seed, selector={"shares": "updates"}))
            runs.append(self.skewed_run(FEW, OURS, "sampled", seed, selector={"choice": "sampled"}))
            for method, end in ((OURS, ""), (BASELINE, f"{PLUS}-")):
                for value in scale.availabilities:
                    devices = {"availability": value}
                    runs.append(self.skewed_run(FEW, method, f"{end}availability{value:g}", seed, devices=devices))
                altered = {"poison": scale.flippers}
                runs.append(self.skewed_run(FEW, method, f"{end}flippers", seed, altered=altered))
                for cohort in scale.cohorts:
                    runs.append(self.skewed_run(FEW, method, f"{end}cohort{cohort}", seed, cohort=cohort))
                for factor in scale.rates:
                    changed = {**local, "rate": local["rate"] * factor}
                    runs.append(self.skewed_run(FEW, method, f"{end}rate{factor:.2g}", seed, local=changed))
            bare = {"altered": {"poison": scale.flippers}, "guard": {"on": False}}
            runs.append(self.skewed_run(FEW, OURS, "flippers-unguarded", seed, **bare))
        yield Group(f"robustness, {_named(seeds)}", ("robustness", "must"), tuple(runs))

    def noise(self, seeds: Sequence[int]) -> Iterator[Group]:
        """Noisy class shares; needs the package dp-accounting."""
        runs = [
            self.skewed_run(FEW, OURS, f"epsilon{epsilon:g}", seed, selector={"insight_dp": f"{epsilon:g},1e-5"})
            for seed in seeds
            for epsilon in self.scale.noise
        ]
        yield Group(f"noisy class shares, {_named(seeds)}", ("noise",), tuple(runs))

    def on_demand(self, seeds: Sequence[int]) -> Iterator[Group]:
        """Models on demand from a base run of FedAvg, and from one of the method of half the rounds."""
        task = self.scale.task
        bases, branches = [], []
        for seed in seeds:
            for method, tuned, branch, rounds in (
                (BASELINE, TUNED, task.branch, task.tuned),
                (OURS, TUNED_FROM_OURS, max(1, task.branch // 2), max(1, task.tuned // 2)),
            ):
                base = self._base(method, branch, seed)
                bases.append(base)
                branches += [self._branch(base, tuned, branch, rounds, target) for target in PREFIXES if base.kept]
        title = f"{task.title}, on demand, {_named(seeds)}"
        yield Group(f"{title}: base runs", ("on-demand", "must"), tuple(bases))
        yield Group(title, ("on-demand", "must"), tuple(branches))

    def _base(self, method: str, branch: int, seed: int) -> PlannedRun:
        """Return the start of models on demand; class shares are known exactly, as the closed-form query gives them."""
        settings = self._task_settings(branch, seed) | {"method": method}
        reached = branch <= settings["rounds"]
        about: dict[str, Any] = {"by_class": True, "targets": (OWN_MIX,), "samples": self.scale.task.samples}
        return PlannedRun("ondemand", method, seed, settings, kept=(branch,) if reached else (), **about)

    def _branch(self, base: PlannedRun, method: str, at: int, rounds: int, target: str) -> PlannedRun:
        settings = self._task_settings(rounds, base.seed)
        settings |= {"selector": {"name": "composed"}, "aggregator": {"name": "ratios"}}
        branch = Branch(base, at, target, "ground-truth", at)
        about: dict[str, Any] = {"branch": branch, "targets": (target,), "samples": self.scale.task.samples}
        return PlannedRun("ondemand", method, base.seed, settings, target, **about)

    def _task_settings(self, rounds: int, seed: int) -> dict[str, Any]:
        task, scale = self.scale.task, self.scale
        return {
            "dataset": dict(task.dataset),
            "environment": {"name": "dirichlet", "alpha": 0.1},
            "model": dict(task.model),
            "clients": scale.task_clients,
            "cohort": scale.task_cohort,
            "rounds": min(rounds, self.rounds or rounds),
            "seed": seed,
            "evaluate_every": task.evaluate_every,
            "local": dict(scale.task_local),
        }

    def texts(self, seeds: Sequence[int]) -> Iterator[Group]:
        """Texts, every method with the same server; the method balances groups of clients there."""
        for corpus in self.scale.texts:
            runs = [
                self._text_run(corpus, method, "" if method == OURS else PLUS, seed)
                for seed in seeds
                for method in (OURS, BASELINE, "nccb", "oort")
            ]
            yield Group(f"{corpus.title}, {_named(seeds)}", ("texts", "must"), tuple(runs))

    def _text_run(self, corpus: Corpus, method: str, variant: str, seed: int) -> PlannedRun:
        setting = self.scale.text
        changes: dict[str, Any] = {"dataset": dict(corpus.dataset), "clients": corpus.clients, "server": TEXT_SERVER}
        if method == OURS:
            changes["selector"] = {"shares": "groups"}
        return self.run(setting, corpus.name, {"name": "natural"}, method, variant, seed, **changes)

    def run(
        self,
        setting: Setting,
        name: str,
        environment: Mapping[str, Any],
        method: str,
        variant: str,
        seed: int,
        **changes: Any,
    ) -> PlannedRun:
        """Return a run of a line in an environment of that `name`, with further settings given."""
        settings: dict[str, Any] = {
            "dataset": setting.dataset,
            "environment": dict(environment),
            "model": dict(setting.model),
            "clients": setting.clients,
            "cohort": setting.cohort,
            "rounds": min(setting.rounds, self.rounds or setting.rounds),
            "seed": seed,
            "evaluate_every": setting.evaluate_every,
            "local": dict(setting.local),
            **line_settings(method, variant),
            **changes,
        }
        return PlannedRun(name, method, seed, settings, variant, samples=setting.samples)


def line_settings(method: str, variant: str) -> dict[str, Any]:
    """Return what a line prescribes: its parts, and by the variant the server's half and the clients' correction."""
    settings: dict[str, Any] = dict(PARTS.get(method, {"method": method}))
    if method == "fedcor":
        # Its authors' values for CIFAR-10.
        settings["selector"] = {"warmup": 20, "interval": 50}
    if variant.startswith((AVERAGED, PLUS)):
        settings["averaging"] = dict(AVERAGING)
    if variant.startswith(PLUS):
        settings["server"] = dict(MOMENTUM)
    if variant.endswith(CORRECTED):
        settings["trainer"] = "fedcm"
    return settings


def _distinct(runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    return tuple({run.name: run for run in runs}.values())


def _named(seeds: Sequence[int]) -> str:
    """Return seeds in words: `seeds 0 to 2`."""
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else "no seed"
    return f"seeds {min(seeds)} to {max(seeds)}"
