"""Tasks of worker processes, and the state that they are performed on: learner, samples and shared models."""

import math
import mmap
import sys
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.client.learner import Learner
from covey.client.local_work import ClientResult, ClientTask, perform_task
from covey.data.dataset import Samples
from covey.environment.federated_data import Federation


@dataclass(frozen=True)
class TrainTask:
    """Perform a client's task from `starts[start]`; the trained model goes to `ends[end]`."""

    task: ClientTask
    start: int
    end: int
    anchor: int | None = None
    """The row of `starts` that the proximal term pulls to, if not to the start."""


@dataclass(frozen=True)
class ScoreTask:
    """Score models `starts[start : start + models]`, which differ in their head alone, on test samples from `first` to
    `last`."""

    start: int
    first: int
    last: int
    models: int = 1


WorkerTask = TrainTask | ScoreTask


@dataclass(frozen=True, eq=False)
class SharedModels:
    """Models that tasks read and write, in memory that worker processes share."""

    starts: Tensor
    """`[m, d]`: models to train or score."""
    ends: Tensor
    """`[k, d]`: trained models."""

    @classmethod
    def of(cls, starts: int, ends: int, size: int, dtype: torch.dtype, *, shared: bool) -> "SharedModels":
        """Allocate models of `size` numbers; `shared` if workers are other processes."""
        make = _shared_tensor if shared else torch.zeros
        return cls(make((starts, size), dtype=dtype), make((ends, size), dtype=dtype))


class WorkerState:
    """Performs tasks; the same object in this process and, by fork, in every worker."""

    def __init__(self, learner: Learner, federation: Federation, seed: int, models: SharedModels) -> None:
        self.learner = learner
        self.federation = federation
        self.seed = seed
        self.models = models

    def perform(self, task: WorkerTask) -> Any:
        """Return a client's result (its model goes to the shared models), or summed losses and correct answers."""
        return self._train(task) if isinstance(task, TrainTask) else self._score(task)

    def _train(self, task: TrainTask) -> ClientResult:
        samples = self.federation.samples(task.task.client)
        received = self.models.starts[task.start]
        anchor = None if task.anchor is None else self.models.starts[task.anchor]
        trained, result = perform_task(task.task, self.learner, samples, received, self.seed, anchor=anchor)
        if task.task.train:
            self.models.ends[task.end] = trained
        return result

    def _score(self, task: ScoreTask) -> tuple[NDArray[Any], NDArray[Any]]:
        dataset = self.federation.dataset
        samples = Samples(dataset.test_x[task.first : task.last], dataset.test_y[task.first : task.last])
        losses, correct = self.learner.scores(self.models.starts[task.start : task.start + task.models], samples)
        return losses.numpy(), correct.numpy()


def _shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in memory that child processes share."""
    count = math.prod(shape)
    if sys.platform == "linux" and count:
        # Anonymous shared memory survives a fork and is not limited by /dev/shm, which is small in containers.
        memory = mmap.mmap(-1, count * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype, count=count).reshape(shape)
    zeros = torch.zeros(shape, dtype=dtype)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros
