"""A client's budget of differential privacy: what its noisy answers have told so far, kept in a file over restarts."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey.errors import Refusal, require
from covey.probe.class_query import Privacy, composed_epsilon
from covey.storage import open_unlinked, read_json

_ROUNDING = 1e-9
"""Relative excess that is due to rounding."""

_UNWRITABLE = "This client cannot write down what it tells, and tells nothing."


@dataclass(frozen=True)
class Ledger:
    """The file that counts a client's noisy answers, and the (ε, δ) that all of them together must not exceed.

    Answers are Gaussian, so their Σ 1/σ² says everything about their composition; the file holds this sum. Only the
    file counts: answers of all runs and servers are added up, and a file that is lost forgets them.
    """

    path: Path
    budget: Privacy

    def charge(self, cost: float) -> None:
        """Add an answer of 1/σ² = `cost` to the file, or refuse it; called before the answer is computed."""
        limit = self.budget.deviation**-2
        with self._locked():
            spent, answers = self._read()
            require(
                spent + cost <= limit * (1 + _ROUNDING),
                f"This client's privacy budget (ε = {self.budget.epsilon:g} at δ = {self.budget.delta:g}) does not "
                "allow this answer: it has told as much as its operator permits.",
            )
            try:
                self._write(spent + cost, answers + 1)
            except OSError as error:
                raise Refusal(_UNWRITABLE) from error

    @property
    def epsilon(self) -> float:
        """ε of all answers so far, at the budget's δ."""
        return composed_epsilon(self._read()[0], self.budget.delta)

    def _read(self) -> tuple[float, int]:
        try:
            found = read_json(self.path.read_text(encoding="utf-8"))
            spent, answers = float(found["spent"]), int(found["answers"])
            require(0 <= spent < float("inf") and answers >= 0, "It holds impossible numbers.")
        except FileNotFoundError:
            return 0.0, 0
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            # The reason stays in the client's log.
            raise Refusal("This client cannot read what it has told so far, and tells no more.") from error
        return spent, answers

    def _write(self, spent: float, answers: int) -> None:
        epsilon, delta = composed_epsilon(spent, self.budget.delta), self.budget.delta
        text = json.dumps({"spent": spent, "answers": answers, "epsilon": epsilon, "delta": delta}, indent=2)
        beside = self.path.with_name(f"{self.path.name}.part")
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file's lock: a client may answer two orders at a time."""
        try:
            import fcntl
        except ImportError:
            raise Refusal("A privacy budget needs file locks, which this system lacks; use Linux or macOS.") from None
        try:
            handle = open_unlinked(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise Refusal(_UNWRITABLE) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
