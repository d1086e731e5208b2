"""Tasks of worker processes, and the state that they are performed on: learner, samples and shared models."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.client.learner import Learner
from covey.client.local_work import ClientResult, ClientTask, perform_task
from covey.client.trainer_fit import TrainerTask
from covey.core.replies import TRAINER
from covey.core.trainer import KEPT, TrainerRef
from covey.data.dataset import Samples
from covey.data.host_memory import shared_tensor
from covey.environment.federated_data import Federation


@dataclass(frozen=True)
class TrainTask:
    """Perform a client's task from `starts[start]`; the trained model goes to `ends[end]`."""

    task: ClientTask
    start: int
    end: int
    anchor: int | None = None
    """The row of `starts` that the proximal term pulls to, if not to the start."""
    trainer: TrainerRef | None = None
    """How the client trains, if not plainly; what it kept is `kept[end]`, and so is what it keeps now."""
    age: int | None = None
    """Rounds since the client was visited last; None on its first visit."""


@dataclass(frozen=True)
class ScoreTask:
    """Score models `starts[start : start + models]`, which differ in their head alone, on test samples from `first` to
    `last`."""

    start: int
    first: int
    last: int
    models: int = 1
    keep: bool = False
    """True if every answer is kept."""


@dataclass(frozen=True)
class MeasureTask:
    """Perform the tasks of several clients that only measure: one message for all of them."""

    tasks: tuple[TrainTask, ...]


WorkerTask = TrainTask | ScoreTask | MeasureTask


@dataclass(frozen=True, eq=False)
class SharedModels:
    """Models that tasks read and write, in memory that worker processes share."""

    starts: Tensor
    """`[m, d]`: models to train or score."""
    ends: Tensor
    """`[k, d]`: trained models."""
    sent: Tensor
    """`[s]`: what a trainer's order has for all clients."""
    kept: Tensor
    """`[k, n]`: what a trainer's clients kept, and then what they keep."""

    @classmethod
    def of(
        cls, starts: int, ends: int, size: int, dtype: torch.dtype, *, shared: bool, sent: int = 0, kept: int = 0
    ) -> "SharedModels":
        """Allocate models of `size` numbers; `shared` if workers are other processes."""
        make = shared_tensor if shared else torch.zeros
        shapes = (starts, size), (ends, size), (sent,), (ends, kept)
        return cls(*(make(shape, dtype=dtype) for shape in shapes))


class WorkerState:
    """Performs tasks; the same object in this process and, by fork, in every worker."""

    def __init__(self, learner: Learner, federation: Federation, seed: int, models: SharedModels) -> None:
        self.learner = learner
        self.federation = federation
        self.seed = seed
        self.models = models

    def perform(self, task: WorkerTask) -> Any:
        """Return a client's result (its model goes to the shared models), or summed losses and correct answers."""
        if isinstance(task, MeasureTask):
            return [_as_arrays(self._train(one)) for one in task.tasks]
        return self._train(task) if isinstance(task, TrainTask) else self._score(task)

    def _train(self, task: TrainTask) -> ClientResult:
        plain = not task.task.probes and not task.task.holdout and task.trainer is None
        read = self.federation.samples_in_batches if plain else self.federation.samples
        samples = read(task.task.client)
        received = self.models.starts[task.start]
        anchor = None if task.anchor is None else self.models.starts[task.anchor]
        trainer = self._trainer_task(task)
        trained, result = perform_task(
            task.task, self.learner, samples, received, self.seed, anchor=anchor, trainer=trainer
        )
        if task.task.train:
            self.models.ends[task.end] = trained
        if TRAINER in result.kept:
            # As large as a model, so it goes through shared memory too.
            self.models.kept[task.end] = result.kept.pop(TRAINER)[KEPT]
        return result

    def _trainer_task(self, task: TrainTask) -> TrainerTask | None:
        if task.trainer is None:
            return None
        kept = None if task.age is None else self.models.kept[task.end].clone()
        return TrainerTask(task.trainer, self.models.sent, kept, task.age or 0)

    def _score(self, task: ScoreTask) -> tuple[NDArray[Any], ...]:
        dataset = self.federation.dataset
        samples = Samples(dataset.test_x[task.first : task.last], dataset.test_y[task.first : task.last])
        states = self.models.starts[task.start : task.start + task.models]
        return tuple(part.numpy() for part in self.learner.scores(states, samples, keep=task.keep))


def _as_arrays(result: ClientResult) -> ClientResult:
    """Return a result with arrays in the place of tensors, each of which would be sent through a file of its own."""

    def arrays(of: dict[str, Any]) -> dict[str, Any]:
        return {probe: {name: value.numpy() for name, value in fields.items()} for probe, fields in of.items()}

    return replace(result, measured=arrays(result.measured), kept=arrays(result.kept))


def from_arrays(result: ClientResult) -> ClientResult:
    """Return a result of a `MeasureTask` with its tensors."""

    def tensors(of: dict[str, Any]) -> dict[str, Any]:
        return {
            probe: {name: torch.from_numpy(value) for name, value in fields.items()} for probe, fields in of.items()
        }

    return replace(result, measured=tensors(result.measured), kept=tensors(result.kept))
