"""On-Demand FL: what to run for the tables and figures of Jeong and Lee, "On-Demand Federated Learning for Arbitrary
Target Class Distributions", AISTATS 2024.

Section 5: Fashion-MNIST, CIFAR-10 and CIFAR-100, each class split over 100 clients by a Dirichlet(α) with α = 0.1, 0.5
and 1; 10 clients a round train for one epoch in batches of 10, at a rate of 0.01 with momentum 0.9. A base run is
FedAvg with the class distribution predictor beside it. Its model after 100, 150 and 1,200 rounds is fine-tuned for each
target (TD 1 to 3, and the mixes of single clients) on clients that are composed by what was estimated of their class
shares after 50, 50 and 200 rounds, as in the authors' code; and the base run itself goes on to 300, 300 and 2,000
rounds, which is the FedAvg that the tables compare with. So one base run serves every target.

The last layer has a bias, which the authors' network for the first two data sets does not have: class shares can then
also be computed in closed form, and all estimators are measured on the same run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from covey.errors import require
from papers.ondemand_printed import ALPHAS, CIFAR10, CIFAR100, FASHION, Printed
from papers.pages import Page
from papers.plan import Branch, BranchEstimator, Group, Paper, Planned, Scale, Wanted
from papers.store import LISTED_CLASSES, OWN_MIX, Store

BASELINE, OURS, LATE, TRUE = "fedavg", "on-demand", "on-demand-late", "ground-truth"

MANY: Mapping[str, Mapping[str, Any]] = {
    "cfl": {"participation": "cohort"},
    "mocha-deep": {"participation": "cohort"},
    "fedfomo": {"participation": "cohort"},
    "mocha": {"participation": "cohort"},
}
"""Methods with many models that the paper compares with, and their options: a tenth of the clients takes part."""

_DEEP, _CONVEX = ("cfl", "mocha-deep", "fedfomo"), ("mocha",)

METHODS = (BASELINE, OURS, TRUE, *MANY, LATE)

TITLES = {
    BASELINE: "FedAvg",
    "cfl": "CFL",
    "mocha-deep": "FMTL (MOCHA, deep)",
    "mocha": "FMTL (MOCHA, convex)",
    "fedfomo": "FedFomo",
    OURS: "on demand",
    LATE: "on demand, estimates at the branch",
    TRUE: "on demand, ground truth",
}

PREFIXES = ("td1", "td2", "td3")
TARGETS = (*PREFIXES, OWN_MIX)
"""The columns of the paper's tables; the last one is the mean over targets that are single clients' mixes."""

LOCAL = {"epochs": 1, "batch": 10, "rate": 0.01, "momentum": 0.9}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set with its model, and how long it is trained."""

    name: str
    title: str
    dataset: Mapping[str, Any]
    classes: int
    model: Mapping[str, Any]
    predictor: Mapping[str, Any]
    """Options of the predictor's training."""
    samples: int
    """Per client, on average."""
    rounds: int
    """Of FedAvg, and of the methods that it is compared with."""
    branch: int
    """After which round of FedAvg fine-tuning begins."""
    estimated: int
    """After which round class shares are estimated."""
    tuned: int
    """Rounds of fine-tuning."""
    evaluate_every: int
    evaluate_many_every: int
    """Rounds between evaluations where every client has a model of its own."""
    convex: bool = True
    """Whether the model ends in a linear layer, which the convex MOCHA needs."""
    printed: Printed | None = None

    @property
    def listed(self) -> bool:
        """Whether results keep the accuracy of every class."""
        return self.classes <= LISTED_CLASSES


_LEAF = {"name": "leaf-cnn", "head_bias": True}

TASKS = (
    Task(
        name="cifar10",
        title="CIFAR-10",
        dataset={"name": "cifar10", "normalise": "none"},
        classes=10,
        model=_LEAF,
        predictor={"epochs": 1, "batch": 5},
        samples=500,
        rounds=300,
        branch=150,
        estimated=50,
        tuned=150,
        evaluate_every=1,
        evaluate_many_every=20,
        printed=CIFAR10,
    ),
    Task(
        name="fashion",
        title="Fashion-MNIST",
        dataset={"name": "fashion-mnist", "normalise": "none"},
        classes=10,
        model=_LEAF,
        predictor={"epochs": 10, "batch": 10},
        samples=600,
        rounds=300,
        branch=100,
        estimated=50,
        tuned=100,
        evaluate_every=1,
        evaluate_many_every=20,
        printed=FASHION,
    ),
    Task(
        name="cifar100",
        title="CIFAR-100",
        dataset={"name": "cifar100", "normalise": "none"},
        classes=100,
        model={"name": "mobilenetv2"},
        predictor={"epochs": 1, "batch": 5},
        samples=500,
        rounds=2000,
        branch=1200,
        estimated=200,
        tuned=300,
        evaluate_every=5,
        evaluate_many_every=50,
        convex=False,
        printed=CIFAR100,
    ),
)

_DIGITS = Task(
    name="digits",
    title="digits",
    dataset={"name": "digits"},
    classes=10,
    model={"name": "mlp", "hidden": (16,)},
    predictor={"epochs": 1, "batch": 2, "hidden": 16},
    samples=72,
    rounds=6,
    branch=4,
    estimated=2,
    tuned=3,
    evaluate_every=1,
    evaluate_many_every=2,
)


@dataclass(frozen=True, kw_only=True)
class OnDemandScale(Scale):
    """A scale with the numbers that the paper's settings come down to at it."""

    tasks: tuple[Task, ...]
    alphas: tuple[float, ...]
    clients: int
    cohort: int
    local: Mapping[str, Any]
    clients_as_targets: int
    """How many single clients' mixes are targets."""
    more_clients_as_targets: int = 0
    """How many there are in all of the first task at the first α, in groups that come last."""

    @property
    def local_targets(self) -> tuple[str, ...]:
        """Clients are alike until their data are dealt, so the first ones are as good a sample as any."""
        return tuple(f"local:{client}" for client in range(self.clients_as_targets))

    @property
    def more_local_targets(self) -> tuple[str, ...]:
        return tuple(f"local:{client}" for client in range(self.clients_as_targets, self.more_clients_as_targets))

    @property
    def places(self) -> list[tuple[Task, float]]:
        return [(task, alpha) for task in self.tasks for alpha in self.alphas]


def _paper_scale(name: str, summary: str, seeds: int, clients_as_targets: int, more: int = 0) -> OnDemandScale:
    return OnDemandScale(
        name=name,
        summary=summary,
        rounds=max(task.rounds for task in TASKS),
        seeds=seeds,
        store="ondemand",
        tasks=TASKS,
        alphas=ALPHAS,
        clients=100,
        cohort=10,
        local=LOCAL,
        clients_as_targets=clients_as_targets,
        more_clients_as_targets=more,
    )


SCALES = {
    "smoke": OnDemandScale(
        name="smoke",
        summary="handwritten digits, 20 clients, 6 rounds: shows that everything runs, and nothing else",
        rounds=6,
        seeds=1,
        store="ondemand-smoke",
        local_only=True,
        tasks=(_DIGITS,),
        alphas=(0.1,),
        clients=20,
        cohort=4,
        local=LOCAL,
        clients_as_targets=2,
        more_clients_as_targets=3,
    ),
    "short": _paper_scale("short", "the paper's settings, one seed, three single clients as targets", 1, 3),
    "paper": _paper_scale("paper", "the paper's settings, three seeds, ten single clients as targets", 3, 10, 100),
}

ENVIRONMENT_TASKS = (*TASKS, _DIGITS)


def environment_name(task: Task, alpha: float) -> str:
    return f"{task.name}-{alpha:.1f}"


NAMES: dict[str, str | tuple[str, ...]] = {
    **{environment_name(task, alpha): environment_name(task, alpha) for task in ENVIRONMENT_TASKS for alpha in ALPHAS},
    **{task.name: tuple(environment_name(task, alpha) for alpha in ALPHAS) for task in ENVIRONMENT_TASKS},
}


def variant_of(target: str) -> str:
    """What sets the run of a target apart; fit for a file's name."""
    return target.replace(":", "")


def groups(scale: Scale, wanted: Wanted) -> list[Group]:
    """Everything that the paper's tables and figures need, the most valuable first.

    The base runs of the first data set at every α, which tell how well class shares are estimated; models on demand at
    its first α; methods with many models; a single seed of data sets whose training is long (CIFAR-100); then the
    other α, all single clients' mixes as targets, the other data sets, and what remains.
    """
    assert isinstance(scale, OnDemandScale)
    for name in wanted.methods or ():
        require(name in METHODS, f"There is no method '{name}' in ondemand. Methods: {', '.join(METHODS)}.")
    plan = _Plan(scale, wanted.rounds)
    seeds = wanted.seeds or tuple(range(scale.seeds))
    first, alpha = scale.places[0]
    rest = scale.alphas[1:]
    long = [task for task in scale.tasks if not task.listed]
    return [
        plan.bases(first, scale.alphas, seeds),
        *_tuned(plan, first, alpha, seeds),
        *_many(plan, first, alpha, seeds, _DEEP),
        *(group for task in long for group in _tuned(plan, task, alpha, seeds[:1], PREFIXES)),
        *(group for one in rest for group in _tuned(plan, first, one, seeds)),
        *_late(plan, first, alpha, seeds),
        *_many(plan, first, alpha, seeds, _CONVEX),
        *_more_targets(plan, seeds),
        *(group for task, one in scale.places for group in _place(plan, task, one, seeds)),
    ]


def _place(plan: "_Plan", task: Task, alpha: float, seeds: tuple[int, ...]) -> Iterator[Group]:
    """All groups of one data set at one α; what came before is not run twice."""
    yield from _tuned(plan, task, alpha, seeds)
    yield from _late(plan, task, alpha, seeds)
    yield from _many(plan, task, alpha, seeds, _DEEP)
    yield from _many(plan, task, alpha, seeds, _CONVEX)


def _tuned(
    plan: "_Plan", task: Task, alpha: float, seeds: tuple[int, ...], targets: tuple[str, ...] = ()
) -> Iterator[Group]:
    """Base runs, and models on demand by the predictor and by the truth, which fill a GPU together."""
    yield plan.bases(task, (alpha,), seeds)
    figure = ("figure-4",) if plan.drawn(task, alpha) else ()
    feeds = ("table-2", "table-4", "table-5", *figure)
    yield from _branches(plan, task, alpha, seeds, "on demand", (OURS, TRUE), feeds, targets)


def _late(plan: "_Plan", task: Task, alpha: float, seeds: tuple[int, ...]) -> Iterator[Group]:
    """Models on demand by estimates that are as old as the model."""
    if plan.drawn(task, alpha):
        yield from _branches(plan, task, alpha, seeds, "late estimates", (LATE,), ("late",))


def _branches(
    plan: "_Plan",
    task: Task,
    alpha: float,
    seeds: tuple[int, ...],
    name: str,
    methods: tuple[str, ...],
    feeds: tuple[str, ...],
    targets: tuple[str, ...] = (),
) -> Iterator[Group]:
    """The fine-tuning of the base runs for all targets; none where the base runs end before it."""
    targets = targets or (*PREFIXES, *plan.scale.local_targets)
    runs = tuple(
        run
        for seed in seeds
        for method in methods
        for target in targets
        for run in plan.branches(task, plan.base(task, alpha, seed), method, target)
    )
    if runs:
        yield Group(f"{_title(task, alpha)}: {name}", feeds, runs)


def _many(plan: "_Plan", task: Task, alpha: float, seeds: tuple[int, ...], methods: tuple[str, ...]) -> Iterator[Group]:
    """Methods with many models; the convex one is solved on the CPU, and holds nobody up in a group of its own."""
    names = [name for name in methods if task.convex or name not in _CONVEX]
    if names:
        figure = ("figure-4",) if plan.drawn(task, alpha) else ()
        title = "other methods" if methods == _DEEP else "other methods, convex"
        runs = tuple(plan.many(task, alpha, seed, name) for seed in seeds for name in names)
        yield Group(f"{_title(task, alpha)}: {title}", ("table-2", "others", *figure), runs)


def _title(task: Task, alpha: float) -> str:
    return f"{task.title} α={alpha:g}"


def _more_targets(plan: "_Plan", seeds: tuple[int, ...]) -> Iterator[Group]:
    """The other single clients' mixes, of the first task at the first α and one seed, some at a time."""
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
class _Plan:
    scale: OnDemandScale
    rounds: int | None
    """Most rounds of any run, where a user wants fewer; a branch that begins later is left out."""

    def drawn(self, task: Task, alpha: float) -> bool:
        """Whether it is in the figures."""
        return alpha == self.scale.alphas[0] and task.listed

    def bases(self, task: Task, alphas: tuple[float, ...], seeds: tuple[int, ...]) -> Group:
        """The base runs of a data set."""
        figures = ("figure-4", "figure-5") if self.drawn(task, alphas[0]) else ()
        runs = tuple(self.base(task, alpha, seed) for seed in seeds for alpha in alphas)
        title = task.title if len(alphas) > 1 else _title(task, alphas[0])
        return Group(f"{title}: base runs", ("table-2", "table-3", "table-4", *figures), runs)

    def base(self, task: Task, alpha: float, seed: int) -> Planned:
        """FedAvg with the predictor: what all targets of a seed begin with."""
        settings = self._settings(task, alpha, seed, task.rounds)
        rounds = settings["rounds"]
        kept = () if task.listed else (*PREFIXES, *self.scale.local_targets)
        early = (1,) if self.drawn(task, alpha) else ()
        return Planned(
            environment_name(task, alpha),
            BASELINE,
            seed,
            {**settings, "method": "ondemand", "aggregator": dict(task.predictor)},
            measured=tuple(at for at in sorted({*early, task.estimated, task.branch}) if at <= rounds),
            measure="estimates",
            kept=(task.branch,) if task.branch <= rounds else (),
            by_class=True,
            targets=(OWN_MIX, *kept),
            samples=task.samples,
        )

    def branches(self, task: Task, base: Planned, method: str, target: str) -> list[Planned]:
        """The fine-tuning for one target; none where the base run ends before it."""
        if not base.kept:
            return []
        estimator: BranchEstimator = "ground-truth" if method == TRUE else "learned"
        at = task.estimated if method == OURS else task.branch
        settings = {key: value for key, value in base.settings.items() if key not in ("method", "aggregator")}
        settings |= {"selector": {"name": "composed"}, "aggregator": {"name": "ratios"}}
        settings["rounds"] = min(task.tuned, self.rounds or task.tuned)
        branch = Branch(base, task.branch, target, estimator, at)
        about: dict[str, Any] = {"branch": branch, "targets": (target,), "samples": task.samples}
        return [Planned(base.environment, method, base.seed, settings, variant_of(target), **about)]

    def many(self, task: Task, alpha: float, seed: int, method: str) -> Planned:
        """A method that keeps many models."""
        settings = self._settings(task, alpha, seed, task.rounds)
        settings |= {"method": method, "many": dict(MANY[method]), "evaluate_every": task.evaluate_many_every}
        return Planned(
            environment_name(task, alpha),
            method,
            seed,
            settings,
            by_class=True,
            targets=(OWN_MIX,) if task.listed else TARGETS,
            samples=task.samples,
        )

    def _settings(self, task: Task, alpha: float, seed: int, rounds: int) -> dict[str, Any]:
        return {
            "dataset": dict(task.dataset),
            "environment": {"name": "dirichlet", "alpha": alpha},
            "model": dict(task.model),
            "clients": self.scale.clients,
            "cohort": self.scale.cohort,
            "rounds": min(rounds, self.rounds or rounds),
            "seed": seed,
            "evaluate_every": task.evaluate_every,
            "local": dict(self.scale.local),
        }


def page(scale: Scale, store: Store) -> Page:
    """All tables and figures from the store."""
    from papers.ondemand_page import page_of

    # A short reproduction is the beginning of the paper's, and its page is the paper's, not yet complete.
    full = next(one for one in reversed(SCALES.values()) if one.store == scale.store)
    return page_of(PAPER, full, store)


PAPER = Paper(
    name="ondemand",
    title="On-Demand FL: models for target class mixes from composed clients (Jeong and Lee 2024)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    page=page,
)
