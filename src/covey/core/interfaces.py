"""The roles of federated learning: selectors invite clients, aggregators combine replies, runtimes execute orders.

A method is a selector and an aggregator with the probes they need; any selector goes with any
aggregator, on any runtime. To write an algorithm, subclass `Selector` or `Aggregator` in a file of
its own, and name it as package.module:Class or register it. For a method of its own name, register a
`Recipe` as well: `covey.methods.add("mine")(covey.Recipe("A short summary.", selector="mine"))`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from covey.arrays import IntArray, State
from covey.config.sections import GuardLimits, Local
from covey.core.messages import Gate, Order
from covey.core.replies import Replies
from covey.core.scores import Scores
from covey.errors import Refusal, require
from covey.model.layout import Layout
from covey.registries import aggregators, manymodels, methods, selectors, tasks, trainers

if TYPE_CHECKING:
    from covey.client.learner import Learner
    from covey.client.step_trace import StepTrace
    from covey.config.recipe import Recipe
    from covey.core.round_record import RoundRecord
    from covey.data.dataset import Samples
    from covey.probe.class_query import Privacy


class Probe(ABC):
    """A named measurement on the client. Must be picklable: it travels to worker processes."""

    name: str
    kept: tuple[str, ...] = ()
    """Fields that stay on the client. A simulation carries them to the next order and does not count their bytes."""
    uses_model: bool = True
    """True if it uses the model; a survey sends no model if none of its probes does."""
    privacy: "Privacy | None" = None
    """Differential privacy of its noisy answers; None if they have no noise."""

    code_options: tuple[str, ...] = ()
    """Options that may name a user's code as package.module:name; a client imports only what its operator allows."""

    @abstractmethod
    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        """Return field → value, with the same shapes on every client."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return field → shape, as known in advance. Fields not listed take the shape that most clients sent."""
        return {}

    def payload(self) -> dict[str, Tensor]:
        """Return the tensors that the server sends along with the probe."""
        return {}

    def for_client(self, client: int) -> "Probe":
        """Return the probe as one client gets it: itself, unless the payload differs from client to client."""
        return self

    def wants_steps(self) -> bool:
        """True if it uses the last layer's gradients along clients' own training (`with_steps`), where it is known."""
        return False

    def with_steps(self, steps: "Sequence[StepTrace]") -> "Probe":
        """Return the probe as measured by clients that have taken these steps, one trace for each client."""
        return self


class CohortProbe(Probe):
    """A probe that measures many clients that received the same model at once, and one as a cohort of one."""

    on_device: tuple[str, ...] = ()
    """Fields as large as models, which a simulation leaves on the device that measured them."""

    @abstractmethod
    def measure_cohort(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", counts: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return field → `[k, ...]`, for k trained models `[k, d]`.

        samples: those of all k clients, one client after another; `counts` has the number of each.
        """

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        fields = self.measure_cohort(learner, received, trained[None], samples, [len(samples)])
        return {name: values[0] for name, values in fields.items()}


@dataclass(frozen=True)
class Setting:
    """The facts about a run that a method may know: nothing of the clients' data or their true class shares."""

    clients: int
    cohort: int
    rounds: int
    classes: int
    """0 if the task has no classes."""
    seed: int
    layout: Layout
    work: Local
    resumed: bool = False
    """True on a resume: `load_state_dict` follows `begin`, so `begin` need not read files such as a trained agent."""
    shuffled: bool = True
    """True if the places of a cohort are shuffled in each round, for methods that see places; False in old runs."""
    uniform_sampling: bool = False
    """True if each round's cohort is drawn uniformly, without replacement and in its full size, from all clients."""
    uniform_selection: bool = False
    """True if each round's cohort is drawn uniformly from the clients that can be reached."""
    live: bool = False
    """True if clients are real: they know the seed, so noise that hides one from the others must not come from it."""
    task: str = "classification"
    """What models learn."""
    limits: GuardLimits = field(default_factory=GuardLimits)
    """What is believed of clients' updates and sample counts."""


def require_classes(part: Any, setting: Setting) -> None:
    """Refuse a part that works with classes where the task has none."""
    if not getattr(part, "needs_classes", False) or setting.classes:
        return
    require(
        not getattr(tasks[setting.task].part, "has_classes", False),
        f"{_name_of(part)} works with classes, whose number is that of the last layer's outputs, and "
        f"{setting.layout.headless}.",
    )
    needing = ", ".join(name for name in methods.names() if needs_classes(methods[name].part))
    raise Refusal(
        f"{_name_of(part)} works with the classes of clients' samples, and the task {setting.task} has none: "
        f"choose another method; all work but {needing}."
    )


def _name_of(part: Any) -> str:
    """Return a part's kind and the name that it is registered under, or else its class."""
    for registry in (selectors, aggregators, trainers, manymodels):
        if name := registry.name_of(type(part)):
            return f"The {registry.kind} '{name}'"
    return type(part).__name__


def needs_classes(recipe: "Recipe") -> bool:
    """True if a method has a part that works with classes."""
    chosen = ((selectors, recipe.selector), (aggregators, recipe.aggregator), (trainers, recipe.trainer))
    named = [(registry, name) for registry, name in (*chosen, (manymodels, recipe.many)) if name is not None]
    return any(getattr(registry[name].part, "needs_classes", False) for registry, name in named)


class Part(ABC):
    """Base of selectors and aggregators."""

    setting: Setting
    depends_on_rounds: bool = False
    """True if its course depends on the number of rounds planned, so that a run with it cannot be extended."""
    needs_classes: bool = False
    """True if it works with the classes of samples, which not every task has."""

    def begin(self, setting: Setting) -> None:
        """Called once before the first round (and before `load_state_dict` on a resume)."""
        require_classes(self, setting)
        self.setting = setting

    def probes(self, t: int) -> tuple[Probe, ...]:
        """Return the probes that clients of round `t` measure for this part."""
        return ()

    def figures(self) -> dict[str, object]:
        """Return further JSON values for the record of the last round."""
        return {}

    def joint_work(self) -> "Sequence[JointWork]":
        """Return work left over from the round that the loop may do for many runs at once."""
        return ()

    def state_dict(self) -> State:
        """Return the whole state between rounds; randomness is stateless and not part of it."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore the result of `state_dict`."""


def begin_part(part: Part, setting: Setting) -> None:
    """Begin a part; refuse one whose own `begin` leaves out that of its base."""
    part.begin(setting)
    name = type(part).__name__
    require(hasattr(part, "setting"), f"begin of {name} must call super().begin(setting), which sets self.setting.")


class Selector(Part):
    """Selects the clients of each round."""

    def require_fits(self, clients: int, cohort: int) -> None:
        """Refuse numbers of clients and of a cohort that the options do not go with, before anything is started."""

    @abstractmethod
    def select(self, t: int, candidates: IntArray) -> IntArray:
        """Return the cohort: at most `setting.cohort` different clients of `candidates`, which can all be reached."""

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]] | None:
        """Return clients and probes to measure on the current model before the cohort is selected, or None."""
        return None

    def survey_model(self, model: Tensor) -> Tensor:
        """Return the model `[d]` that the survey's clients measure on; by default the current one."""
        return model

    def surveyed(self, t: int, replies: Replies) -> None:
        """Learn from the answers to the survey."""

    def sent(self, t: int, model: Tensor) -> None:
        """Learn the model `[d]` that the clients of round `t` start from."""

    def observe(self, t: int, replies: Replies) -> None:
        """Learn from a round's sound replies (possibly none).

        Clients that kept their model (`replies.withheld`, see CMFL) have a row too, with NaN in the place of the model.
        """


class Aggregator(Part):
    """Turns replies into the next model."""

    private: bool = False
    """True if its proof of privacy needs every client's update judged by itself: nothing before it compares them.

    It then combines every round, even one without a sound reply: a model without noise would tell of that.
    """

    def gate(self, t: int) -> Gate | None:
        """Return the condition under which clients of round `t` keep their model, or None."""
        return None

    def observe(self, t: int, replies: Replies) -> None:
        """Learn from a round's sound replies (possibly none), before they are combined."""

    @abstractmethod
    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        """Return the next model `[d]`, from the current one and at least one sound reply (a private one: or none)."""

    def stepped(self, t: int, before: Tensor, after: Tensor) -> None:
        """Learn the step that the server took: its optimiser may have made another model of that of `combine`."""


class JointWork(ABC):
    """Server-side work of one run that is faster together with that of other runs in lockstep.

    A part that has such work returns it from `joint_work` after a round; the loop gathers it from all runs, and works
    with equal keys are performed as one. The result must not depend on the other runs, except for rounding.
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
    """A method as the round loop sees it, with one model or many."""

    resident: bool
    """True if trained models stay with the clients."""

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        """Return an order to execute before `order`, or None; `surveyed` receives its replies."""
        ...

    def surveyed(self, t: int, replies: Replies) -> None:
        """Learn from the replies to the survey."""
        ...

    def order(self, t: int, candidates: IntArray) -> Order:
        """Return the order of round `t`: its clients and their work."""
        ...

    def screened(self, t: int, replies: Replies) -> Replies:
        """Return a round's checked replies without those that it does not believe."""
        ...

    def absorb(self, t: int, replies: Replies) -> None:
        """Learn from a round's screened replies and aggregate them."""
        ...

    def joint_work(self) -> Sequence[JointWork]:
        """Return work left over from the round that the loop may do for many runs at once."""
        ...

    def figures(self) -> dict[str, object]:
        """Return further JSON values for the round's record."""
        ...

    def models(self) -> Tensor:
        """Return the models to evaluate, `[m, d]`; client i uses row `model_of_client[i]`."""
        ...

    @property
    def model_of_client(self) -> IntArray:
        """`[clients]`: the row of `models()` that each client uses."""
        ...

    def state_dict(self) -> State:
        """Return the method's whole state between rounds."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore the result of `state_dict`."""
        ...


class Runtime(ABC):
    """Executes orders. Methods do not know which runtime they run on.

    The whole contract: a runtime is built by the function registered under its name in `covey.runtimes`, which is
    called with federation, module and configuration. It receives its method (`attach`) and, on a resume, the rounds so
    far (`restore`). Each round the loop asks which clients can be reached (`available`), sends orders (`execute`),
    scores models (`evaluate`) and lets the runtime complete the round's record (`annotate`). `close` ends it. Runs
    whose runtimes have equal `group`s are executed together (`execute_many`, `evaluate_many`).
    """

    live: bool = False
    """True if clients are real: their time is real time, and no devices are simulated."""
    holdings_known: bool = True
    """True if clients hold the federation's samples; False for sites with data of their own."""
    overlaps: bool = False
    """True if `execute_many` takes `meanwhile` and calls it while a device computes."""

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
        """Return the clients that can be reached in round `t`, ascending."""

    @abstractmethod
    def execute(self, order: Order) -> Replies:
        """Have the order's clients do its work, and return their replies."""

    @abstractmethod
    def evaluate(self, states: Tensor) -> Scores:
        """Score models `[m, d]` on the test set."""

    def execute_many(
        self, orders: "Sequence[tuple[Runtime, Order]]", meanwhile: Callable[[], None] | None = None
    ) -> list[Replies]:
        """Execute orders of runtimes of one group; this runtime is the first of them.

        meanwhile: writes the rounds before. One that `overlaps` calls it once a device is at work, others never get it.
        """
        return [runtime.execute(order) for runtime, order in orders]

    def evaluate_many(self, requests: "Sequence[tuple[Runtime, Tensor]]") -> list[Scores]:
        """Score models of runtimes of one group; this runtime is the first of them."""
        return [runtime.evaluate(states) for runtime, states in requests]

    def annotate(self, record: "RoundRecord") -> "RoundRecord":
        """Return a round's record, completed with the facts that only the runtime has."""
        return record

    def close(self) -> None:
        """Release processes, connections and memory."""
