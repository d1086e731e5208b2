"""Methods: names for combinations of a selector, an aggregator and a local objective."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.environments import IntArray
from covey.errors import Refusal, require
from covey.federations import Federation
from covey.messages import Order, Replies
from covey.registry import Registry
from covey.roles import Aggregator, Selector, Setting, State


class OneModel:
    """One global model: a selector invites, an aggregator combines."""

    def __init__(
        self, setting: Setting, model: Tensor, selector: Selector, aggregator: Aggregator, *, resident: bool = False
    ) -> None:
        self.setting = setting
        self.model = model
        self.selector = selector
        self.aggregator = aggregator
        self.resident = resident
        self._kept = False
        _require_role(selector, Selector)
        _require_role(aggregator, Aggregator)
        selector.begin(setting)
        aggregator.begin(setting)

    def survey(self, round: int, candidates: IntArray) -> Order | None:
        asked = self.selector.survey(round, candidates)
        if asked is None:
            return None
        clients, probes = asked
        unsent = not any(probe.uses_model for probe in probes)
        return Order(round, np.sort(clients), self.model, self.setting.work, probes, unsent, train=False)

    def surveyed(self, round: int, replies: Replies) -> None:
        self.selector.surveyed(round, replies)

    def order(self, round: int, candidates: IntArray) -> Order:
        cohort = self._cohort(self.selector.select(round, candidates), candidates)
        wanted = (*self.selector.probes(round), *self.aggregator.probes(round))
        probes = tuple({probe.name: probe for probe in wanted}.values())
        gate = self.aggregator.gate(round)
        return Order(round, cohort, self.model, self.setting.work, probes, self.resident, gate=gate)

    def absorb(self, round: int, replies: Replies) -> None:
        self.selector.observe(round, replies.everyone())
        self.aggregator.observe(round, replies)
        kept_before, self._kept = self._kept, False
        if len(replies):
            found = self._sound(self.aggregator.combine(round, self.model, replies))
            self._kept = not bool(torch.isfinite(found).all())
            self.model = self.model if self._kept else found
        if self._kept and not kept_before:
            name = type(self.aggregator).__name__
            warnings.warn(
                f"The aggregator {name} came to NaN or infinity in round {round}: the model stays as it was.",
                stacklevel=2,
            )

    def _cohort(self, chosen: Any, candidates: IntArray) -> IntArray:
        """What the selector answered, ascending; refused where it is no choice among the candidates."""
        name, most = type(self.selector).__name__, self.setting.cohort
        try:
            numbers = np.asarray(chosen)
        except ValueError:
            numbers = np.zeros((0, 0))
        require(
            numbers.ndim == 1 and (numbers.size == 0 or numbers.dtype.kind in "iu"),
            f"The selector {name} must return an array of client numbers, not {_shown(chosen)}.",
        )
        strangers = np.setdiff1d(numbers, candidates)
        if len(strangers):
            raise Refusal(
                f"The selector {name} chose client {strangers[0]}, which is none of the round's {len(candidates)} "
                "candidates."
            )
        clients = np.unique(numbers.astype(np.int64))
        require(len(clients) == len(numbers), f"The selector {name} chose a client more than once: {_shown(chosen)}.")
        require(
            len(clients) <= most, f"The selector {name} chose {len(clients)} clients for a cohort of at most {most}."
        )
        return clients

    def _sound(self, found: Any) -> Tensor:
        """What the aggregator answered, in the model's precision; refused where it is no model."""
        name, shape = type(self.aggregator).__name__, tuple(self.model.shape)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            raise Refusal(
                f"The aggregator {name} must return the next model, a tensor of the shape {shape}, not {_shown(found)}."
            )
        return found.to(self.model.dtype)

    def figures(self) -> dict[str, object]:
        kept = {"model_kept": True} if self._kept else {}
        return {**self.selector.figures(), **self.aggregator.figures(), **kept}

    def models(self) -> Tensor:
        return self.model.unsqueeze(0)

    @property
    def model_of_client(self) -> IntArray:
        return np.zeros(self.setting.clients, dtype=np.int64)

    def state_dict(self) -> State:
        return {
            "model": self.model,
            "selector": self.selector.state_dict(),
            "aggregator": self.aggregator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.model = state["model"]
        self.selector.load_state_dict(state["selector"])
        self.aggregator.load_state_dict(state["aggregator"])


def _require_role(part: object, role: type) -> None:
    name = role.__name__
    require(isinstance(part, role), f"{_shown(part)} is no {name.lower()}: one of your own derives from covey.{name}.")


def _shown(value: Any) -> str:
    """A part's answer in a refusal."""
    if isinstance(value, Tensor):
        return f"one of the shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.60}" if value is not None else "None"


@dataclass(frozen=True)
class Recipe:
    """How a method is made.

    `local` prescribes values of local SGD that differ from the defaults, and `weighing` options of the aggregator;
    `reshape` replaces the federation (references do that); `many` names a method with many models, instead of
    `OneModel`.
    """

    summary: str
    selector: str | None = "uniform"
    aggregator: str | None = "average"
    weighing: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    reshape: Callable[[Federation, int], Federation] | None = None
    resident: bool = False
    many: str | None = None


methods: Registry[Recipe] = Registry("method", "methods")

for _name, _recipe in {
    "fedavg": Recipe("Uniform selection, average weighted by samples (McMahan et al. 2017)."),
    "fedprox": Recipe("FedAvg with a proximal term in the local objective (Li et al. 2020).", local={"proximal": 0.01}),
    "fedacs": Recipe(
        "Clients with little skew are found from last-layer insights and invited more often (Wang et al. 2022).",
        selector="fedacs",
    ),
    "oort": Recipe(
        "Clients that are useful and fast, with exploration (Lai et al. 2021), in full.",
        selector="oort",
    ),
    "oort-simple": Recipe(
        "Oort as the FedACS and NCCB papers compare with it: the highest training losses, once everyone was seen.",
        selector="oort-simple",
    ),
    "nccb": Recipe(
        "Clients that resemble each other teach about each other: a neural bandit on SimHash contexts (Cao et al.).",
        selector="nccb",
    ),
    "k-linucb": Recipe("A linear bandit on the same contexts.", selector="k-linucb"),
    "ondemand": Recipe(
        "FedAvg that also learns its clients' class shares, for models on demand (Jeong et al.).",
        aggregator="ondemand",
    ),
    "feddrl": Recipe(
        "A reinforcement-learning agent decides how much each update counts (Nguyen et al. 2022).",
        aggregator="feddrl",
    ),
    "feddrl-set": Recipe(
        "FedDRL with one network for every client of the round, whoever they are and however many.",
        aggregator="feddrl-set",
    ),
    "loss-softmax": Recipe(
        "Updates count more the higher the client's loss: what FedDRL must beat.", aggregator="loss-softmax"
    ),
    "rexp3": Recipe(
        "An adversarial bandit with restarts (Besbes et al. 2014) on FedACS's rewards.",
        selector="rexp3",
    ),
    "power-of-choice": Recipe(
        "Of some candidates, those with the highest loss (Cho et al. 2020).",
        selector="power-of-choice",
        weighing={"weighted": False},
    ),
    "cmfl": Recipe(
        "Clients upload only updates that point where the last global one did (Wang et al. 2019).",
        aggregator="cmfl",
    ),
    "cmfl-server": Recipe(
        "CMFL as the FedACS paper compares with it: updates that disagree with the round's mean are left out.",
        aggregator="cmfl-server",
    ),
    "central": Recipe(
        "SingleSet: all data in one place, plain SGD; what federation cannot expect to beat.",
        reshape=lambda federation, seed: federation.merged(),
        resident=True,
    ),
    "iid": Recipe(
        "FedAvg on the same clients with the skew taken out of their data: the IID reference.",
        reshape=lambda federation, seed: federation.without_skew(seed),
    ),
    "local-only": Recipe(
        "Every client trains alone, nothing is sent; what federation has to beat.",
        selector=None,
        aggregator=None,
        many="local-only",
    ),
    "cfl": Recipe(
        "Clustered federated learning: groups of clients whose updates disagree part (Sattler et al. 2019).",
        selector=None,
        aggregator=None,
        many="cfl",
    ),
    "mocha": Recipe(
        "Multi-task learning, convex: a last layer for each client, pulled together in the dual (Smith et al. 2017).",
        selector=None,
        aggregator=None,
        many="mocha",
    ),
    "mocha-deep": Recipe(
        "MOCHA's mean-regularised objective for any model: each client its own, pulled towards the mean of all.",
        selector=None,
        aggregator=None,
        many="mocha-deep",
    ),
    "fedfomo": Recipe(
        "Each client mixes the models of others that do better on its own validation samples (Zhang et al. 2021).",
        selector=None,
        aggregator=None,
        many="fedfomo",
    ),
}.items():
    methods.add(_name)(_recipe)


def recipe_of(name: str) -> Recipe:
    """The recipe called `name`; `fedacs+feddrl` is a selector and an aggregator by their names."""
    if name not in methods.names() and "+" in name:
        selector, _, aggregator = name.partition("+")
        return Recipe("Parts chosen by name.", selector=selector, aggregator=aggregator)
    return methods[name].part
