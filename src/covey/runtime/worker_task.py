"""A work bench: a learner, the federation's samples, and an arena of models that worker processes share."""

import math
import mmap
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covey.client.learner import Learner, training_part
from covey.config.sections import Local
from covey.core.interfaces import Probe
from covey.data.dataset import Samples
from covey.environment.federated_data import Federation
from covey.randomness import key


@dataclass(frozen=True)
class FitTask:
    """Train one client from `starts[start]` into `ends[end]`, then measure."""

    client: int
    start: int
    end: int
    round: int
    work: Local
    probes: tuple[Probe, ...]
    """As this client gets them."""
    train: bool = True
    anchor: int | None = None
    """Where in `starts` the model is that the proximal term pulls to, if not to the start."""
    holdout: int = 0


@dataclass(frozen=True)
class ScoreTask:
    """Score `models` models from `starts[start]` on, which differ in their head alone, on test samples `first` to
    `last`."""

    start: int
    first: int
    last: int
    models: int = 1


Task = FitTask | ScoreTask
Measured = dict[str, dict[str, Tensor]]
"""Probe → field → value."""


@dataclass(frozen=True, eq=False)
class Arena:
    """Models going in and coming out, in memory that workers see too."""

    starts: Tensor
    ends: Tensor

    @classmethod
    def of(cls, starts: int, ends: int, size: int, dtype: torch.dtype, *, shared: bool) -> "Arena":
        make = _shared_tensor if shared else torch.zeros
        return cls(make((starts, size), dtype=dtype), make((ends, size), dtype=dtype))


class Bench:
    """Performs tasks; the same object in this process and, by fork, in every worker."""

    def __init__(self, learner: Learner, federation: Federation, seed: int, arena: Arena) -> None:
        self.learner = learner
        self.federation = federation
        self.seed = seed
        self.arena = arena

    def perform(self, task: Task) -> Any:
        return self._fit(task) if isinstance(task, FitTask) else self._score(task)

    def _fit(self, task: FitTask) -> tuple[int, float, Measured, Measured, dict[str, float]]:
        """The client's number of samples, training loss, measurements, what it keeps, and what those took in seconds.

        Its model goes into the arena.
        """
        samples = self.federation.samples(task.client)
        place = key(self.seed, task.round, task.client)
        received = self.arena.starts[task.start]
        trained, loss = received, 0.0
        if task.train:
            anchor = None if task.anchor is None else self.arena.starts[task.anchor]
            to_train_on = training_part(samples, task.holdout)
            trained, loss = self.learner.fit(received, to_train_on, task.work, task.round, place, anchor)
            self.arena.ends[task.end] = trained
        measured: Measured = {}
        kept: Measured = {}
        seconds = {}
        for probe in task.probes:
            begin = time.perf_counter()
            fields = probe.measure(self.learner, received, trained, samples, key(place, probe.name))
            measured[probe.name] = {name: value.clone() for name, value in fields.items() if name not in probe.kept}
            kept[probe.name] = {name: fields[name].clone() for name in probe.kept}
            seconds[probe.name] = time.perf_counter() - begin
        return len(samples), loss, measured, kept, seconds

    def _score(self, task: ScoreTask) -> tuple[Any, Any]:
        dataset = self.federation.dataset
        samples = Samples(dataset.test_x[task.first : task.last], dataset.test_y[task.first : task.last])
        losses, correct = self.learner.scores(self.arena.starts[task.start : task.start + task.models], samples)
        return losses.numpy(), correct.numpy()


def _shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in memory that child processes share."""
    count = math.prod(shape)
    if sys.platform == "linux" and count:
        # Anonymous shared memory outlives fork and is not bound by the size of /dev/shm, which containers keep small.
        memory = mmap.mmap(-1, count * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype, count=count).reshape(shape)
    zeros = torch.zeros(shape, dtype=dtype)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros
