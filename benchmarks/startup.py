"""Where the time goes before the first round of `covey compare`, in a process of its own.

    python benchmarks/startup.py --workload W2 --times 3 --out OUT/startup-W2.json

Each time is a new process, the first with empty caches (in a folder that is removed), the others with what it left. A
stage's seconds are without those of the stages in it; `rest` is everything else up to the first record. On a machine
without a GPU steps are not compiled, which leaves the stages that both have.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

STAGES = {
    "data": ("covey.core.build", "load_dataset"),
    "samples to the device": ("covey.runtime.stacked.engine", "DeviceDataset"),
    "check of fused layers": ("covey.runtime.stacked.graph_capture", "layers_agree"),
    "layers timed": ("covey.runtime.stacked.graph_capture", "fused_layers_win"),
    "kept step read": ("covey.runtime.stacked.kept_step", "read_step"),
    "kept step written": ("covey.runtime.stacked.kept_step", "write_step"),
    "compiling and first steps": ("covey.runtime.stacked.graph_capture", "warm_up"),
    "recording": ("covey.runtime.stacked.graph_capture", "record_graph"),
    "check of lanes": ("covey.runtime.stacked.graph_capture", "check_lanes"),
    "steps timed": ("covey.runtime.stacked.autotune", "replay_seconds"),
    "evaluation": ("covey.runtime.stacked.stacked_runtime", "score_stack"),
}
"""Stage → the module and name of the function that it is the time of."""

CACHES = {"XDG_CACHE_HOME": "covey", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


class Stages:
    """The seconds of each stage, without those of stages in it."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.seconds: dict[str, float] = {}
        self._within = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        before, self._within = self._within, 0.0
        begin = time.time()
        try:
            yield
        finally:
            taken = time.time() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + taken - self._within
            self._within = before + taken

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts to a stage."""

        def run(*given: Any, **named: Any) -> Any:
            with self.stage(name):
                return work(*given, **named)

        return run

    def until_now(self) -> dict[str, float]:
        """Return the stages and the rest since the process began."""
        total = time.time() - self.begin
        return {**self.seconds, "rest": total - sum(self.seconds.values()), "total": total}


def one_process(workload: str, runs: int, precision: str, device: str, begin: float) -> None:
    """Print the stages of this process as JSON."""
    stages = Stages(begin)
    sys.path.insert(0, str(ROOT))
    covey = import_module("covey")
    settings, workloads = import_module("benchmarks.gpu_settings"), import_module("benchmarks.workloads")
    for name, (module, function) in STAGES.items():
        place = import_module(module)
        setattr(place, function, stages.timed(name, getattr(place, function)))
    stages.seconds["interpreter and imports"] = time.time() - begin
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        covey.compare(
            ["fedavg"],
            seeds=runs,
            given=settings.covey_settings(workloads.WORKLOADS[workload], precision, device),
            rounds=1,
            out=Path(folder) / "runs",
            on_round=lambda record: found.append(stages.until_now()),
        )
    print(json.dumps(found[0]))


def measure(workload: str, runs: int, precision: str, device: str, times: int) -> list[dict[str, float]]:
    """Return the stages of processes one after another, which share caches that are empty at first."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / part) for name, part in CACHES.items()}
        for _ in range(times):
            given = [workload, str(runs), precision, device, repr(time.time())]
            answer = subprocess.run(
                [sys.executable, __file__, "--process", *given],
                env={**os.environ, **caches},
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            rows.append(json.loads(answer.stdout.splitlines()[-1]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="W2")
    parser.add_argument("--runs", type=int, default=1, help="Seeds in lockstep.")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path, help="File for the rows, as JSON.")
    args = parser.parse_args()
    rows = measure(args.workload, args.runs, args.precision, args.device, args.times)
    for name in sorted({name for row in rows for name in row}, key=lambda one: -rows[0].get(one, 0.0)):
        print(f"{name:28}", *(f"{row.get(name, 0.0):8.2f}" for row in rows))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        workload, runs, precision, device, begin = sys.argv[2:]
        one_process(workload, int(runs), precision, device, float(begin))
    else:
        main()
