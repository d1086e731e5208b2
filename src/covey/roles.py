"""The roles of federated learning: who is invited, how replies become a model, what executes orders.

A method is a selector and an aggregator with the probes they need; any selector goes with any
aggregator, on any runtime. To write an algorithm, subclass `Selector` or `Aggregator` in a file of
its own, and name it as package.module:Class or register it. For a method of its own name, register a
`Recipe` as well: `covey.methods.add("mine")(covey.Recipe("What it does.", selector="mine"))`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from covey.config import Local
from covey.environments import IntArray
from covey.evaluation import Scores
from covey.layout import Layout
from covey.messages import Gate, Order, Replies
from covey.probes import Probe
from covey.registry import Registry

State = dict[str, Any]
"""Nested mapping of tensors, NumPy arrays and JSON values: what a checkpoint keeps of a part."""


@dataclass(frozen=True)
class Setting:
    """What a method may know about the run. No client's data and no truth about them is in here."""

    clients: int
    cohort: int
    rounds: int
    classes: int
    seed: int
    layout: Layout
    work: Local
    resumed: bool = False
    """Whether what it was is loaded after `begin`, so that nothing needs to be read from elsewhere."""


class Part(ABC):
    """What selectors and aggregators have in common."""

    setting: Setting

    def begin(self, setting: Setting) -> None:
        """Called once before the first round (and before `load_state_dict` on a resume)."""
        self.setting = setting

    def probes(self, round: int) -> tuple[Probe, ...]:
        """What this round's clients shall measure for it."""
        return ()

    def figures(self) -> dict[str, object]:
        """What records shall say of the last round besides (JSON values)."""
        return {}

    def state_dict(self) -> State:
        """Everything that decides what it does next; randomness is stateless and not part of it."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict`'s result."""


class Selector(Part):
    """Decides whom to invite."""

    @abstractmethod
    def select(self, round: int, candidates: IntArray) -> IntArray:
        """The cohort: at most `setting.cohort` different clients out of `candidates` (those that can be reached)."""

    def survey(self, round: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]] | None:
        """Whom to ask, and what to measure on the present model, before this round's cohort is selected."""
        return None

    def surveyed(self, round: int, replies: Replies) -> None:
        """Learn from the answers to the survey."""

    def observe(self, round: int, replies: Replies) -> None:
        """Learn from a round's sound replies (possibly none).

        Clients that kept their model (`replies.withheld`, see CMFL) have a row too, with NaN in the place of the model.
        """


class Aggregator(Part):
    """Turns replies into the next model."""

    def gate(self, round: int) -> Gate | None:
        """When clients of this round keep their model to themselves."""
        return None

    def observe(self, round: int, replies: Replies) -> None:
        """Learn from a round's sound replies (possibly none), before they are combined."""

    @abstractmethod
    def combine(self, round: int, model: Tensor, replies: Replies) -> Tensor:
        """The next model `[d]` from the present one and at least one sound reply."""


selectors: Registry[Callable[..., Selector]] = Registry("selector", "selectors", parts_of_users=True)
aggregators: Registry[Callable[..., Aggregator]] = Registry("aggregator", "aggregators", parts_of_users=True)


class Method(Protocol):
    """What the round loop knows of a method, with one model or many."""

    resident: bool
    """Whether trained models stay with the clients."""

    def survey(self, round: int, candidates: IntArray) -> Order | None:
        """What to measure before `order`, where anything; `surveyed` is told the answers."""
        ...

    def surveyed(self, round: int, replies: Replies) -> None: ...

    def order(self, round: int, candidates: IntArray) -> Order: ...

    def absorb(self, round: int, replies: Replies) -> None: ...

    def figures(self) -> dict[str, object]:
        """What records shall say of the last round besides."""
        ...

    def models(self) -> Tensor:
        """The models to evaluate: `[m, d]`; clients use row `model_of_client`."""
        ...

    @property
    def model_of_client(self) -> IntArray:
        """`[clients]`: which row of `models()` each client uses."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Runtime(Protocol):
    """Executes orders. Methods do not know which runtime they run on."""

    def available(self, round: int) -> IntArray:
        """Clients that can be reached in this round, ascending."""
        ...

    def execute(self, order: Order) -> Replies: ...

    def evaluate(self, states: Tensor) -> Scores:
        """Score models `[m, d]` on the test set."""
        ...

    def close(self) -> None: ...
