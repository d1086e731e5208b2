"""Timing of rounds, and the command line and result file of a contender."""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.workloads import WORKLOADS, Workload


@dataclass
class Laps:
    """Ends of rounds on the machine's monotonic clock. The first round is warm-up, the others are measured."""

    seconds: float
    """Measured rounds take at least this long in total."""
    rounds: int = 1
    """Least number of measured rounds."""
    ends: list[float] = field(default_factory=list)
    ready: float | None = None
    """Time at which the first round began; set only if that round does more than train."""

    def lap(self) -> None:
        """Note the end of a round."""
        self.ends.append(time.monotonic())

    @property
    def enough(self) -> bool:
        """True once enough rounds are measured."""
        return len(self.ends) > self.rounds and self.ends[-1] - self.ends[0] >= self.seconds


@dataclass(frozen=True)
class Job:
    """The task of one contender process."""

    workload: Workload
    data: Path
    """Folder with the workload's data."""
    result: Path
    """File to write the result to."""
    laps: Laps
    workers: int
    """Processes that train at the same time."""
    precision: str

    def finish(self, loss: float) -> None:
        """Write the result: ends of rounds, and the trained model's loss on held-out images."""
        self.result.write_text(
            json.dumps({"ends": self.laps.ends, "ready": self.laps.ready, "loss": loss}), encoding="utf-8"
        )


def job() -> Job:
    """Read this process's job from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args()
    laps = Laps(given.seconds, given.rounds)
    return Job(WORKLOADS[given.workload], given.data, given.result, laps, given.workers, given.precision)
