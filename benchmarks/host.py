"""Measure the host's part of a round in lockstep: all but the clients' steps, which a GPU takes.

    python benchmarks/host.py --out results/host.json
    python benchmarks/host.py --before EARLIER/src --repeats 5 --out results/host.json

Federation, cohort and epochs are the workload's; the model has ten small tensors and a client 20 samples, so
that the stacked runtime on the CPU has little else to do. Time in the steps themselves is taken off, and so is what is
done once a round's steps are launched, which a GPU does not wait for: `meanwhile`. With `--before`,
the code of an earlier version takes turns with this one, each in a process of its own. Milliseconds are of the
process's CPU time, which a busy machine changes less than wall time; waiting for the disk is not in them.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.name_list import names_of
from benchmarks.workloads import WORKLOADS, Workload

ROWS = ("W2-1", "W2-10", "W1-1", "W1-10")
"""Workload, and runs in lockstep."""

WARM = 10
"""Rounds that are not counted."""

SAMPLES, BATCH = 20, 4


def settings(workload: Workload) -> dict[str, Any]:
    """Return a workload's federation with a model and data that take no time."""
    return {
        "dataset": {"name": "synthetic", "shape": (1, 2, 2), "train": workload.clients * SAMPLES, "test": 20},
        "environment": {"name": "iid", "samples": SAMPLES},
        "clients": workload.clients,
        "cohort": workload.cohort,
        "model": {"name": "mlp", "hidden": [5, 5, 5, 5]},
        "local": {"epochs": workload.epochs, "batch": BATCH, "rate": workload.rate},
        "evaluate_every": 5,
        "runtime": "stacked",
        "device": "cpu",
    }


class Apart:
    """Counts the seconds of the clients' steps, and of what is done while a GPU takes them."""

    def __init__(self) -> None:
        self.steps = 0.0
        self.meanwhile = 0.0

    def count(self) -> None:
        """Count from now on, in this process, in which rounds are written as with a GPU."""
        from covey.runtime.stacked.engine import Engine
        from covey.runtime.stacked.launcher import EagerSteps
        from covey.runtime.stacked.stacked_runtime import StackedRuntime

        advance, execute = EagerSteps.advance, Engine.execute

        def stepping(steps: EagerSteps, begin: int, end: int) -> None:
            at = time.process_time()
            advance(steps, begin, end)
            self.steps += time.process_time() - at

        def executed(engine: Engine, requests: Any, *meanwhile: Callable[[], None]) -> Any:
            return execute(engine, requests, *(partial(self._timed, work) for work in meanwhile))

        EagerSteps.advance = stepping  # type: ignore[method-assign]
        Engine.execute = executed  # type: ignore[method-assign]
        StackedRuntime.overlaps = True  # type: ignore[assignment,method-assign]

    def _timed(self, work: Callable[[], None]) -> None:
        at = time.process_time()
        work()
        self.meanwhile += time.process_time() - at


def measured(row: str, rounds: int) -> dict[str, float]:
    """Return the milliseconds of the host in a round, over all runs: in all, and by phase."""
    import covey

    torch.set_num_threads(1)
    # The loop's own clocks, by phase, count CPU time too.
    time.perf_counter = time.process_time
    workload, runs = WORKLOADS[row.split("-")[0]], int(row.split("-")[1])
    apart = Apart()
    apart.count()
    ends: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        comparison = covey.compare(
            ["fedavg"],
            seeds=runs,
            given=settings(workload),
            rounds=WARM + rounds,
            out=Path(folder) / "runs",
            on_round=lambda record: ends.append((time.process_time(), apart.steps, apart.meanwhile)),
        )
        rows = [record for run in comparison.runs["fedavg"] for record in run.metrics[WARM:]]
    # The last round writes a checkpoint of every run, and is left out.
    last, first = ends[runs * (WARM + rounds - 1) - 1], ends[runs * WARM - 1]
    counted = rounds - 1
    wall, stepping, meanwhile = (1e3 * (end - begin) / counted for end, begin in zip(last, first, strict=True))
    phases: dict[str, float] = {}
    for record in rows:
        if record["round"] < WARM + rounds:
            for phase, seconds in record["seconds"].items():
                phases[phase] = phases.get(phase, 0.0) + 1e3 * seconds / counted
    phases["clients"] -= stepping + meanwhile
    host = wall - stepping - meanwhile
    return {"host": host, **phases, "records": host - sum(phases.values()), "meanwhile": meanwhile, "steps": stepping}


def in_own_process(row: str, rounds: int, source: Path | None) -> dict[str, float]:
    """Measure a row in a process of its own, with this code or with that in the folder `source`."""
    paths = [str(source.resolve())] if source else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, __file__, "--one", row, "--rounds", str(rounds)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), type=names_of(ROWS, "row"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="folder that holds the package covey of an earlier version")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one, given.rounds)))
        return
    sources = {"before": given.before, "now": None} if given.before else {"now": None}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in given.rows:
        laps: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(given.repeats):
            for name, source in sources.items():
                laps[name].append(in_own_process(row, given.rounds, source))
        found[row] = {name: spread(all_of) for name, all_of in laps.items()}
        for name, figures in found[row].items():
            print(f"{row:6} {name:7}", *(f"{part} {value:.2f}" for part, value in figures.items()), flush=True)
    if given.out:
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
        about = {"machine": machine, "rounds": given.rounds, "repeats": given.repeats, "rows": found}
        given.out.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def spread(laps: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every part, and the least and most of the whole."""
    parts = {part: median(lap[part] for lap in laps) for part in laps[0]}
    hosts = [lap["host"] for lap in laps]
    return {**parts, "least": min(hosts), "most": max(hosts)}


if __name__ == "__main__":
    main()
