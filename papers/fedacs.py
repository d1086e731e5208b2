"""FedACS: what to run for the tables and figures of Wang, Zhu, Wang and Han, "Federated Analytics Informed Distributed
Industrial IoT Learning with Non-IID Data", IEEE Transactions on Network Science and Engineering, 2022.

Section VII: CIFAR-10, 200 clients of 2,000 images, of which 10 a round train for 5 epochs in batches of 400, at a rate
of 0.1 that falls by a factor of 0.9993 with every local epoch; the network of PyTorch's CIFAR-10 tutorial; 1,000
rounds; five trials. The authors' runs also crop and flip the images and use momentum and weight decay, which the text
does not say; without them the model overfits. Tables are made their way (`AUTHORS`), and one group shows the other
(`PRINTED`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.pages import Page
from papers.plan import ANY, Group, Paper, Planned, Scale, Wanted
from papers.store import Store

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

POOL, HISTORY, STEP = 0.4, 5, 0.2
"""λ, h and η of section VII."""

PRINTED = {"epochs": 5, "batch": 400, "rate": 0.1, "decay": 0.9993}
"""Local training as the paper's text has it."""

AUTHORS = {**PRINTED, "momentum": 0.5, "weight_decay": 5e-4, "crop": 4, "flip": True}
"""Local training as the authors' code has it."""


@dataclass(frozen=True)
class Environment:
    """One of the paper's environments, and what the paper reports of it."""

    name: str
    title: str
    target: float | None
    """Accuracy that Table III counts rounds to."""
    accuracy: Mapping[str, float]
    """Table II, in percent."""
    improvement: Mapping[str, float]
    """Table II: share of the gap to IID that is closed, in percent."""
    rounds: Mapping[str, int]
    """Table III."""
    speed_up: Mapping[str, float]
    """Table III, as printed."""
    drop: float | None = None
    """Section III: points of terminal accuracy lost against IID."""


def _each(**by_paper_name: float) -> dict[str, Any]:
    """The paper's figures by our names; it has one Oort and one CMFL, we have two of each."""
    ours = {
        "random": ["fedavg"],
        "fedacs": ["fedacs"],
        "rexp3": ["rexp3"],
        "cmfl": ["cmfl-server", "cmfl"],
        "oort": ["oort-simple", "oort"],
    }
    return {name: value for paper, value in by_paper_name.items() for name in ours[paper]}


PAPER_IID = 74.0

ENVIRONMENTS = (
    Environment(
        "uniform",
        "uniform",
        0.70,
        _each(random=70.8, fedacs=73.3, rexp3=71.3, cmfl=68.3, oort=72.3),
        _each(random=0.0, fedacs=78.2, rexp3=15.1, cmfl=-77.8, oort=45.9),
        _each(random=490, fedacs=245, rexp3=400, cmfl=775, oort=270),
        _each(random=1.0, fedacs=2.0, rexp3=1.3, cmfl=0.6, oort=1.8),
        drop=3.6,
    ),
    Environment(
        "inverse-pareto",
        "inverse Pareto",
        0.68,
        _each(random=68.8, fedacs=71.6, rexp3=69.7, cmfl=66.2, oort=71.3),
        _each(random=0.0, fedacs=54.1, rexp3=16.2, cmfl=-50.1, oort=47.5),
        _each(random=520, fedacs=245, rexp3=365, cmfl=835, oort=205),
        _each(random=1.0, fedacs=2.1, rexp3=1.4, cmfl=0.6, oort=2.5),
        drop=6.7,
    ),
    Environment(
        "dirichlet-layers",
        "Dirichlet",
        0.68,
        _each(random=69.7, fedacs=72.7, rexp3=70.1, cmfl=64.8, oort=71.3),
        _each(random=0.0, fedacs=69.8, rexp3=9.8, cmfl=-112.2, oort=37.4),
        _each(random=465, fedacs=220, rexp3=265, oort=210),
        _each(random=1.0, fedacs=2.1, rexp3=0.9, oort=2.2),
        drop=4.9,
    ),
    # The paper draws curves of this one (Fig. 6d) and gives one figure in words.
    Environment("few-class", "few classes", None, {}, _each(random=0.0, fedacs=47.3), {}, {}),
)

OBSERVED = "uniform-observed"

NAMES = {
    **{one.name: one.name for one in ENVIRONMENTS},
    OBSERVED: OBSERVED,
    "iid": "iid",
    "pareto": "inverse-pareto",
    "dirichlet": "dirichlet-layers",
}


@dataclass(frozen=True, kw_only=True)
class FedACSScale(Scale):
    """A scale with the numbers that the paper's settings come down to at it."""

    dataset: str
    model: Mapping[str, Any]
    clients: int
    cohort: int
    samples: int
    """Per client, in section VII."""
    own_samples: int
    """Per client, in section III and in Fig. 5, where no image is used twice."""
    own_batch: int
    evaluate_every: int
    authors: Mapping[str, Any]
    printed: Mapping[str, Any]
    figure_seeds: int
    """Seeds of sweeps and side figures."""
    pools: tuple[float, ...]
    """Values of λ in Fig. 7 besides that of the tables."""
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
        checked=(2, 5, 10),
    ),
    "short": _paper_scale("short", "the paper's settings, 300 of 1,000 rounds, two seeds", 300, 2),
    "paper": _paper_scale("paper", "the paper's settings: CIFAR-10, 1,000 rounds, five seeds", 1000, 5),
}


def groups(scale: Scale, wanted: Wanted) -> list[Group]:
    """Everything that the paper's tables and figures need, the most valuable first."""
    assert isinstance(scale, FedACSScale)
    plan = _Plan(scale, wanted.rounds or scale.rounds)
    seeds = wanted.seeds or tuple(range(scale.seeds))
    few = wanted.seeds or tuple(range(min(scale.seeds, scale.figure_seeds)))
    methods = wanted.methods or METHODS
    core = tuple(name for name in CORE if name in methods)
    others = tuple(name for name in methods if name not in CORE)
    everything = []
    for environment in ENVIRONMENTS:
        feeds = ("table-2", "table-3", "figure-6", *(("figure-8", "figure-9") if environment.name == "uniform" else ()))
        for title, part in ((environment.title, core), (f"{environment.title}, others", others)):
            runs = [plan.run(environment.name, method, seed) for seed in seeds for method in part]
            if runs:
                everything.append(Group(title, feeds, tuple(runs)))
    return everything + _figures(plan, scale, few)


def _figures(plan: "_Plan", scale: FedACSScale, seeds: Sequence[int]) -> list[Group]:
    """The side figures, and the recipe as it is printed."""
    printed = [plan.run("uniform", name, seed, "printed", local=scale.printed) for seed in seeds for name in CORE]
    early = [
        plan.run("uniform", OURS, seed, f"early{scale.early_stop}", selector={"early_stop": scale.early_stop})
        for seed in seeds
    ]
    pools = [
        plan.run("uniform", OURS, seed, f"pool{pool:g}", selector={"pool": pool})
        for seed in seeds
        for pool in scale.pools
    ]
    observed = [
        plan.run(OBSERVED, name, seed, environment={"group": scale.group}, measured=scale.measured)
        for seed in seeds
        for name in (BASELINE, OURS)
    ]
    own: dict[str, Any] = {
        "environment": {"samples": scale.own_samples},
        "local": {**scale.authors, "batch": scale.own_batch},
    }
    section_3 = [
        plan.run(name, method, seed, "section3", **own)
        for seed in seeds
        for name, method in (
            ("uniform", REFERENCE),
            *((one.name, BASELINE) for one in ENVIRONMENTS if one.drop is not None),
        )
    ]
    numbers = [
        plan.run("iid", BASELINE, seed, f"clients{count}", clients=count, **own)
        for seed in seeds
        for count in scale.client_numbers
    ]
    return [
        Group("the recipe as printed", ("printed",), tuple(printed)),
        Group("early stop", ("figure-10",), tuple(early)),
        Group("size of the pool", ("figure-7", "figure-9"), tuple(pools)),
        Group("scores of all clients", ("figure-4", "figure-8"), tuple(observed)),
        Group("what skew costs", ("figure-2",), tuple(section_3)),
        Group("what few data cost", ("figure-5",), tuple(numbers)),
    ]


@dataclass(frozen=True)
class _Plan:
    scale: FedACSScale
    rounds: int

    def run(
        self,
        environment_name: str,
        method: str,
        seed: int,
        variant: str = "",
        *,
        environment: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        selector: Mapping[str, Any] | None = None,
        clients: int | None = None,
        measured: tuple[int, ...] = (),
    ) -> Planned:
        """A run with the section VII settings, changed as given."""
        scale = self.scale
        # IID takes the numbers of samples from an environment and nothing else, and all of them give the same.
        where, dealt = (ANY, "uniform") if method == REFERENCE else (environment_name, environment_name)
        settings: dict[str, Any] = {
            "method": method,
            "dataset": scale.dataset,
            "environment": {"name": dealt, "samples": scale.samples, **(environment or {})},
            "model": scale.model,
            "clients": clients or scale.clients,
            "cohort": scale.cohort,
            "rounds": self.rounds,
            "seed": seed,
            "evaluate_every": scale.evaluate_every,
            "local": local or scale.authors,
        }
        if method == OURS:
            bandit = {"pool": POOL, "history": HISTORY, "step": STEP, "early_stop": None}
            settings["selector"] = {**bandit, **(selector or {})}
        at = tuple(t for t in measured if t <= self.rounds)
        return Planned(where, method, seed, settings, variant, at)


def page(scale: Scale, store: Store) -> Page:
    """All tables and figures from the store."""
    from papers.fedacs_page import page_of

    # A short reproduction is the beginning of the paper's, and its page is the paper's, not yet complete.
    full = next(one for one in reversed(SCALES.values()) if one.store == scale.store)
    return page_of(PAPER, full, store)


PAPER = Paper(
    name="fedacs",
    title="FedACS: skewness analytics and client selection by a dueling bandit (Wang et al. 2022)",
    scales=SCALES,
    environments=NAMES,
    groups=groups,
    page=page,
)
