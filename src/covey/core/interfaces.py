"""The roles of federated learning: who is invited, how replies become a model, what executes orders.

A method is a selector and an aggregator with the probes they need; any selector goes with any
aggregator, on any runtime. To write an algorithm, subclass `Selector` or `Aggregator` in a file of
its own, and name it as package.module:Class or register it. For a method of its own name, register a
`Recipe` as well: `covey.methods.add("mine")(covey.Recipe("What it does.", selector="mine"))`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from covey.arrays import IntArray, State
from covey.config.sections import Local
from covey.core.messages import Gate, Order
from covey.core.replies import Replies
from covey.core.scores import Scores
from covey.model.layout import Layout

if TYPE_CHECKING:
    from covey.client.learner import Learner
    from covey.core.round_record import RoundRecord
    from covey.data.dataset import Samples


class Probe(ABC):
    """A named measurement on the client. Must be picklable: it travels to worker processes."""

    name: str
    kept: tuple[str, ...] = ()
    """Fields that stay on the client. A simulation carries them to the next order and counts them nowhere."""
    uses_model: bool = True
    """Whether it looks at the model; where no probe of a survey does, none is sent."""

    code_options: tuple[str, ...] = ()
    """Options that may name a user's code as package.module:name; a client imports only what its operator allows."""

    @abstractmethod
    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        """Field → value, the same shapes on every client."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Fields whose shape is known before anybody measures; that of others is what most clients send."""
        return {}

    def payload(self) -> dict[str, Tensor]:
        """What the server has to send along for it."""
        return {}

    def for_client(self, client: int) -> "Probe":
        """The probe as one client gets it: itself, unless what is sent along differs from client to client."""
        return self


class CohortProbe(Probe):
    """A probe that measures many clients that received the same model at once, and one as a cohort of one."""

    on_device: tuple[str, ...] = ()
    """Fields as large as models, which a simulation leaves on the device that has measured them."""

    @abstractmethod
    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        """Field → `[k, ...]`, from k trained models `[k, d]` and the clients' samples one after another."""

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        fields = self.measure_cohort(learner, received, trained[None], samples, [len(samples)])
        return {name: values[0] for name, values in fields.items()}


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

    def probes(self, t: int) -> tuple[Probe, ...]:
        """What this round's clients shall measure for it."""
        return ()

    def figures(self) -> dict[str, object]:
        """JSON values that the record of the last round shows besides."""
        return {}

    def joint_work(self) -> "Sequence[JointWork]":
        """Work left over from the round that the loop may do for many runs at once."""
        return ()

    def state_dict(self) -> State:
        """Everything that decides what it does next; randomness is stateless and not part of it."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict`'s result."""


class Selector(Part):
    """Decides whom to invite."""

    @abstractmethod
    def select(self, t: int, candidates: IntArray) -> IntArray:
        """The cohort: at most `setting.cohort` different clients out of `candidates` (those that can be reached)."""

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]] | None:
        """Whom to ask, and what to measure on the present model, before this round's cohort is selected."""
        return None

    def surveyed(self, t: int, replies: Replies) -> None:
        """Learn from the answers to the survey."""

    def observe(self, t: int, replies: Replies) -> None:
        """Learn from a round's sound replies (possibly none).

        Clients that kept their model (`replies.withheld`, see CMFL) have a row too, with NaN in the place of the model.
        """


class Aggregator(Part):
    """Turns replies into the next model."""

    def gate(self, t: int) -> Gate | None:
        """When clients of this round keep their model to themselves."""
        return None

    def observe(self, t: int, replies: Replies) -> None:
        """Learn from a round's sound replies (possibly none), before they are combined."""

    @abstractmethod
    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        """The next model `[d]` from the present one and at least one sound reply."""


class JointWork(ABC):
    """Server-side work of one run that is faster together with that of other runs in lockstep.

    A part that has such work returns it from `joint_work` after a round; the loop gathers it from all runs, and works
    with equal keys are performed as one. The result must not depend on the company, but for rounding.
    """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Works with equal keys can be performed together."""

    @classmethod
    @abstractmethod
    def perform(cls, works: Sequence[Any]) -> None:
        """Perform works of this class with equal keys."""


class Method(Protocol):
    """What the round loop knows of a method, with one model or many."""

    resident: bool
    """True if trained models stay with the clients."""

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        """What to measure before `order`, or None; `surveyed` receives the replies."""
        ...

    def surveyed(self, t: int, replies: Replies) -> None:
        """Learn from the replies to the survey."""
        ...

    def order(self, t: int, candidates: IntArray) -> Order:
        """Whom to invite in round `t`, and what to ask of them."""
        ...

    def absorb(self, t: int, replies: Replies) -> None:
        """Learn from a round's checked replies and aggregate them."""
        ...

    def joint_work(self) -> Sequence[JointWork]:
        """Work left over from the round that the loop may do for many runs at once."""
        ...

    def figures(self) -> dict[str, object]:
        """JSON values that the round's record shows besides."""
        ...

    def models(self) -> Tensor:
        """The models to evaluate: `[m, d]`; clients use row `model_of_client`."""
        ...

    @property
    def model_of_client(self) -> IntArray:
        """`[clients]`: the row of `models()` that each client uses."""
        ...

    def state_dict(self) -> State:
        """Everything that decides what the method does next."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore the result of `state_dict`."""
        ...


class Runtime(ABC):
    """Executes orders. Methods do not know which runtime they run on.

    The whole contract: a runtime is built by `build(federation, module, config)`, told its method (`attach`) and, on a
    resume, the rounds so far (`restore`). Each round the loop asks who can be reached (`available`), sends orders
    (`execute`), scores models (`evaluate`) and shows it the round's record (`annotate`). `close` ends it. Runs whose
    runtimes have equal `group`s are executed together (`execute_many`, `evaluate_many`).
    """

    live: bool = False
    """True if clients are real: their time is real time, and no devices are simulated."""
    holdings_known: bool = True
    """True if clients hold the federation's samples; False for sites with data of their own."""

    @property
    def group(self) -> Hashable:
        """Runtimes with equal groups execute their orders together; by default each is a group of its own."""
        return id(self)

    def attach(self, method: Method) -> None:
        """Receive the run's method, once, before the first round."""

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Receive the records of the rounds so far, when a run is resumed."""

    @abstractmethod
    def available(self, t: int) -> IntArray:
        """Clients that can be reached in round `t`, ascending."""

    @abstractmethod
    def execute(self, order: Order) -> Replies:
        """Have the order's clients do what it asks."""

    @abstractmethod
    def evaluate(self, states: Tensor) -> Scores:
        """Score models `[m, d]` on the test set."""

    def execute_many(self, orders: "Sequence[tuple[Runtime, Order]]") -> list[Replies]:
        """Execute orders of runtimes of one group; this runtime is the first of them."""
        return [runtime.execute(order) for runtime, order in orders]

    def evaluate_many(self, requests: "Sequence[tuple[Runtime, Tensor]]") -> list[Scores]:
        """Score models of runtimes of one group; this runtime is the first of them."""
        return [runtime.evaluate(states) for runtime, states in requests]

    def annotate(self, record: "RoundRecord") -> "RoundRecord":
        """Return a round's record with what the runtime knows of the round."""
        return record

    def close(self) -> None:
        """Release processes, connections and memory."""
