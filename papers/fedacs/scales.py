"""Settings of FedACS: its environments with the numbers that the paper prints, and the scales of the reproduction.

Section VII: CIFAR-10, 200 clients of 2,000 images, of which 10 a round train for 5 epochs in batches of 400, at a rate
of 0.1 that is multiplied by 0.9993 after every local epoch; the network of PyTorch's CIFAR-10 tutorial; 1,000 rounds;
five trials. The authors' code also crops and flips the images and uses momentum and weight decay, which the text does
not mention; without them the model overfits. Tables follow the code (`AUTHORS`); one group shows the text (`PRINTED`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.grid import Scale
from papers.printed import by_method, read_printed

BASELINE, REFERENCE, OURS = "fedavg", "iid", "fedacs"

CORE = (REFERENCE, BASELINE, OURS)
METHODS = (*CORE, "oort", "oort-simple", "cmfl-server", "rexp3")
"""In order of their value; IID runs once for all environments."""

TITLES = {
    "iid": "IID",
    "fedavg": "random",
    "fedacs": "FedACS",
    "oort": "Oort (original)",
    "oort-simple": "Oort (as compared)",
    "cmfl": "CMFL (original)",
    "cmfl-server": "CMFL (as compared)",
    "rexp3": "Rexp3",
    "power-of-choice": "power of choice",
}

RIVAL = "oort-simple"
"""Method that comes closest to FedACS in the paper."""

POOL, HISTORY, STEP = 0.4, 5, 0.2
"""λ, h and η of section VII."""

PRINTED = {"epochs": 5, "batch": 400, "rate": 0.1, "decay": 0.9993}
"""Local training by the paper's text."""

AUTHORS = {**PRINTED, "momentum": 0.5, "weight_decay": 5e-4, "crop": 4, "flip": True}
"""Local training by the authors' code."""

OUR_NAMES = {
    "random": ("fedavg",),
    "fedacs": ("fedacs",),
    "rexp3": ("rexp3",),
    "cmfl": ("cmfl-server", "cmfl"),
    "oort": ("oort-simple", "oort"),
}
"""Method in the paper → methods here; we have two forms of Oort and of CMFL."""

_PRINTED = read_printed(__file__)

PAPER_IID: float = _PRINTED["iid"]
OVERHEAD: Mapping[str, Mapping[str, str]] = _PRINTED["overhead"]


@dataclass(frozen=True)
class Environment:
    """One of the paper's environments and the numbers that the paper prints for it."""

    name: str
    title: str
    target: float | None = None
    """Accuracy to which Table III counts rounds."""
    drop: float | None = None
    """Section III: points of terminal accuracy lost against IID."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Table II, in percent."""
    improvement: Mapping[str, float] = field(default_factory=dict)
    """Table II: share of the gap to IID that is closed, in percent."""
    rounds: Mapping[str, int] = field(default_factory=dict)
    """Table III."""
    speed_up: Mapping[str, float] = field(default_factory=dict)
    """Table III, as printed."""


def _environment(name: str, title: str) -> Environment:
    printed: dict[str, Any] = {
        key: by_method(value, OUR_NAMES) if isinstance(value, Mapping) else value
        for key, value in _PRINTED[name].items()
    }
    return Environment(name, title, **printed)


ENVIRONMENTS = (
    _environment("uniform", "uniform"),
    _environment("inverse-pareto", "inverse Pareto"),
    _environment("dirichlet-layers", "Dirichlet"),
    _environment("few-class", "few classes"),
)

OBSERVED = "uniform-observed"

CLUSTERED = "clustered-equal"
"""Cluster skew, an environment of FedDRL's and none of FedACS's: where FedACS should not be used."""

POISONED = "poisoned"
"""Variant in which some clients' labels are all wrong."""

NAMES = {
    **{one.name: one.name for one in ENVIRONMENTS},
    OBSERVED: OBSERVED,
    CLUSTERED: CLUSTERED,
    "iid": "iid",
    "pareto": "inverse-pareto",
    "dirichlet": "dirichlet-layers",
}


@dataclass(frozen=True, kw_only=True)
class FedACSScale(Scale):
    """A scale and the values of the paper's settings at it."""

    dataset: str
    model: Mapping[str, Any]
    clients: int
    cohort: int
    samples: int
    """Per client, in section VII."""
    own_samples: int
    """Per client, in section III and Fig. 5, where no image is used twice."""
    own_batch: int
    evaluate_every: int
    authors: Mapping[str, Any]
    printed: Mapping[str, Any]
    figure_seeds: int
    """Seeds of sweeps and side figures."""
    pools: tuple[float, ...]
    """Values of λ in Fig. 7, in addition to that of the tables."""
    small_pool: float
    """λ of the second half of Fig. 9; one of `pools`."""
    early_stop: int
    """Rounds with insights in Fig. 10."""
    group: int
    """Clients in each observation group of Fig. 4."""
    measured: tuple[int, ...]
    """Rounds after which Fig. 4 measures all clients."""
    client_numbers: tuple[int, ...]
    """Numbers of clients in Fig. 5."""
    poisoned: float = 0.1
    """Share of clients whose labels are all wrong, where there are any."""
    cluster_rounds: int = 300
    """Rounds on cluster skew."""
    cluster_samples: int = 80
    """Samples of a client there: 120 of 200 clients share the 10,000 images of two classes."""
    targets: tuple[float, ...] = (0.60, 0.65, 0.68, 0.70)
    checked: tuple[int, ...] = (100, 200, 500, 1000)
    """Rounds at which recipes are compared."""


def _paper_scale(name: str, summary: str, rounds: int, seeds: int) -> FedACSScale:
    return FedACSScale(
        name=name,
        summary=summary,
        rounds=rounds,
        seeds=seeds,
        store="fedacs",
        dataset="cifar10",
        model={"name": "tutorial-cnn"},
        clients=200,
        cohort=10,
        samples=2000,
        own_samples=250,
        own_batch=50,
        evaluate_every=5,
        authors=AUTHORS,
        printed=PRINTED,
        figure_seeds=2,
        pools=(0.05, 0.1, 0.2, 0.6, 0.8, 1.0),
        small_pool=0.2,
        early_stop=200,
        group=10,
        measured=(5, 50, 100, 200, 300, 500, 750, 1000),
        client_numbers=(50, 100, 150, 200),
    )


SCALES = {
    "smoke": FedACSScale(
        name="smoke",
        summary="handwritten digits, 20 clients, 10 rounds: shows that everything runs, and nothing else",
        rounds=10,
        seeds=2,
        store="fedacs-smoke",
        local_only=True,
        dataset="digits",
        model={"name": "mlp", "hidden": (16,)},
        clients=20,
        cohort=4,
        samples=40,
        own_samples=20,
        own_batch=10,
        evaluate_every=1,
        authors={"epochs": 2, "batch": 10, "rate": 0.1, "decay": 0.9993, "momentum": 0.5, "weight_decay": 5e-4},
        printed={"epochs": 2, "batch": 10, "rate": 0.1, "decay": 0.9993},
        figure_seeds=1,
        pools=(0.2, 0.6, 1.0),
        small_pool=0.2,
        early_stop=3,
        group=2,
        measured=(1, 5, 10),
        client_numbers=(5, 10, 20),
        cluster_rounds=5,
        cluster_samples=20,
        checked=(2, 5, 10),
    ),
    "short": _paper_scale("short", "the paper's settings, 300 of 1,000 rounds, two seeds", 300, 2),
    "paper": _paper_scale("paper", "the paper's settings: CIFAR-10, 1,000 rounds, five seeds", 1000, 5),
}
