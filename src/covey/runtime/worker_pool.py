"""Worker processes that perform tasks on a bench they share with the parent."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing

from covey.core.messages import Fault
from covey.runtime.worker_task import Bench, FitTask, Task


class WorkerError(RuntimeError):
    """A task raised in a worker; the message holds the worker's traceback."""


class Pool:
    """`count` processes; tasks are handed out one by one as workers become free."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self._context = _context()
        self._workers: list[tuple[BaseProcess, Connection]] = [self._hire() for _ in range(count)]

    def map(self, tasks: Sequence[Task]) -> list[Any]:
        """Results in the order of tasks. A worker that dies costs its task (a Fault) and is replaced."""
        results: list[Any] = [None] * len(tasks)
        waiting = list(range(len(tasks)))[::-1]
        busy: dict[Connection, tuple[int, int]] = {}

        def assign(worker: int) -> None:
            if waiting:
                number = waiting.pop()
                try:
                    self._workers[worker][1].send(tasks[number])
                except OSError:
                    # It died while it had nothing to do, and costs nobody anything.
                    self._replace(worker)
                    self._workers[worker][1].send(tasks[number])
                busy[self._workers[worker][1]] = (worker, number)

        for worker in range(len(self._workers)):
            assign(worker)
        while busy:
            for ready in multiprocessing.connection.wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, number = busy.pop(ready)
                try:
                    failed, results[number] = ready.recv()
                except (EOFError, ConnectionResetError):
                    failed, task = False, tasks[number]
                    client = task.client if isinstance(task, FitTask) else -1
                    results[number] = Fault(client, f"its worker process died (exit code {self._replace(worker)})")
                if failed:
                    self.close()
                    raise WorkerError(f"A worker process failed:\n{results[number]}")
                assign(worker)
        return results

    def close(self) -> None:
        """End all workers; none is left behind."""
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def _hire(self) -> tuple[BaseProcess, Connection]:
        here, there = self._context.Pipe()
        process = _start(self._context.Process(target=_work, args=(there, self._bench, os.getpid()), daemon=True))
        there.close()
        return process, here

    def _replace(self, worker: int) -> int | None:
        """Hire another in the place of a worker that has died; the exit code of that one."""
        process, connection = self._workers[worker]
        connection.close()
        process.join()
        self._workers[worker] = self._hire()
        return process.exitcode


def workers_can_learn() -> bool:
    """Whether worker processes of this one could train: after autograd on a GPU, PyTorch refuses it to forked ones."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    trial = _start(_context().Process(target=_one_gradient, daemon=True))
    trial.join()
    return trial.exitcode == 0


def _context() -> Any:
    """Fork shares the data set without copying it and starts in milliseconds; elsewhere it is not safe."""
    return torch.multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def _start(process: BaseProcess) -> BaseProcess:
    with warnings.catch_warnings():
        # Python warns of fork beside threads; a worker touches nothing that another thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _one_gradient() -> None:
    """Exit with 1, and without a traceback, where autograd does not work."""
    try:
        one = torch.ones(1, requires_grad=True)
        torch.autograd.grad(one.sum(), one)
    except RuntimeError:
        os._exit(1)


def _work(connection: Connection, bench: Bench, parent: int) -> None:
    """A worker's life: perform tasks until the parent closes the connection or is gone."""
    # Ctrl-C goes to the whole process group; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            # Siblings hold copies of the parent's end after a fork, so its death shows only in the parent's id.
            while not connection.poll(1.0):
                if os.getppid() != parent:
                    return
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            message = (False, bench.perform(task))
        except Exception:
            message = (True, traceback.format_exc())
        try:
            connection.send(message)
        except OSError:
            return
