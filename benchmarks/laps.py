"""When rounds ended, and how a contender is called and answers."""

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
    """Measured rounds shall take at least this long together."""
    rounds: int = 1
    """Measured rounds there shall be at least."""
    ends: list[float] = field(default_factory=list)
    ready: float | None = None
    """When the first round began; only from those whose first round does more than train."""

    def lap(self) -> None:
        self.ends.append(time.monotonic())

    @property
    def enough(self) -> bool:
        return len(self.ends) > self.rounds and self.ends[-1] - self.ends[0] >= self.seconds


@dataclass(frozen=True)
class Job:
    """What a contender is asked to do."""

    workload: Workload
    data: Path
    """Folder with the workload's data."""
    result: Path
    """File to write the answer to."""
    laps: Laps
    workers: int
    """Processes that train at the same time."""
    precision: str

    def finish(self, loss: float) -> None:
        """Answer: when rounds ended, and the trained model's loss on held-out images."""
        self.result.write_text(
            json.dumps({"ends": self.laps.ends, "ready": self.laps.ready, "loss": loss}), encoding="utf-8"
        )


def job() -> Job:
    """The job that this process was started for."""
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
