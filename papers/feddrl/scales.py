"""Settings of FedDRL: data sets, splits, and the scales of the reproduction.

Section 4.1: 10 clients, all in every round, or 100, of which 10 a round; 5 epochs in batches of 10 at a rate of 0.01;
1,000 rounds; a CNN for MNIST and Fashion-MNIST, VGG-11 for CIFAR-100; FedProx with μ = 0.01. Clients hold two labels
each (20 of CIFAR-100), by three splits: PA, sizes by a power law; CE, 60 % of the clients with the same labels and
equal sizes; CN, the same with unequal sizes, ±20 % (±60 % on CIFAR-100 with 10 clients, where the authors' lists have
32 to 200 samples of a label). No two clients hold the same sample. For 100 clients that leaves 200 samples for each at
δ = 0.6, as in the authors' list for that δ. The list that their scripts name has 300 samples a client and 40 clients in
the main group, so that the printed figures may be of δ = 0.4.

Agents are trained as in section 3.4.2, by two workers. The agent of a seed is trained on the federation of that seed,
and does not learn in the runs. CIFAR-100 is CIFAR-100 here (see `printed.toml`). SingleSet is plain SGD on the data of
all clients, 100 passes over them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.grid import Scale
from papers.store import CENTRAL

BASELINE, PROXIMAL, OURS, SET, CONTROL, REFERENCE = "fedavg", "fedprox", "feddrl", "feddrl-set", "loss-softmax", CENTRAL

METHODS = (BASELINE, OURS, SET, CONTROL, PROXIMAL, REFERENCE)
"""In order of their value."""

FEDERATED = METHODS[:-1]
WITH_AGENT = (OURS, SET)

TITLES = {
    "central": "SingleSet",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "feddrl": "FedDRL",
    "feddrl-set": "FedDRL for sets",
    "loss-softmax": "loss softmax",
}

SPLITS = {
    "pa": "PA",
    "ce": "CE",
    "cn": "CN",
    "equal": "Equal",
    "unequal": "Non-equal",
}
"""Table 3 has the first three, Table 4 the others."""

SHARDS = ("equal", "unequal")
"""The splits of Table 4, which is about one data set."""

DELTA = 0.6
"""δ of the tables."""

SPREAD = 0.2
"""Greatest distance of a size in CN from the mean, relative to it, in the authors' lists for Fashion-MNIST."""

SHUFFLED = "shuffled"
"""Numbering of the clients where an agent decides: its places must not tell what a client holds."""

ONLINE = "online"
"""Variant in which the agent learns in the run itself, without the first stage."""

RULE = "rule"
"""Variant of FedDRL for sets in which the agent never learns and stays the rule that it starts as."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set, its model, and the numbers of its splits."""

    name: str
    title: str
    dataset: str
    model: Mapping[str, Any]
    samples: int
    """Training samples."""
    classes: int
    labels: int
    """Labels of a client."""
    evaluate_every: int
    held: Mapping[int, int | None] = field(default_factory=dict)
    """Number of clients → samples of each in CE and CN; by default all samples are used."""
    spread: Mapping[int, float] = field(default_factory=dict)
    """Number of clients → greatest distance of a size in CN from the mean, relative to it; by default `SPREAD`."""

    def samples_each(self, split: str, clients: int, delta: float = DELTA) -> int:
        """Return the mean number of samples of a client."""
        if split in ("ce", "cn"):
            main = max(1, round(delta * clients))
            most = self.samples / self.classes * self.labels / main
            return int(self.held.get(clients) or most)
        return self.samples // clients


@dataclass(frozen=True, kw_only=True)
class FedDRLScale(Scale):
    """A scale and the values of the paper's settings at it."""

    data: tuple[Data, ...]
    few: int
    """Clients of the small federations, all in every round."""
    many: int
    """Clients of the large ones."""
    cohort: int
    local: Mapping[str, Any]
    single_rounds: int
    """Rounds of SingleSet, with the clients' number of epochs each."""
    figure_seeds: int
    """Seeds of everything but the first tables."""
    workers: int
    worker_rounds: int
    offline: Mapping[str, Any]
    deltas: tuple[float, ...]
    """Values of δ in Fig. 8, in addition to that of the tables."""
    cohorts: tuple[int, ...]
    """Values of K in Fig. 7, in addition to that of the tables."""

    @property
    def first(self) -> Data:
        """Data of the first tables and of Fig. 8."""
        return self.data[0]

    @property
    def hard(self) -> Data:
        """Data of Figs. 6 and 7 and of Table 4."""
        return self.data[min(1, len(self.data) - 1)]


_CNN: dict[str, Any] = {"name": "fashion-cnn"}
_IMAGES: dict[str, Any] = {"samples": 60_000, "classes": 10, "labels": 2, "evaluate_every": 5}

FASHION = Data(
    name="fashion", title="Fashion-MNIST", dataset="fashion-mnist", model=_CNN, held={10: 2_000, 100: 200}, **_IMAGES
)
MNIST = Data(name="mnist", title="MNIST", dataset="mnist", model=_CNN, **_IMAGES)
CIFAR = Data(
    name="cifar100",
    title="CIFAR-100",
    dataset="cifar100",
    model={"name": "vgg11"},
    samples=50_000,
    classes=100,
    labels=20,
    evaluate_every=10,
    held={10: 1_600, 100: 160},
    spread={10: 0.6},
)

LOCAL = {"epochs": 5, "batch": 10, "rate": 0.01}


def _paper_scale(name: str, summary: str, rounds: int, seeds: int) -> FedDRLScale:
    return FedDRLScale(
        name=name,
        summary=summary,
        rounds=rounds,
        seeds=seeds,
        store="feddrl",
        data=(FASHION, CIFAR, MNIST),
        few=10,
        many=100,
        cohort=10,
        local=LOCAL,
        single_rounds=20,
        figure_seeds=1,
        workers=2,
        worker_rounds=300,
        offline={},
        deltas=(0.2, 0.3, 0.4, 0.5),
        cohorts=(20, 30, 40, 50),
    )


SCALES = {
    "smoke": FedDRLScale(
        name="smoke",
        summary="handwritten digits, 5 and 20 clients, 6 rounds: shows that everything runs, and nothing else",
        rounds=6,
        seeds=2,
        store="feddrl-smoke",
        local_only=True,
        data=(
            Data(
                name="digits",
                title="digits",
                dataset="digits",
                model={"name": "mlp", "hidden": (16,)},
                samples=1_437,
                classes=10,
                labels=2,
                evaluate_every=1,
            ),
        ),
        few=5,
        many=20,
        cohort=5,
        local={"epochs": 1, "batch": 10, "rate": 0.1},
        single_rounds=3,
        figure_seeds=1,
        workers=2,
        worker_rounds=10,
        offline={"epochs": 2, "batch": 8},
        deltas=(0.4,),
        cohorts=(8,),
    ),
    "short": _paper_scale("short", "the paper's settings, 300 of 1,000 rounds, one seed", 300, 1),
    "paper": _paper_scale("paper", "the paper's settings, 1,000 rounds, five seeds of the first tables", 1000, 5),
}


def environment_name(data: Data, split: str, clients: int) -> str:
    """Return an environment's name in tables: fashion-ce-100."""
    return f"{data.name}-{split}-{clients}"


def _names() -> dict[str, str | tuple[str, ...]]:
    """Return the names that users may give: of one environment, of a data set's, or of one split of a data set."""
    names: dict[str, str | tuple[str, ...]] = {}
    for scale in (SCALES["paper"], SCALES["smoke"]):
        for data in scale.data:
            own = [environment_name(data, split, clients) for clients in (scale.many, scale.few) for split in SPLITS]
            names |= {name: name for name in own}
            names[data.name] = tuple(own)
            for split in SPLITS:
                names[f"{data.name}-{split}"] = tuple(name for name in own if f"-{split}-" in name)
    return names


NAMES = _names()
