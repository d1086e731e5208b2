"""Settings of the comparison of Covey's own method: those of the four papers, unchanged, and the scales.

FedACS's four environments on CIFAR-10 with its authors' local training; FedDRL's CE and CN on Fashion-MNIST with 100
clients, with overlapping groups as in the paper and with disjoint ones, which are harder; On-Demand FL's CIFAR-10 at
α = 0.1; NCCB's tweets and blogs. Nothing is tuned for a setting: `covey` has its defaults everywhere but on texts,
where every method's server takes steps of Adam, as gradients are sparse there.

A line of a table is a method in a variant: `averaged` with the average over rounds alone, whose raw model is the method
as printed; `plus` with the server's momentum too; each also with a correction on the clients (`-fedcm`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.recipes import COVEY_AVERAGING, COVEY_SERVER
from papers.fedacs.scales import AUTHORS, ENVIRONMENTS
from papers.feddrl.scales import DELTA, FASHION, SPREAD
from papers.feddrl.scales import LOCAL as FASHION_LOCAL
from papers.grid import Scale
from papers.nccb.corpora import CORPORA, MADE_UP, Corpus
from papers.nccb.scales import LOCAL as TEXT_LOCAL
from papers.ondemand.scales import INFERENCE, TASKS, Task
from papers.ondemand.scales import LOCAL as TASK_LOCAL

OURS, BASELINE, REFERENCE = "covey", "fedavg", "iid"
AVERAGED, PLUS, CORRECTED = "averaged", "plus", "fedcm"

MOMENTUM: Mapping[str, Any] = dict(COVEY_SERVER)
AVERAGING: Mapping[str, Any] = dict(COVEY_AVERAGING)
TEXT_SERVER: Mapping[str, Any] = {"optimizer": "adam"}

TITLES = {
    "covey": "covey",
    "balanced": "balanced cohorts",
    "fedavg": "random",
    "fedacs": "FedACS",
    "oort": "Oort",
    "hics-fl": "HiCS-FL",
    "fed-cbs": "Fed-CBS",
    "fedentopt": "FedEntOpt",
    "fedcor": "FedCor",
    "nccb": "NCCB",
    "feddrl": "FedDRL",
    "feddrl-set": "FedDRL for sets",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "fedcm": "FedCM",
    "fedadam": "FedAdam",
    "iid": "IID",
}

PARTS: Mapping[str, Mapping[str, Any]] = {"balanced": {"selector": "balanced", "aggregator": "average"}}
"""Lines that are no method of Covey's: their parts."""

PRINTED = ("fedavg", "fedacs", "feddrl-set", "nccb")
"""Methods that are compared with as printed."""

SELECTING = ("fedavg", "fedacs", "oort", "hics-fl", "fed-cbs")
"""Methods that are compared with momentum and averaging switched on."""

OTHERS = ("fedentopt", "fedcor", "nccb", "feddrl-set")
"""The same, run later."""

CLIENT_PART = ("scaffold", "feddyn", "fedcm", "fedadam")
"""Methods of the client's or the server's part, run with the average over rounds."""

FACTORS = ("fedavg", "balanced", "fedacs", "oort")
"""Selectors of the factorial."""

FEW = "few-class"

CLUSTERED: Mapping[str, Mapping[str, Any]] = {
    f"{split}-{groups}": {
        "name": "clustered-equal" if split == "ce" else "clustered-unequal",
        "delta": DELTA,
        "labels": FASHION.labels,
        "groups": groups,
        **({"samples": FASHION.held[100]} if split == "ce" else {"spread": SPREAD}),
    }
    for split in ("ce", "cn")
    for groups in ("overlapping", "disjoint")
}
"""FedDRL's federations of 100 clients, by name."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set, a model, and how clients train."""

    dataset: Any
    model: Mapping[str, Any]
    clients: int
    cohort: int
    samples: int
    """Of a client, on average."""
    local: Mapping[str, Any]
    evaluate_every: int
    rounds: int
    speed: float
    """Client-samples that runs in lockstep train on in a second on one H200; from the benchmarks of README.md, or near
    workloads there."""


@dataclass(frozen=True, kw_only=True)
class OwnScale(Scale):
    """A scale and the settings at it."""

    skewed: Setting
    """FedACS's."""
    clustered: Setting
    """FedDRL's."""
    task: Task
    """On-Demand FL's."""
    task_clients: int
    task_cohort: int
    task_local: Mapping[str, Any]
    task_speed: float
    texts: tuple[Corpus, ...]
    text: Setting
    few_seeds: int
    """Seeds that come first."""
    noise: tuple[float, ...] = (0.1, 0.5, 1.0, 4.0)
    """ε of noisy class shares."""
    availabilities: tuple[float, ...] = (0.3, 0.1)
    flippers: float = 0.1
    """Share of clients with wrong labels."""
    cohorts: tuple[int, ...] = (5, 20)
    rates: tuple[float, ...] = (1 / 3, 3.0)
    """Factors on the clients' rate."""
    clustered_environments: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: dict(CLUSTERED))


def _paper_scale(name: str, summary: str, rounds: int, seeds: int, few: int) -> OwnScale:
    return OwnScale(
        name=name,
        summary=summary,
        rounds=rounds,
        seeds=seeds,
        few_seeds=few,
        store="own",
        skewed=Setting(
            dataset="cifar10",
            model={"name": "tutorial-cnn"},
            clients=200,
            cohort=10,
            samples=2000,
            local=AUTHORS,
            evaluate_every=5,
            rounds=rounds,
            speed=7.2e6,
        ),
        clustered=Setting(
            dataset="fashion-mnist",
            model=FASHION.model,
            clients=100,
            cohort=10,
            samples=200,
            local=FASHION_LOCAL,
            evaluate_every=5,
            rounds=rounds,
            speed=5.1e5,
        ),
        task=TASKS[0],
        task_clients=100,
        task_cohort=10,
        task_local=TASK_LOCAL,
        task_speed=2.3e5,
        texts=CORPORA,
        text=Setting(
            dataset={},
            model={"name": "lstm", "embedding": 200, "hidden": 200, "layers": 2, "dropout": 0.0},
            clients=0,
            cohort=5,
            samples=300,
            local=TEXT_LOCAL,
            evaluate_every=2,
            rounds=min(rounds, 300),
            speed=2.1e5,
        ),
    )


_DIGITS: dict[str, Any] = {"dataset": "digits", "model": {"name": "mlp", "hidden": (16,)}, "evaluate_every": 1}
_BRIEF: dict[str, Any] = {"epochs": 1, "batch": 10, "rate": 0.1}
_ROUNDS = 4
_TASK = Task(
    name="digits",
    title="digits",
    dataset={"name": "digits"},
    classes=10,
    model={"name": "mlp", "hidden": (16,)},
    predictor={**INFERENCE, "epochs": 1, "batch": 2, "hidden": 16},
    samples=72,
    rounds=4,
    branch=4,
    estimated=2,
    tuned=2,
    evaluate_every=1,
    evaluate_many_every=2,
)

SCALES = {
    "smoke": OwnScale(
        name="smoke",
        summary="handwritten digits and made-up texts, 4 rounds: shows that everything runs, and nothing else",
        rounds=_ROUNDS,
        seeds=1,
        few_seeds=1,
        store="own-smoke",
        local_only=True,
        skewed=Setting(**_DIGITS, clients=12, cohort=4, samples=20, local=_BRIEF, rounds=_ROUNDS, speed=1e4),
        clustered=Setting(**_DIGITS, clients=12, cohort=4, samples=20, local=_BRIEF, rounds=_ROUNDS, speed=1e4),
        task=_TASK,
        task_clients=12,
        task_cohort=4,
        task_local={**_BRIEF, "momentum": 0.5},
        task_speed=1e4,
        texts=(MADE_UP,),
        text=Setting(
            dataset={},
            model={"name": "lstm", "embedding": 8, "hidden": 8, "layers": 1},
            clients=0,
            cohort=3,
            samples=int(MADE_UP.dataset["samples"]),
            local={**TEXT_LOCAL, "epochs": 1},
            evaluate_every=1,
            rounds=_ROUNDS,
            speed=1e4,
        ),
        noise=(1.0,),
        availabilities=(0.5,),
        cohorts=(3,),
        rates=(3.0,),
        clustered_environments={
            "ce-overlapping": {"name": "clustered-equal", "labels": 2, "groups": "overlapping"},
            "ce-disjoint": {"name": "clustered-equal", "labels": 2, "groups": "disjoint"},
        },
    ),
    "short": _paper_scale("short", "the papers' settings, 300 of 1,000 rounds, one seed", 300, 1, 1),
    "paper": _paper_scale("paper", "the papers' settings, 1,000 rounds, three seeds first, then five", 1000, 5, 3),
}

SKEWED = {one.name: one.title for one in ENVIRONMENTS}
"""FedACS's environments and their titles."""

NAMES: dict[str, str | tuple[str, ...]] = {
    **{name: name for name in (*SKEWED, *CLUSTERED)},
    "fedacs": tuple(SKEWED),
    "feddrl": tuple(CLUSTERED),
    "ondemand": "ondemand",
    **{corpus.name: corpus.name for corpus in (*CORPORA, MADE_UP)},
}
