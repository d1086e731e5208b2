"""One or several numbers a sample."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.errors import require
from covey.registries import tasks
from covey.task.learning_task import Metric, Task, like_labels, reduced

RMSE = Metric("rmse", "RMSE", higher=False, share=False)
MAE = Metric("mae", "MAE", higher=False, share=False)
R2 = Metric("r2", "R²", share=False)


@tasks.add("regression")
class Regression(Task):
    """One or several numbers a sample: squared error of standardised targets; RMSE, MAE and R² in their own unit.

    centre and scale: what is subtracted from each target, and what it is divided by, for training; by default mean and
    standard deviation of the training targets. Sites with data of their own need both.
    bins: quantile bins of the first target that environments deal in place of classes.
    """

    name = "regression"
    metrics = (RMSE, MAE, R2)

    def __init__(self, *, centre: tuple[float, ...] = (), scale: tuple[float, ...] = (), bins: int = 10) -> None:
        require(len(centre) == len(scale), "task.centre and task.scale go together: a number for each target.")
        require(all(one > 0 for one in scale), f"task.scale must be above 0, not {min(scale, default=0):g}.")
        require(bins >= 2, f"task.bins must be at least 2, not {bins}.")
        self.centre, self.scale, self.count = tuple(centre), tuple(scale), bins

    @property
    def outputs(self) -> int:
        return len(self.centre)

    def as_mapping(self) -> dict[str, Any]:
        return {"name": self.name, "centre": list(self.centre), "scale": list(self.scale), "bins": self.count}

    def completed(self, targets: Tensor) -> "Regression":
        """Return the task for training targets float64 `[n, targets]`: with their mean and deviation, unless given."""
        if self.centre:
            require(
                len(self.centre) == targets.shape[1],
                f"task.centre has {len(self.centre)} numbers, and samples here have {targets.shape[1]} targets.",
            )
            return self
        deviation = targets.std(dim=0, correction=0)
        # A constant target is not scaled: its deviation is zero.
        scale = torch.where(deviation > 0, deviation, 1.0)
        return Regression(centre=tuple(targets.mean(dim=0).tolist()), scale=tuple(scale.tolist()), bins=self.count)

    def standardised(self, targets: Tensor) -> Tensor:
        """Return targets in the unit that models are trained in: float32 `[n, targets]`."""
        centre, scale = self._unit
        return ((targets.double() - centre) / scale).float()

    def original(self, y: Tensor) -> Tensor:
        """Return standardised targets or answers in the targets' own unit: float64 `[n, targets]`."""
        centre, scale = self._unit
        return y.double() * scale + centre

    @property
    def _unit(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.centre, dtype=torch.float64), torch.tensor(self.scale, dtype=torch.float64)

    def loss(self, output: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        return reduced((like_labels(output, y) - y).square().mean(dim=-1), reduction)

    def answers(self, output: Tensor) -> Tensor:
        return output.reshape(len(output), -1)

    def score(self, answers: Tensor, y: Tensor) -> dict[str, float | None]:
        """Means over targets; R² = 1 - Σ(y - ŷ)²/Σ(y - ȳ)², which constant targets do not have."""
        given, right = self.original(answers), self.original(y)
        errors = given - right
        spread = (right - right.mean(dim=0)).square().sum(dim=0)
        explained = 1 - errors.square().sum(dim=0) / spread
        known = explained[spread > 0]
        return {
            RMSE.name: _finite(errors.square().mean(dim=0).sqrt().mean()),
            MAE.name: _finite(errors.abs().mean()),
            R2.name: _finite(known.mean()) if len(known) else None,
        }

    def bins(self, y: Tensor) -> IntArray:
        return quantile_bins(y[:, 0].double().numpy(), self.count)

    def bin_names(self, y: Tensor, bins: IntArray) -> tuple[str, ...]:
        """Return the lowest and the highest target of each bin."""
        first = self.original(y)[:, 0].numpy()
        ranges = [first[bins == number] for number in range(int(bins.max()) + 1)]
        return tuple(f"{values.min():.4g} to {values.max():.4g}" for values in ranges)

    def wrong(self, y: Tensor) -> Tensor:
        """Return targets on the other side of the mean: high ones are low."""
        return -y


def quantile_bins(values: Any, count: int) -> IntArray:
    """Return the quantile bin of each value `[n]`, from 0; equal values share a bin, and no bin is empty."""
    edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
    found = np.searchsorted(np.unique(edges), values, side="right")
    return np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _finite(value: Tensor) -> float | None:
    return float(value) if bool(torch.isfinite(value)) else None
