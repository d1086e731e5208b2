"""A loss and metrics of one's own."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.errors import Refusal, require
from covey.registries import tasks
from covey.registry import import_path
from covey.task.learning_task import Metric, Task, reduced
from covey.task.regression import quantile_bins

_LOSS = Metric("loss", "test loss", higher=False, share=False)


@tasks.add("custom")
class Custom(Task):
    """A loss of your own, `loss(output, y)` for each sample, and metrics of your own, `metrics(output, y)`.

    loss: a function as package.module:name, of outputs and labels of a batch; it returns the loss of each sample `[b]`.
    metrics: a function of the outputs and labels of all test samples, which returns a number, or numbers by name, the
        main one first; without one, the main metric is the mean loss.
    better: whether a higher or a lower main metric is better.
    outputs: the model's outputs; by default one for each class, or for each column of numbers.
    """

    name = "custom"

    def __init__(
        self,
        *,
        loss: str = "",
        metrics: str = "",
        better: Literal["higher", "lower"] = "higher",
        outputs: int = 0,
    ) -> None:
        require(
            ":" in loss, f"The task 'custom' needs a loss of yours: task.loss=package.module:name, not '{loss or ''}'."
        )
        require(not metrics or ":" in metrics, f"task.metrics is a function as package.module:name, not '{metrics}'.")
        require(outputs >= 0, f"task.outputs must be at least 1, or 0 for one a class or column, not {outputs}.")
        self.loss_name, self.metrics_name, self.better, self._outputs = loss, metrics, better, outputs
        self.metrics = (Metric("custom", "score", higher=better == "higher", share=False) if metrics else _LOSS,)

    @property
    def outputs(self) -> int:
        return self._outputs

    def as_mapping(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "loss": self.loss_name,
            "metrics": self.metrics_name,
            "better": self.better,
            "outputs": self._outputs,
        }

    def completed(self, columns: int) -> "Custom":
        """Return the task for labels of so many classes, or so many columns of numbers."""
        outputs = self._outputs or columns
        return Custom(loss=self.loss_name, metrics=self.metrics_name, better=self.better, outputs=outputs)

    @cached_property
    def _loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        found: Callable[[Tensor, Tensor], Tensor] = import_path(self.loss_name, "loss")
        return found

    @cached_property
    def _metrics(self) -> Callable[[Tensor, Tensor], Any]:
        found: Callable[[Tensor, Tensor], Any] = import_path(self.metrics_name, "metrics")
        return found

    def loss(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        losses = self._loss(output, y)
        if not isinstance(losses, Tensor) or losses.shape != output.shape[:1]:
            shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise Refusal(
                f"The loss {self.loss_name} must return one number for each sample, {list(output.shape[:1])}, not "
                f"{shape}: leave the mean out."
            )
        return reduced(losses, reduction)

    def answers(self, output: Tensor) -> Tensor:
        return output

    def score(self, answers: Tensor, y: Tensor) -> dict[str, float | None]:
        if not self.metrics_name:
            with torch.inference_mode():
                return {_LOSS.name: _number(self.loss(answers, y, "mean").double())}
        found = self._metrics(answers, y)
        named = found if isinstance(found, Mapping) else {self.main.name: found}
        require(len(named) > 0, f"The function {self.metrics_name} returns no metric.")
        try:
            return {str(name): _number(value) for name, value in named.items()}
        except (TypeError, ValueError) as error:
            raise Refusal(
                f"The function {self.metrics_name} must return a number, or numbers by name ({error})."
            ) from error

    def bins(self, y: Tensor) -> IntArray:
        if y.dim() == 1:
            return np.unique(y.numpy(), return_inverse=True)[1].reshape(-1).astype(np.int64)
        return quantile_bins(y[:, 0].double().numpy(), 10)


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
