"""Aggregators around another one: they change the replies that it combines."""

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from covey.arrays import State
from covey.core.interfaces import Aggregator, JointWork, Probe, Setting
from covey.core.messages import Gate
from covey.core.replies import Replies
from covey.errors import require
from covey.registries import aggregators


class AroundAggregator(Aggregator):
    """An aggregator that hands altered replies to another one.

    around: the other one, with its options after commas: `average`, or `average,weighted=false`.
    """

    def __init__(self, *, around: str) -> None:
        name, options = _described(around)
        self.inner: Aggregator = aggregators.make(name, options)
        self.private = self.inner.private

    @abstractmethod
    def altered(self, t: int, model: Tensor, replies: Replies) -> Replies:
        """Return the replies that the other aggregator combines."""

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.inner.begin(setting)

    def probes(self, t: int) -> tuple[Probe, ...]:
        return self.inner.probes(t)

    def gate(self, t: int) -> Gate | None:
        return self.inner.gate(t)

    def observe(self, t: int, replies: Replies) -> None:
        self.inner.observe(t, replies)

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        return self.inner.combine(t, model, self.altered(t, model, replies))

    def stepped(self, t: int, before: Tensor, after: Tensor) -> None:
        self.inner.stepped(t, before, after)

    def figures(self) -> dict[str, object]:
        return self.inner.figures()

    def joint_work(self) -> Sequence[JointWork]:
        return self.inner.joint_work()

    def state_dict(self) -> State:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.inner.load_state_dict(state["inner"])


def _described(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and options of `average,weighted=false`."""
    name, *pairs = (part.strip() for part in text.split(","))
    options = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        require(
            bool(equals and option),
            f"aggregator.around is a name with options after commas, such as average,weighted=false; not '{text}'.",
        )
        options[option.strip()] = value.strip()
    return name, options
