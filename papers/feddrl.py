"""FedDRL: what to run for the tables and figures of Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive
Aggregation for Non-IID Data in Federated Learning", ICPP 2022.

Section 4.1: 10 clients, all in every round, or 100, of which 10 a round; 5 epochs in batches of 10 at a rate of 0.01;
1,000 rounds; a CNN for MNIST and Fashion-MNIST, VGG-11 for CIFAR-100; FedProx with μ = 0.01. Clients hold two labels
each (20 of CIFAR-100), by three splits: PA, sizes by a power law; CE, 60 % of the clients with the same labels and
sizes equal; CN, the same with sizes ±20 %. Two clients never hold the same sample. For 100 clients that leaves 200
samples for each at δ = 0.6, where the authors' lists have about 300, which cannot be without sharing.

The agents are trained as in section 3.4.2, by two workers, on a federation of the same kind with a seed of its own, and
are then used as they are. CIFAR-100 is CIFAR-100 here (see `feddrl_printed`). SingleSet is plain SGD on the data of all
clients together, 100 passes over them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from papers.pages import Page
from papers.plan import Group, Paper, Planned, Scale, School, Wanted
from papers.store import CENTRAL, Store

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

ONLINE = "online"
"""The variant in which the agent learns in the run itself, without the first stage."""

RULE = "rule"
"""The variant of FedDRL for sets in which the agent never learns, and weighs clients by what it begins as."""

AGENT_SEED = 1000
"""Of the federations that agents are trained on."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set with the model that learns it and the numbers of its splits."""

    name: str
    title: str
    dataset: str
    model: Mapping[str, Any]
    samples: int
    """Training samples there are."""
    classes: int
    labels: int
    """That a client holds."""
    evaluate_every: int
    held: Mapping[int, int | None] = field(default_factory=dict)
    """Clients → samples of each in CE and CN; as many as there are for all where it is not said."""

    def each(self, split: str, clients: int, delta: float = DELTA) -> int:
        """Samples of a client, on average: what it costs."""
        if split in ("ce", "cn"):
            main = max(1, round(delta * clients))
            most = self.samples / self.classes * self.labels / main
            return int(self.held.get(clients) or most)
        return self.samples // clients


@dataclass(frozen=True, kw_only=True)
class FedDRLScale(Scale):
    """A scale with the numbers that the paper's settings come down to at it."""

    data: tuple[Data, ...]
    few: int
    """Clients of the small federations, all of which take part in every round."""
    many: int
    """Clients of the large ones."""
    cohort: int
    local: Mapping[str, Any]
    single_rounds: int
    """Rounds of SingleSet, each of as many epochs as clients' are."""
    figure_seeds: int
    """Seeds of all but the first tables."""
    workers: int
    worker_rounds: int
    offline: Mapping[str, Any]
    deltas: tuple[float, ...]
    """δ in Fig. 8 besides that of the tables."""
    cohorts: tuple[int, ...]
    """K in Fig. 7 besides that of the tables."""

    @property
    def first(self) -> Data:
        """The data of the tables that come first, and of Fig. 8."""
        return self.data[0]

    @property
    def hard(self) -> Data:
        """The data of Fig. 6 and 7 and of Table 4."""
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
    """What tables call it: fashion-ce-100."""
    return f"{data.name}-{split}-{clients}"


def _names() -> dict[str, str | tuple[str, ...]]:
    """What users may call environments: one, or all of a data set, or all of a split of it."""
    names: dict[str, str | tuple[str, ...]] = {}
    for scale in (SCALES["paper"], SCALES["smoke"]):
        for data in scale.data:
            own = [environment_name(data, split, clients) for clients in (scale.many, scale.few) for split in SPLITS]
            names |= {name: name for name in own}
            names[data.name] = tuple(own)
            for split in SPLITS:
                names[f"{data.name}-{split}"] = tuple(name for name in own if f"-{split}-" in name)
    return names


def groups(scale: Scale, wanted: Wanted) -> list[Group]:
    """Everything that the paper's tables and figures need, the most valuable first."""
    assert isinstance(scale, FedDRLScale)
    plan = _Plan(scale, wanted.rounds or scale.rounds, wanted.methods or METHODS)
    seeds = wanted.seeds or tuple(range(scale.seeds))
    few = wanted.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    first, hard = scale.first, scale.hard
    everything = [*plan.table(first, ("ce", "cn"), scale.many, seeds, ("table-3", *_FIGURES, "figure-6", "figure-8"))]
    if hard is not first:
        everything += plan.table(hard, ("ce", "cn"), scale.many, few, ("table-3", *_FIGURES, "figure-7"))
    everything += plan.rule(first, ("ce", "cn"), scale.many, seeds)
    everything += plan.online(first, ("ce", "cn"), scale.many, seeds)
    everything += plan.table(first, ("pa",), scale.many, few, ("table-3", *_FIGURES))
    everything += plan.table(first, ("pa", "ce", "cn"), scale.few, few, ("table-3", *_FIGURES))
    everything += plan.deltas(first, few)
    for data in scale.data[1:]:
        for clients in (scale.many, scale.few):
            splits = ("pa",) if data is hard and clients == scale.many else ("pa", "ce", "cn")
            more = ("figure-6",) if data is hard and clients == scale.few else ()
            everything += plan.table(data, splits, clients, few, ("table-3", *_FIGURES, *more))
    everything += plan.cohorts(hard, few)
    for clients in (scale.many, scale.few):
        everything += plan.table(hard, SHARDS, clients, few, ("table-4",))
    return everything


_FIGURES = ("figure-5", "figure-9", "figure-10")
"""Made from the runs of Table 3."""


@dataclass(frozen=True)
class _Plan:
    scale: FedDRLScale
    rounds: int
    methods: Sequence[str]

    def table(
        self, data: Data, splits: Sequence[str], clients: int, seeds: Sequence[int], feeds: tuple[str, ...]
    ) -> Iterator[Group]:
        """All methods on some splits; SingleSet apart, since its only client would keep the others waiting."""
        title = f"{data.title}, {clients} clients, {' and '.join(SPLITS[split] for split in splits)}"
        for name, methods in ((title, FEDERATED), (f"{title}, SingleSet", (REFERENCE,))):
            runs = [
                self.run(data, split, clients, method, seed)
                for seed in seeds
                for split in splits
                for method in methods
                if method in self.methods
            ]
            if runs:
                yield Group(name, feeds if methods is FEDERATED else feeds[:1], tuple(runs))

    def rule(self, data: Data, splits: Sequence[str], clients: int, seeds: Sequence[int]) -> Iterator[Group]:
        """FedDRL for sets as it is before it has learned anything: what its learning has to beat."""
        runs = [
            self.run(data, split, clients, SET, seed, RULE, taught=False)
            for seed in seeds
            for split in splits
            if SET in self.methods
        ]
        if runs:
            yield Group(f"{data.title}, {clients} clients, FedDRL for sets without learning", (RULE,), tuple(runs))

    def online(self, data: Data, splits: Sequence[str], clients: int, seeds: Sequence[int]) -> Iterator[Group]:
        """Agents that learn in the run itself."""
        runs = [
            self.run(data, split, clients, method, seed, ONLINE, aggregator={"learn": True})
            for seed in seeds
            for split in splits
            for method in WITH_AGENT
            if method in self.methods
        ]
        if runs:
            yield Group(f"{data.title}, {clients} clients, agents without a first stage", (ONLINE,), tuple(runs))

    def deltas(self, data: Data, seeds: Sequence[int]) -> Iterator[Group]:
        """Figure 8; agents are those of the tables' δ."""
        runs = [
            self.run(data, "ce", self.scale.many, method, seed, f"delta{delta:g}", delta=delta)
            for seed in seeds
            for delta in self.scale.deltas
            for method in FEDERATED
            if method in self.methods
        ]
        if runs:
            yield Group(f"{data.title}, {self.scale.many} clients: δ", ("figure-8",), tuple(runs))

    def cohorts(self, data: Data, seeds: Sequence[int]) -> Iterator[Group]:
        """Figure 7; FedDRL needs an agent for each K, and its form for sets does not."""
        for cohort in self.scale.cohorts:
            runs = [
                self.run(data, "ce", self.scale.many, method, seed, f"cohort{cohort}", cohort=cohort)
                for seed in seeds
                for method in FEDERATED
                if method in self.methods
            ]
            if runs:
                yield Group(f"{data.title}, {cohort} of {self.scale.many} clients a round", ("figure-7",), tuple(runs))

    def run(
        self,
        data: Data,
        split: str,
        clients: int,
        method: str,
        seed: int,
        variant: str = "",
        *,
        aggregator: Mapping[str, Any] | None = None,
        delta: float = DELTA,
        cohort: int | None = None,
        taught: bool = True,
    ) -> Planned:
        """A run with the settings of the tables, changed as given; an agent that is not `taught` is as it begins."""
        scale, name = self.scale, environment_name(data, split, clients)
        settings = self.settings(data, split, clients, method, delta, cohort)
        settings |= {"rounds": self.rounds, "seed": seed}
        each = data.each(split, clients, delta)
        school = None
        if method == REFERENCE:
            settings["rounds"] = min(self.rounds, scale.single_rounds)
            settings["evaluate_every"] = 1
            each = each * clients // settings["cohort"]
        elif method in (BASELINE, PROXIMAL):
            settings["aggregator"] = {"fairness": True}
        elif method in WITH_AGENT:
            settings["aggregator"] = {"learn": False, **(aggregator or {})}
            if taught and not settings["aggregator"]["learn"]:
                school = self.school(data, split, clients, method, cohort if method == OURS else None)
        return Planned(name, method, seed, settings, variant, samples=each, school=school)

    def school(self, data: Data, split: str, clients: int, method: str, cohort: int | None) -> School:
        """An agent of the tables' kind of federation."""
        scale = self.scale
        settings = self.settings(data, split, clients, method, DELTA, cohort)
        rounds = scale.worker_rounds
        settings |= {"rounds": rounds, "seed": AGENT_SEED, "evaluate_every": rounds, "aggregator": {"learn": True}}
        name = f"{environment_name(data, split, clients)}-{method}" + (f"-cohort{cohort}" if cohort else "")
        return School(f"{name}-{scale.workers}x{rounds}", settings, scale.workers, scale.offline)

    def settings(
        self, data: Data, split: str, clients: int, method: str, delta: float, cohort: int | None
    ) -> dict[str, Any]:
        """Of all runs on a federation, but for their rounds and seed."""
        scale = self.scale
        return {
            "method": method,
            "dataset": data.dataset,
            "environment": self.environment(data, split, clients, delta),
            "model": dict(data.model),
            "clients": clients,
            "cohort": min(cohort or scale.cohort, clients),
            "evaluate_every": data.evaluate_every,
            "local": dict(scale.local),
        }

    def environment(self, data: Data, split: str, clients: int, delta: float) -> dict[str, Any]:
        """The authors' lists: groups of their own with few clients, random labels outside the main group with many."""
        if split == "pa":
            return {"name": "pareto", "labels": data.labels}
        if split in ("equal", "unequal"):
            return {"name": f"shards-{split}"}
        name = "clustered-equal" if split == "ce" else "clustered-unequal"
        own: dict[str, Any] = {"name": name, "delta": delta, "labels": data.labels}
        own["groups"] = "disjoint" if clients == self.scale.few else "overlapping"
        # Unequal sizes are multiples of what there is for all, which only the environment knows.
        held = data.held.get(clients)
        return own if held is None or split == "cn" else {**own, "samples": held}


def page(scale: Scale, store: Store) -> Page:
    """All tables and figures from the store."""
    from papers.feddrl_page import page_of

    # A short reproduction is the beginning of the paper's, and its page is the paper's, not yet complete.
    full = next(one for one in reversed(SCALES.values()) if one.store == scale.store)
    return page_of(PAPER, full, store)


PAPER = Paper(
    name="feddrl",
    title="FedDRL: impact factors by a reinforcement-learning agent, on cluster skew (Nguyen et al. 2022)",
    scales=SCALES,
    environments=_names(),
    groups=groups,
    page=page,
)
