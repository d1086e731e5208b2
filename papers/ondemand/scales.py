"""Settings of On-Demand FL: data sets, targets, and the scales of the reproduction.

Section 5: Fashion-MNIST, CIFAR-10 and CIFAR-100, each class split over 100 clients by a Dirichlet(α) with α = 0.1, 0.5
and 1; 10 clients a round train for one epoch in batches of 10, at a rate of 0.01 with momentum 0.9. A base run is
FedAvg with the class distribution predictor beside it. Its model after 100, 150 and 1,200 rounds is fine-tuned for each
target (TD 1 to 3, and the mixes of single clients) on clients composed from the class shares estimated after 50, 50 and
200 rounds, as in the authors' code. The base run itself continues to 300, 300 and 2,000 rounds: that is the FedAvg of
the tables. So one base run serves every target.

The last layer has a bias, which the authors' network for the first two data sets lacks: class shares can then also be
computed in closed form, and all estimators are measured on the same run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from papers.grid import Scale
from papers.ondemand.printed import ALPHAS, Printed, printed_numbers
from papers.store import LISTED_CLASSES, OWN_MIX

BASELINE, OURS, LATE, TRUE = "fedavg", "on-demand", "on-demand-late", "ground-truth"

SAME = "fedavg-same-clients"
"""FedAvg from the branch on, on the clients that a model on demand is composed of, weighted by samples."""

MEAN_BASE, MEAN = "fedavg-mean-gradient", "on-demand-mean-gradient"
"""Base runs whose predictor is applied to a client's mean gradient, and models on demand by their estimates."""

INFERENCE = {"sends": "shares", "gradients": "mixed"}
"""The predictor learns along local training. It is applied to every mini-batch's gradient at the model received, and
the predictions are averaged (eq. 6)."""

INFERENCE_FROM_MEAN = {"sends": "gradient", "gradients": "received"}

MANY: Mapping[str, Mapping[str, Any]] = {
    "cfl": {"participation": "cohort"},
    "mocha-deep": {"participation": "cohort"},
    "fedfomo": {"participation": "cohort", "form": "delta"},
    "fedfomo-weighted": {"participation": "cohort", "form": "weighted"},
    "mocha": {"participation": "cohort"},
    "mocha-trained": {"participation": "cohort"},
}
"""Methods with many models that the paper compares with, and their options; a tenth of the clients takes part."""

RECIPES = {"fedfomo-weighted": "fedfomo", "mocha-trained": "mocha"}
"""Method of the plan → Covey's method, where the names differ."""

DEEP, WEIGHTED = ("cfl", "mocha-deep", "fedfomo"), ("fedfomo-weighted",)
CONVEX, TRAINED = ("mocha",), ("mocha-trained",)
"""Convex MOCHA on the features of an untrained model, and on those of the base run's model at the branch."""

METHODS = (BASELINE, OURS, TRUE, *MANY, SAME, LATE, MEAN_BASE, MEAN)

TITLES = {
    BASELINE: "FedAvg",
    SAME: "FedAvg on the composed clients",
    "cfl": "CFL",
    "mocha-deep": "FMTL (MOCHA, deep)",
    "mocha": "FMTL (MOCHA, convex, untrained features)",
    "mocha-trained": "FMTL (MOCHA, convex, FedAvg's features)",
    "fedfomo": "FedFomo (delta)",
    "fedfomo-weighted": "FedFomo (weights)",
    OURS: "on demand",
    LATE: "on demand, estimates at the branch",
    MEAN: "on demand, inference from the mean gradient",
    TRUE: "on demand, ground truth",
    MEAN_BASE: "FedAvg, inference from the mean gradient",
}

PREFIXES = ("td1", "td2", "td3")
TARGETS = (*PREFIXES, OWN_MIX)
"""Columns of the paper's tables; the last is the mean over the mixes of single clients."""

LOCAL = {"epochs": 1, "batch": 10, "rate": 0.01, "momentum": 0.9}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set, its model, and how long it is trained."""

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
    """Rounds of FedAvg and of the methods with many models."""
    branch: int
    """Round of FedAvg after which fine-tuning starts."""
    estimated: int
    """Round after which class shares are estimated."""
    tuned: int
    """Rounds of fine-tuning."""
    evaluate_every: int
    evaluate_many_every: int
    """Rounds between evaluations if every client has its own model."""
    convex: bool = True
    """True if the convex MOCHA, which trains the last layer alone, is run."""
    printed: Printed | None = None

    @property
    def listed(self) -> bool:
        """True if results keep the accuracy of every class."""
        return self.classes <= LISTED_CLASSES


_LEAF = {"name": "leaf-cnn", "head_bias": True}

TASKS = (
    Task(
        name="cifar10",
        title="CIFAR-10",
        dataset={"name": "cifar10", "normalise": "none"},
        classes=10,
        model=_LEAF,
        predictor={**INFERENCE, "epochs": 1, "batch": 5},
        samples=500,
        rounds=300,
        branch=150,
        estimated=50,
        tuned=150,
        evaluate_every=1,
        evaluate_many_every=20,
        printed=printed_numbers("cifar10"),
    ),
    Task(
        name="fashion",
        title="Fashion-MNIST",
        dataset={"name": "fashion-mnist", "normalise": "none"},
        classes=10,
        model=_LEAF,
        predictor={**INFERENCE, "epochs": 10, "batch": 10},
        samples=600,
        rounds=300,
        branch=100,
        estimated=50,
        tuned=100,
        evaluate_every=1,
        evaluate_many_every=20,
        printed=printed_numbers("fashion"),
    ),
    Task(
        name="cifar100",
        title="CIFAR-100",
        dataset={"name": "cifar100", "normalise": "none"},
        classes=100,
        model={"name": "mobilenetv2"},
        predictor={**INFERENCE, "epochs": 1, "batch": 5},
        samples=500,
        rounds=2000,
        branch=1200,
        estimated=200,
        tuned=300,
        evaluate_every=5,
        evaluate_many_every=50,
        convex=False,
        printed=printed_numbers("cifar100"),
    ),
)

_DIGITS = Task(
    name="digits",
    title="digits",
    dataset={"name": "digits"},
    classes=10,
    model={"name": "mlp", "hidden": (16,)},
    predictor={**INFERENCE, "epochs": 1, "batch": 2, "hidden": 16},
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
    """A scale and the values of the paper's settings at it."""

    tasks: tuple[Task, ...]
    alphas: tuple[float, ...]
    clients: int
    cohort: int
    local: Mapping[str, Any]
    clients_as_targets: int
    """Number of single clients' mixes that are targets."""
    more_clients_as_targets: int = 0
    """The same for the first task at the first α; the additional ones come last."""

    @property
    def local_targets(self) -> tuple[str, ...]:
        """Mixes of the first clients; clients are exchangeable, so any sample is as good."""
        return tuple(f"local:{client}" for client in range(self.clients_as_targets))

    @property
    def more_local_targets(self) -> tuple[str, ...]:
        """Mixes of the additional single clients."""
        return tuple(f"local:{client}" for client in range(self.clients_as_targets, self.more_clients_as_targets))

    @property
    def places(self) -> list[tuple[Task, float]]:
        """Every task at every α."""
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
    """Return the variant of a target's run, fit for a file name."""
    return target.replace(":", "")
