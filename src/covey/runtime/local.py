"""The local runtime: clients one by one, on all cores of one machine.

Each worker process has one torch thread and takes the next client when it is free; replies are stacked in client
order. A client's result depends on (seed, round, client) alone, so it is the same to the bit for any number of workers.
"""

import ctypes
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.arrays import IntArray
from covey.client.learner import Learner, Precision, Tally
from covey.client.local_work import ClientResult, ClientTask
from covey.client.model_scores import scores_of
from covey.config.schema import Config
from covey.core.interfaces import Runtime
from covey.core.joined_replies import joined_replies
from covey.core.messages import Fault, Order, Reply
from covey.core.replies import TRAINER, Replies, Timing, stack_replies
from covey.core.scores import Scores
from covey.core.trainer import KEPT, Packing, TrainerOrder
from covey.environment.federated_data import Federation
from covey.runtime.torch_threads import SingleThread
from covey.runtime.worker_pool import WorkerPool, workers_can_train
from covey.runtime.worker_task import (
    MeasureTask,
    ScoreTask,
    SharedModels,
    TrainTask,
    WorkerState,
    WorkerTask,
    from_arrays,
)

_TEST_CHUNK = 2_000

_ASKED_AT_ONCE = 1 << 10
"""Most clients of a survey whose answers are in memory one by one."""

_HEAP_BYTES, _HUGE_PAGE = 1 << 29, 1 << 21
"""Address space that is asked for in huge pages; it takes no memory before it is used."""

_MANY_TASKS, _TOGETHER = 256, 32
"""More measuring tasks than this are sent to workers in groups of so many."""

NO_WORKERS = (
    "This process has computed gradients on a GPU, after which its worker processes cannot compute any, so the local "
    "runtime uses one core. Start a process of its own to use all cores, or use the GPU with runtime='stacked'."
)

_single_thread = SingleThread()


class LocalRuntime(Runtime):
    """One machine's cores: worker processes with one torch thread each, or this process if one is enough."""

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
        self._state: WorkerState | None = None
        self._pool: WorkerPool | None = None
        _single_thread.hold(self)
        keep_freed_memory()

    @classmethod
    def of(cls, federation: Federation, module: nn.Module, config: Config) -> "LocalRuntime":
        """One machine's cores: worker processes with one torch thread each, one client after another."""
        return cls(federation, module, seed=config.seed, workers=config.workers, precision=config.precision)

    def available(self, t: int) -> IntArray:
        return np.arange(self.federation.clients)

    def execute(self, order: Order) -> Replies:
        if not order.train and len(order.clients) > _ASKED_AT_ONCE:
            # A survey of very many clients: only what they answer is kept of each part.
            cuts = range(0, len(order.clients), _ASKED_AT_ONCE)
            places = np.arange(len(order.clients))
            return joined_replies([self.execute(order.take(places[at : at + _ASKED_AT_ONCE])) for at in cuts])
        models = self._place_models(order)
        # The largest clients first, so that no core waits long for the last one.
        largest_first = np.argsort(-self.federation.sizes[order.clients], kind="stable")
        tasks = [_train_task(order, position) for position in largest_first.tolist()]
        together = not order.train and len(tasks) > _MANY_TASKS
        results = self._measured_together(tasks) if together else self._perform(tasks)
        in_order = sorted(zip(largest_first.tolist(), results, strict=True), key=itemgetter(0))
        return self._collected(order, [result for _, result in in_order], models)

    def _measured_together(self, tasks: Sequence[TrainTask]) -> list[ClientResult | Fault]:
        """Return results in the order of tasks that only measure, several of which are sent to a worker at once."""
        groups = [MeasureTask(tuple(tasks[at : at + _TOGETHER])) for at in range(0, len(tasks), _TOGETHER)]
        results: list[ClientResult | Fault] = []
        for group, found in zip(groups, self._perform(groups), strict=True):
            if isinstance(found, Fault):
                results += [replace(found, client=one.task.client) for one in group.tasks]
            else:
                results += [from_arrays(one) for one in found]
        return results

    def _place_models(self, order: Order) -> SharedModels:
        """Copy the order's start models, and after them its anchors, to the models that workers share."""
        size = order.start.shape[-1]
        starts = order.start.reshape(-1, size)
        anchors = starts[:0] if order.anchor is None else order.anchor.reshape(-1, size)
        trainer = order.trainer
        models = self._reserve(
            starts=len(starts) + len(anchors), ends=len(order.clients) if order.train else 0, trainer=trainer
        ).models
        models.starts[: len(starts)] = starts
        models.starts[len(starts) : len(starts) + len(anchors)] = anchors
        if trainer is not None:
            models.sent[:] = self._packing(trainer).pack(trainer.sent)
            for position, client in enumerate(order.clients.tolist()):
                if client in trainer.kept:
                    models.kept[position] = trainer.kept[client].values
        return models

    def _packing(self, trainer: TrainerOrder) -> Packing:
        return Packing(trainer.ref.part.sent, self._learner.layout)

    def _collected(self, order: Order, results: Sequence[ClientResult | Fault], models: SharedModels) -> Replies:
        """Stack the results of an order's clients, whose trained models are the rows of `models.ends`."""
        keeps = order.train and order.trainer is not None and bool(order.trainer.ref.part.kept)
        replies, faults = [], []
        seconds = dict.fromkeys((probe.name for probe in order.probes), 0.0)
        for position, (client, result) in enumerate(zip(order.clients.tolist(), results, strict=True)):
            if isinstance(result, Fault):
                faults.append(result)
                continue
            state = models.ends[position] if order.train else order.start[:0]
            kept = {**result.kept, TRAINER: {KEPT: models.kept[position].clone()}} if keeps else result.kept
            replies.append(Reply(client, state, result.samples, result.loss, result.measured, kept))
            for name, value in result.probe_seconds.items():
                seconds[name] += value
        found = stack_replies(order, replies, tuple(faults), self._learner.layout.size)
        return replace(found, timing=Timing(probe_seconds=seconds))

    def evaluate(self, states: Tensor) -> Scores:
        test_y = self.federation.dataset.test_y
        self._reserve(starts=len(states), ends=0).models.starts[: len(states)] = states
        cuts = range(0, len(test_y), _TEST_CHUNK)
        together = len(states) if self._learner.share_body(states) else 1
        firsts = range(0, len(states), together)
        keep = self.federation.test_parts is not None
        tasks = [ScoreTask(first, at, at + _TEST_CHUNK, together, keep) for first in firsts for at in cuts]
        dataset = self.federation.dataset
        counted = dataset.classes if dataset.learns.has_classes else 0
        loss = np.zeros(len(states))
        correct, predicted = np.zeros((2, len(states), counted), dtype=np.int64)
        answers: dict[int, list[Any]] = {}
        for task, result in zip(tasks, self._perform(tasks), strict=True):
            if isinstance(result, Fault):
                raise RuntimeError("A worker process died while it evaluated a model.")
            chunk_loss, chunk_correct, chunk_predicted, chunk_answers = result
            mine = slice(task.start, task.start + together)
            loss[mine] += chunk_loss
            correct[mine] += chunk_correct
            predicted[mine] += chunk_predicted
            if chunk_answers.size:
                answers.setdefault(task.start, []).append(chunk_answers)
        kept = np.concatenate([np.concatenate(answers[first], axis=1) for first in firsts]) if answers else np.zeros(0)
        return scores_of(Tally(*map(torch.from_numpy, (loss, correct, predicted, kept))), dataset)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        _single_thread.release(self)

    def _perform(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        """Return results in the order of tasks; a Fault where the worker died."""
        assert self._state is not None
        if self.workers == 1 or len(tasks) == 1:
            return [self._state.perform(task) for task in tasks]
        if self._pool is None and not workers_can_train():
            self.workers = 1
            warnings.warn(NO_WORKERS, stacklevel=2)
            return self._perform(tasks)
        if self._pool is None:
            self._pool = WorkerPool(self._state, self.workers)
        return self._pool.map(tasks)

    def _reserve(self, starts: int, ends: int, trainer: TrainerOrder | None = None) -> WorkerState:
        """Return the worker state, with room for that many models; restart the workers if it has to grow."""
        have = self._state.models if self._state else None
        # A run's trainer stays the same; models are scored before the first round too.
        sent, kept = (0, 0) if have is None else (len(have.sent), have.kept.shape[1])
        if trainer is not None:
            sent = self._packing(trainer).size
            kept = Packing(trainer.ref.part.kept, self._learner.layout).size
        fits = have is not None and (len(have.sent), have.kept.shape[1]) == (sent, kept)
        if self._state is None or have is None or len(have.starts) < starts or len(have.ends) < ends or not fits:
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            starts = max(starts, len(have.starts) if have else 0)
            ends = max(ends, len(have.ends) if have else 0)
            size, dtype = self._learner.layout.size, self._learner.dtype
            models = SharedModels.of(starts, ends, size, dtype, shared=self.workers > 1, sent=sent, kept=kept)
            self._state = WorkerState(self._learner, self.federation, self._seed, models)
        return self._state


def _train_task(order: Order, position: int) -> TrainTask:
    """Return the task of the client at `position`, with the rows of its models."""
    start = position if order.start.dim() == 2 else 0
    trainer, age = None, None
    if order.trainer is not None and order.train:
        trainer = order.trainer.ref
        kept = order.trainer.kept.get(int(order.clients[position]))
        age = None if kept is None else order.round - kept.t
    anchor = _anchor_row(order, position)
    return TrainTask(ClientTask.of(order, position), start, position, anchor, trainer, age)


def _anchor_row(order: Order, position: int) -> int | None:
    """Return the row of the anchor of the client at `position`: anchors lie after the start models."""
    if order.anchor is None:
        return None
    first = 1 if order.start.dim() == 1 else len(order.start)
    return first if order.anchor.dim() == 1 else first + position


def keep_freed_memory() -> None:
    """Make the C library (glibc) reuse large blocks instead of returning them to the system.

    Every step frees and allocates gradients of megabytes; faulting their pages in again costs as much as the
    arithmetic.
    """
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):
            return
        mmap_threshold, trim_threshold = -3, -1
        mallopt(ctypes.c_int(mmap_threshold), ctypes.c_int(1 << 30))
        mallopt(ctypes.c_int(trim_threshold), ctypes.c_int((1 << 31) - 1))
        _use_huge_pages()


@cache
def _use_huge_pages() -> None:
    """Ask for pages of 2 MB where the C library will allocate next, which costs the processor fewer look-ups."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    begin = library.malloc(ctypes.c_size_t(_HEAP_BYTES))
    if begin:
        first = -(-begin // _HUGE_PAGE) * _HUGE_PAGE
        use_huge_pages = 14
        length = ctypes.c_size_t(begin + _HEAP_BYTES - first - _HUGE_PAGE)
        library.madvise(ctypes.c_void_p(first), length, ctypes.c_int(use_huge_pages))
        library.free(ctypes.c_void_p(begin))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
