"""The local runtime: one client after another, on every core.

Each worker process has one torch thread; clients are handed out as workers become free, and replies
are stacked in client order. What a client computes depends on (seed, round, client) alone, so the
number of workers never changes a bit of the result.
"""

import ctypes
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.arrays import IntArray
from covey.client.learner import Learner, Precision
from covey.config.schema import Config
from covey.core.interfaces import Runtime
from covey.core.messages import Fault, Order, Reply
from covey.core.replies import Replies, Timing, gathered
from covey.core.scores import Scores
from covey.environment.federated_data import Federation
from covey.runtime.torch_threads import OneThread
from covey.runtime.worker_pool import Pool, workers_can_learn
from covey.runtime.worker_task import Arena, Bench, FitTask, ScoreTask, Task

_TEST_CHUNK = 2_000

NO_WORKERS = (
    "This process has computed gradients on a GPU, after which worker processes cannot compute any; the local runtime "
    "goes on with one core. A process of its own has all of them, and runtime='stacked' uses the GPU."
)

_one_thread = OneThread()


class LocalRuntime(Runtime):
    """One machine's cores: worker processes with one torch thread each, or this process where one is enough."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        seed: int = 0,
        workers: int = 0,
        precision: Precision = "fp32",
    ) -> None:
        self.federation = federation
        self.workers = workers or usable_cores()
        self._learner = Learner(module, federation.dataset, precision)
        self._seed = seed
        self._bench: Bench | None = None
        self._pool: Pool | None = None
        _one_thread.hold(self)
        keep_freed_memory()

    @classmethod
    def of(cls, federation: Federation, module: nn.Module, config: Config) -> "LocalRuntime":
        """One machine's cores: worker processes with one torch thread each, one client after another."""
        return cls(federation, module, seed=config.seed, workers=config.workers, precision=config.precision)

    def available(self, t: int) -> IntArray:
        return np.arange(self.federation.clients)

    def execute(self, order: Order) -> Replies:
        size = order.start.shape[-1]
        starts = order.start.reshape(-1, size)
        anchors = starts[:0] if order.anchor is None else order.anchor.reshape(-1, size)
        bench = self._reserve(starts=len(starts) + len(anchors), ends=len(order.clients) if order.train else 0)
        bench.arena.starts[: len(starts)] = starts
        bench.arena.starts[len(starts) : len(starts) + len(anchors)] = anchors
        tasks = [
            FitTask(
                int(client),
                position if order.start.dim() == 2 else 0,
                position,
                order.round,
                order.work,
                tuple(probe.for_client(int(client)) for probe in order.probes),
                order.train,
                len(starts) + (position if len(anchors) > 1 else 0) if len(anchors) else None,
                order.holdout,
            )
            for position, client in enumerate(order.clients)
        ]
        # The largest clients first, so that no core waits long for the last one.
        largest_first = np.argsort(-self.federation.sizes[order.clients], kind="stable")
        results = self._perform([tasks[position] for position in largest_first])
        replies, faults = [], []
        seconds = dict.fromkeys((probe.name for probe in order.probes), 0.0)
        for task, result in sorted(
            zip((tasks[position] for position in largest_first), results, strict=True), key=lambda pair: pair[0].client
        ):
            if isinstance(result, Fault):
                faults.append(result)
            else:
                samples, loss, probes, kept, taken = result
                state = bench.arena.ends[task.end] if order.train else starts[:0]
                replies.append(Reply(task.client, state, samples, loss, probes, kept))
                for name, value in taken.items():
                    seconds[name] += value
        found = gathered(order, replies, tuple(faults), self._learner.layout.size)
        return replace(found, timing=Timing(probe_seconds=seconds))

    def evaluate(self, states: Tensor) -> Scores:
        test_y = self.federation.dataset.test_y
        bench = self._reserve(starts=len(states), ends=0)
        bench.arena.starts[: len(states)] = states
        cuts = range(0, len(test_y), _TEST_CHUNK)
        together = len(states) if self._learner.differ_in_their_head_alone(states) else 1
        models = range(0, len(states), together)
        tasks = [ScoreTask(first, at, at + _TEST_CHUNK, together) for first in models for at in cuts]
        classes = self.federation.dataset.classes
        loss = np.zeros(len(states))
        correct = np.zeros((len(states), classes), dtype=np.int64)
        for task, result in zip(tasks, self._perform(tasks), strict=True):
            if isinstance(result, Fault):
                raise RuntimeError("A worker process died while it evaluated a model.")
            chunk_loss, chunk_correct = result
            loss[task.start : task.start + together] += chunk_loss
            correct[task.start : task.start + together] += chunk_correct
        totals = torch.bincount(test_y, minlength=classes).numpy()
        return Scores(loss / len(test_y), correct, totals)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        _one_thread.release(self)

    def _perform(self, tasks: Sequence[Task]) -> list[Any]:
        """Results in the order of tasks; a Fault where the worker died."""
        assert self._bench is not None
        if self.workers == 1 or len(tasks) == 1:
            return [self._bench.perform(task) for task in tasks]
        if self._pool is None and not workers_can_learn():
            self.workers = 1
            warnings.warn(NO_WORKERS, stacklevel=2)
            return self._perform(tasks)
        if self._pool is None:
            self._pool = Pool(self._bench, self.workers)
        return self._pool.map(tasks)

    def _reserve(self, starts: int, ends: int) -> Bench:
        """A bench whose arena has room for that many models; growing it means new workers."""
        have = self._bench.arena if self._bench else None
        if self._bench is None or have is None or len(have.starts) < starts or len(have.ends) < ends:
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            starts = max(starts, len(have.starts) if have else 0)
            ends = max(ends, len(have.ends) if have else 0)
            arena = Arena.of(starts, ends, self._learner.layout.size, self._learner.dtype, shared=self.workers > 1)
            self._bench = Bench(self._learner, self.federation, self._seed, arena)
        return self._bench


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks instead of giving them back to the system at once (glibc).

    Every step frees gradients of megabytes and asks for them again, and faulting the pages in anew costs as much
    as the arithmetic that fills them.
    """
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):
            return
        mmap_threshold, trim_threshold = -3, -1
        mallopt(ctypes.c_int(mmap_threshold), ctypes.c_int(1 << 30))
        mallopt(ctypes.c_int(trim_threshold), ctypes.c_int((1 << 31) - 1))


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
