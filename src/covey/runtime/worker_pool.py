"""Worker processes that perform tasks on state shared with the parent process."""

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
from covey.errors import Refusal
from covey.runtime.worker_task import TrainTask, WorkerState, WorkerTask


class WorkerError(RuntimeError):
    """A task raised in a worker; the message holds the worker's traceback."""


class WorkerPool:
    """At most `count` processes, as many as there are tasks; each takes the next task when it is free."""

    def __init__(self, state: WorkerState, count: int) -> None:
        self._state = state
        self._context = _context()
        self._count = count
        self._workers: list[tuple[BaseProcess, Connection]] = []

    def map(self, tasks: Sequence[WorkerTask]) -> list[Any]:
        """Return results in the order of tasks. If a worker dies, its task is a Fault and the worker is replaced."""
        results: list[Any] = [None] * len(tasks)
        waiting = list(range(len(tasks)))[::-1]
        busy: dict[Connection, tuple[int, int]] = {}

        def assign(worker: int) -> None:
            if waiting:
                number = waiting.pop()
                try:
                    self._workers[worker][1].send(tasks[number])
                except OSError:
                    # It died while idle, so no task is lost.
                    self._replace(worker)
                    self._workers[worker][1].send(tasks[number])
                busy[self._workers[worker][1]] = (worker, number)

        while len(self._workers) < min(self._count, len(tasks)):
            self._workers.append(self._start_worker())
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
                    client = task.task.client if isinstance(task, TrainTask) else -1
                    results[number] = Fault(client, f"its worker process died (exit code {self._replace(worker)})")
                if failed:
                    self.close()
                    if isinstance(results[number], Refusal):
                        raise results[number]
                    raise WorkerError(f"A worker process failed:\n{results[number]}")
                assign(worker)
        return results

    def close(self) -> None:
        """End all workers."""
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def _start_worker(self) -> tuple[BaseProcess, Connection]:
        here, there = self._context.Pipe()
        process = _start(self._context.Process(target=_serve, args=(there, self._state, os.getpid()), daemon=True))
        there.close()
        return process, here

    def _replace(self, worker: int) -> int | None:
        """Replace a worker that has died; return its exit code."""
        process, connection = self._workers[worker]
        connection.close()
        process.join()
        self._workers[worker] = self._start_worker()
        return process.exitcode


def workers_can_train() -> bool:
    """True if worker processes can train: PyTorch refuses autograd in a fork of a process that has used it on a GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    trial = _start(_context().Process(target=_one_gradient, daemon=True))
    trial.join()
    return trial.exitcode == 0


def _context() -> Any:
    """Fork on Linux: it shares the data set without a copy and starts in milliseconds. It is not safe elsewhere."""
    return torch.multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def _start(process: BaseProcess) -> BaseProcess:
    with warnings.catch_warnings():
        # Python warns about fork in a process with threads; workers use nothing that another thread could have locked.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def _one_gradient() -> None:
    """Exit with 1 and no traceback if autograd does not work."""
    try:
        one = torch.ones(1, requires_grad=True)
        torch.autograd.grad(one.sum(), one)
    except RuntimeError:
        os._exit(1)


def _serve(connection: Connection, state: WorkerState, parent: int) -> None:
    """Perform tasks until the parent closes the connection or exits."""
    # Ctrl-C goes to the whole process group; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            # After a fork, siblings hold copies of the parent's end of the pipe, so it stays open when the parent dies.
            while not connection.poll(1.0):
                if os.getppid() != parent:
                    return
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            message = (False, state.perform(task))
        except Refusal as refusal:
            message = (True, refusal)
        except Exception:
            message = (True, traceback.format_exc())
        try:
            connection.send(message)
        except OSError:
            return
