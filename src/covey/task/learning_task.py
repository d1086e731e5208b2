"""What every task declares: its loss, its metrics, and which groups of samples environments deal."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from covey.arrays import IntArray
from covey.errors import Refusal


@dataclass(frozen=True)
class Metric:
    """A figure that tells how good answers are."""

    name: str
    """Its key in records."""
    label: str
    """What tables and charts call it."""
    higher: bool = True
    """True if higher is better."""
    share: bool = True
    """True if it lies between 0 and 1 and is shown in percent."""

    @property
    def better(self) -> str:
        """`higher` or `lower`."""
        return "higher" if self.higher else "lower"

    @property
    def sign(self) -> float:
        """1 if higher is better, else -1."""
        return 1.0 if self.higher else -1.0

    def text(self, value: float | None) -> str:
        """Return a value as it is shown; a dash for None."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.share else f"{value:.4g}"

    def gap(self, value: float) -> str:
        """Return a difference as it is shown, without its sign: points of a percentage, or a number."""
        return f"{abs(100 * value):.1f} points" if self.share else f"{abs(value):.3g}"

    @property
    def test_label(self) -> str:
        """What sentences call its value on the test set."""
        return f"test {self.label}"

    def shown(self, value: float) -> float:
        """Return a value on the axis of a chart: in percent if it is a share."""
        return 100 * value if self.share else value

    @property
    def axis(self) -> str:
        """Its label with the unit of a chart's axis."""
        return f"{self.label}, %" if self.share else self.label


ACCURACY = Metric("accuracy", "accuracy")
"""The main metric of tasks with classes."""


class Task(ABC):
    """What a model learns: its outputs, the loss of each sample, and the metrics on test samples.

    A task is made with its options by name (`--task`), and completed by the labels of a data set (`completed`). Labels
    are then tensors in the unit that models are trained in.
    """

    name: ClassVar[str]
    has_classes: ClassVar[bool] = False
    """True if every sample belongs to one of several classes, so that clients have class shares."""
    metrics: tuple[Metric, ...] = ()
    """The first is the main one: comparisons, targets and curves are about it."""

    @property
    def main(self) -> Metric:
        return self.metrics[0]

    @property
    def outputs(self) -> int | None:
        """The number of a model's outputs; None if it is the number of classes."""
        return None

    @property
    def complete(self) -> bool:
        """True if nothing is left that labels have to tell."""
        return self.outputs != 0

    def agrees_with(self, other: "Task") -> bool:
        """True if completing this task by the labels of `other` would give `other`."""
        known = other.as_mapping()
        return all(value in (known.get(option), [], 0, "") for option, value in self.as_mapping().items())

    def as_mapping(self) -> dict[str, Any]:
        """Return name and options, completed, as they travel to clients; `named_task` reads them."""
        return {"name": self.name}

    def original(self, y: Tensor) -> Tensor:
        """Return labels or answers in the labels' own unit, in which they were given."""
        return y

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """Return the loss of each sample `[b]`, or with `reduction` "mean" or "sum" a number.

        It is called under `vmap` and compiled, so it branches on no tensor's value.
        """

    @abstractmethod
    def answers(self, output: Tensor) -> Tensor:
        """Return what metrics are computed from: a model's outputs as answers `[n, ...]`."""

    @abstractmethod
    def score(self, answers: Tensor, y: Tensor) -> dict[str, float | None]:
        """Return every metric of answers `[n, ...]`, by name; None where it is not defined."""

    @abstractmethod
    def bins(self, y: Tensor) -> IntArray:
        """Return the group of each sample `[n]`, from 0, that environments deal in place of classes."""

    def bin_names(self, y: Tensor, bins: IntArray) -> tuple[str, ...]:
        """Return a name for each group, given each sample's labels and group."""
        return tuple(f"group {number}" for number in range(int(bins.max()) + 1))

    def wrong(self, y: Tensor) -> Tensor:
        """Return labels that are all wrong, for clients that are poisoned."""
        raise Refusal(
            f"What is wrong for the task '{self.name}' is not known: leave out altered.poison, altered.noise and the "
            "attack by labels."
        )


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Return losses `[b]` as they are, their mean, or their sum."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def like_labels(output: Tensor, y: Tensor) -> Tensor:
    """Return a model's outputs in the shape of the labels `[..., targets]`; refuse another number of them."""
    if output.shape == y.shape:
        return output
    if output.numel() == y.numel():
        return output.reshape(y.shape)
    wanted = y.shape[-1]
    raise Refusal(
        f"The model gives outputs of the shape {list(output.shape)} for labels of the shape {list(y.shape)}: its last "
        f"layer needs {wanted} output{'s' if wanted > 1 else ''}, one for each target."
    )
