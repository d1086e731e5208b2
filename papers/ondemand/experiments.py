"""Runs of On-Demand FL's tables and figures, the most valuable first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from covey.errors import require
from papers.grid import Branch, BranchEstimator, Features, Group, PlannedRun, Request, Scale
from papers.ondemand.scales import (
    BASELINE,
    CONVEX,
    DEEP,
    INFERENCE_FROM_MEAN,
    LATE,
    MANY,
    MEAN,
    MEAN_BASE,
    METHODS,
    OURS,
    PREFIXES,
    RECIPES,
    SAME,
    TARGETS,
    TRAINED,
    TRUE,
    WEIGHTED,
    OnDemandScale,
    Task,
    environment_name,
    variant_of,
)
from papers.store import OWN_MIX


def groups(scale: Scale, request: Request) -> list[Group]:
    """Return all runs of the paper's tables and figures, the most valuable first.

    Base runs of the first data set at every α, which show how well class shares are estimated; models on demand at its
    first α; methods with many models; one seed of data sets that train long (CIFAR-100, whose name is one that `--only`
    takes); variants of all these at the first α, a group each; the other α; all single clients' mixes as targets; the
    other data sets; the rest. Runs with inference from the mean gradient come last.
    """
    assert isinstance(scale, OnDemandScale)
    for name in request.methods or ():
        require(name in METHODS, f"There is no method '{name}' in ondemand. Methods: {', '.join(METHODS)}.")
    plan = _OnDemandRuns(scale, request.rounds)
    seeds = request.seeds or tuple(range(scale.seeds))
    first, alpha = scale.places[0]
    rest = scale.alphas[1:]
    long = [task for task in scale.tasks if not task.listed]
    return [
        plan.bases(first, scale.alphas, seeds),
        *_tuned(plan, first, alpha, seeds),
        *_many(plan, first, alpha, seeds, DEEP),
        *(group for task in long for group in _tuned(plan, task, alpha, seeds[:1], PREFIXES, (task.name,))),
        *_variants(plan, first, alpha, seeds),
        *(group for task in long for group in _same(plan, task, alpha, seeds[:1], PREFIXES)),
        *(group for one in rest for group in _tuned(plan, first, one, seeds)),
        *_more_targets(plan, seeds),
        *(group for task, one in scale.places for group in _place(plan, task, one, seeds)),
        *_mean_gradient(plan, first, alpha, seeds),
        *(group for task in long for group in _mean_gradient(plan, task, alpha, seeds[:1], PREFIXES)),
    ]


def _place(plan: "_OnDemandRuns", task: Task, alpha: float, seeds: tuple[int, ...]) -> Iterator[Group]:
    """All groups of one data set at one α; runs of earlier groups are not repeated."""
    yield from _tuned(plan, task, alpha, seeds)
    yield from _many(plan, task, alpha, seeds, DEEP)
    yield from _many(plan, task, alpha, seeds, CONVEX)
    yield from _variants(plan, task, alpha, seeds)


def _variants(plan: "_OnDemandRuns", task: Task, alpha: float, seeds: tuple[int, ...]) -> Iterator[Group]:
    """Variants of the paper's runs, at the α of the figures: a group each, to be run as time allows."""
    if plan.drawn(task, alpha):
        yield from _same(plan, task, alpha, seeds)
        yield from _branches(plan, task, alpha, seeds, "late estimates", (LATE,), ("late",))
        yield from _many(plan, task, alpha, seeds, WEIGHTED)
        yield from _many(plan, task, alpha, seeds, CONVEX)
        yield from _many(plan, task, alpha, seeds, TRAINED)


def _same(
    plan: "_OnDemandRuns", task: Task, alpha: float, seeds: tuple[int, ...], targets: tuple[str, ...] = ()
) -> Iterator[Group]:
    """FedAvg, from the branch on, on the clients that models on demand are composed of."""
    yield from _branches(plan, task, alpha, seeds, "FedAvg on the composed clients", (SAME,), (SAME,), targets)


def _mean_gradient(
    plan: "_OnDemandRuns", task: Task, alpha: float, seeds: tuple[int, ...], targets: tuple[str, ...] = ()
) -> Iterator[Group]:
    """Base runs whose predictor is applied to mean gradients, and models on demand by their estimates."""
    alphas = plan.scale.alphas if task.listed else (alpha,)
    name, feeds = "inference from the mean gradient", ("mean-gradient",)
    runs = tuple(plan.base(task, one, seed, MEAN_BASE) for seed in seeds for one in alphas)
    yield Group(f"{task.title}: {name}, base runs", feeds, runs)
    yield from _branches(plan, task, alpha, seeds, name, (MEAN,), feeds, targets)


def _tuned(
    plan: "_OnDemandRuns",
    task: Task,
    alpha: float,
    seeds: tuple[int, ...],
    targets: tuple[str, ...] = (),
    part: tuple[str, ...] = (),
) -> Iterator[Group]:
    """Base runs, and models on demand by the predictor and by the truth; together they fill a GPU.

    part: a further name of these groups for `--only`.
    """
    yield plan.bases(task, (alpha,), seeds, part)
    figure = ("figure-4",) if plan.drawn(task, alpha) else ()
    feeds = ("table-2", "table-4", "table-5", *figure, *part)
    yield from _branches(plan, task, alpha, seeds, "on demand", (OURS, TRUE), feeds, targets)


def _branches(
    plan: "_OnDemandRuns",
    task: Task,
    alpha: float,
    seeds: tuple[int, ...],
    name: str,
    methods: tuple[str, ...],
    feeds: tuple[str, ...],
    targets: tuple[str, ...] = (),
) -> Iterator[Group]:
    """Fine-tuning of the base runs for all targets; nothing if the base runs end before it."""
    targets = targets or (*PREFIXES, *plan.scale.local_targets)
    runs = tuple(
        run
        for seed in seeds
        for method in methods
        for target in targets
        for run in plan.branches(
            task, plan.base(task, alpha, seed, MEAN_BASE if method == MEAN else BASELINE), method, target
        )
    )
    if runs:
        yield Group(f"{_title(task, alpha)}: {name}", feeds, runs)


def _many(
    plan: "_OnDemandRuns", task: Task, alpha: float, seeds: tuple[int, ...], methods: tuple[str, ...]
) -> Iterator[Group]:
    """Methods with many models; the convex one is solved on the CPU, in a group of its own so that no other waits."""
    convex = any(name in (*CONVEX, *TRAINED) for name in methods)
    runs = tuple(run for seed in seeds for name in methods for run in plan.many(task, alpha, seed, name))
    if runs and (task.convex or not convex):
        figure = ("figure-4",) if plan.drawn(task, alpha) else ()
        title = "other methods" if methods == DEEP else f"other methods, {', '.join(methods)}"
        own = () if methods == DEEP else methods
        yield Group(f"{_title(task, alpha)}: {title}", ("table-2", "others", *figure, *own), runs)


def _title(task: Task, alpha: float) -> str:
    return f"{task.title} α={alpha:g}"


def _more_targets(plan: "_OnDemandRuns", seeds: tuple[int, ...]) -> Iterator[Group]:
    """The remaining single clients' mixes, of the first task at the first α and one seed, in several groups."""
    scale = plan.scale
    task, alpha = scale.places[0]
    base, size = plan.base(task, alpha, seeds[0]), max(1, scale.clients_as_targets)
    rest = scale.more_local_targets
    for at in range(0, len(rest), size):
        some = rest[at : at + size]
        runs = tuple(
            run for method in (OURS, TRUE) for target in some for run in plan.branches(task, base, method, target)
        )
        if runs:
            names = f"{some[0].partition(':')[2]} to {some[-1].partition(':')[2]}"
            yield Group(f"{_title(task, alpha)}: clients {names}", ("all-local",), runs)


@dataclass(frozen=True)
class _OnDemandRuns:
    """Makes planned runs of one scale."""

    scale: OnDemandScale
    rounds: int | None
    """Most rounds of any run, if requested; branches that start later are left out."""

    def drawn(self, task: Task, alpha: float) -> bool:
        """True if it is in the figures."""
        return alpha == self.scale.alphas[0] and task.listed

    def bases(self, task: Task, alphas: tuple[float, ...], seeds: tuple[int, ...], part: tuple[str, ...] = ()) -> Group:
        """Base runs of a data set."""
        figures = ("figure-4", "figure-5") if self.drawn(task, alphas[0]) else ()
        runs = tuple(self.base(task, alpha, seed) for seed in seeds for alpha in alphas)
        title = task.title if len(alphas) > 1 else _title(task, alphas[0])
        return Group(f"{title}: base runs", ("table-2", "table-3", "table-4", *figures, *part), runs)

    def base(self, task: Task, alpha: float, seed: int, method: str = BASELINE) -> PlannedRun:
        """FedAvg with the predictor: the start of all targets of a seed."""
        inference = INFERENCE_FROM_MEAN if method == MEAN_BASE else {}
        settings = self._settings(task, alpha, seed, task.rounds)
        rounds = settings["rounds"]
        kept = () if task.listed else (*PREFIXES, *self.scale.local_targets)
        early = (1,) if self.drawn(task, alpha) else ()
        return PlannedRun(
            environment_name(task, alpha),
            method,
            seed,
            {**settings, "method": "ondemand", "aggregator": {**task.predictor, **inference}},
            measured=tuple(at for at in sorted({*early, task.estimated, task.branch}) if at <= rounds),
            measure="estimates",
            kept=(task.branch,) if task.branch <= rounds else (),
            by_class=True,
            targets=(OWN_MIX, *kept),
            samples=task.samples,
        )

    def branches(self, task: Task, base: PlannedRun, method: str, target: str) -> list[PlannedRun]:
        """Fine-tuning for one target; nothing if the base run ends before it."""
        if not base.kept:
            return []
        estimator: BranchEstimator = "ground-truth" if method == TRUE else "learned"
        at = task.branch if method in (LATE, TRUE) else task.estimated
        settings = {key: value for key, value in base.settings.items() if key not in ("method", "aggregator")}
        weights = "average" if method == SAME else "ratios"
        settings |= {"selector": {"name": "composed"}, "aggregator": {"name": weights}}
        settings["rounds"] = min(task.tuned, self.rounds or task.tuned)
        branch = Branch(base, task.branch, target, estimator, at)
        about: dict[str, Any] = {"branch": branch, "targets": (target,), "samples": task.samples}
        return [PlannedRun(base.environment, method, base.seed, settings, variant_of(target), **about)]

    def many(self, task: Task, alpha: float, seed: int, method: str) -> list[PlannedRun]:
        """A method with many models; nothing if it needs features of a base run that ends before its branch."""
        settings = self._settings(task, alpha, seed, task.rounds)
        recipe = RECIPES.get(method, method)
        settings |= {"method": recipe, "many": dict(MANY[method]), "evaluate_every": task.evaluate_many_every}
        base = self.base(task, alpha, seed)
        if method in TRAINED and not base.kept:
            return []
        about: dict[str, Any] = {
            "by_class": True,
            "features": Features(base, task.branch) if method in TRAINED else None,
            "targets": (OWN_MIX,) if task.listed else TARGETS,
            "samples": task.samples,
        }
        return [PlannedRun(environment_name(task, alpha), method, seed, settings, **about)]

    def _settings(self, task: Task, alpha: float, seed: int, rounds: int) -> dict[str, Any]:
        return {
            "dataset": dict(task.dataset),
            "environment": {"name": "dirichlet", "alpha": alpha},
            "model": dict(task.model),
            "clients": self.scale.clients,
            "cohort": self.scale.cohort,
            "rounds": min(rounds, self.rounds or rounds),
            "seed": seed,
            # Clients of a Dirichlet split are exchangeable. In its own order, runs of any version have the same ones.
            "numbering": "environment",
            "evaluate_every": task.evaluate_every,
            "local": dict(self.scale.local),
        }
