"""Where the time of whole rounds goes on a GPU, by kernel: training, filling lanes, aggregation, evaluation.

    python benchmarks/gpu_profile.py --workload W1 --runs 1 --out OUT/W1-1.json

Rounds are those of `benchmarks/gpu.py`'s rows, `covey compare` with records and evaluation every five rounds. The first
ones compile and are left out; five rounds are traced, so one of them evaluates. `busy` is the share of the wall time in
which the GPU computes or copies; tracing itself makes rounds somewhat longer, and their time without it is printed too.
With `--host`, five more rounds tell which functions of the host take most, without and with what they call.
"""

import argparse
import cProfile
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))

import covey
from benchmarks.gpu_settings import covey_settings
from benchmarks.workloads import WORKLOADS

_FIRST = 12
"""Rounds before those that are traced."""

_TRACED = 5


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Tracer:
    """Listens to the rounds of all runs, and traces some of them."""

    def __init__(self, runs: int, kind: ProfilerActivity) -> None:
        self.runs = runs
        self.calls = 0
        self.profiler = profile(activities=[kind])
        self.ends: list[float] = []
        self.traced = 0.0
        self.host = cProfile.Profile()

    def on_round(self, record: dict[str, Any]) -> None:
        self.calls += 1
        if self.calls % self.runs:
            return
        number = self.calls // self.runs
        if number == _FIRST:
            settle()
            self.profiler.start()
        if number == _FIRST + _TRACED:
            settle()
            self.traced = time.perf_counter() - self.ends[-_TRACED]
            self.profiler.stop()
            self.host.enable()
        if number == _FIRST + 2 * _TRACED:
            self.host.disable()
        self.ends.append(time.perf_counter())


def traced(name: str, runs: int, precision: str, device: str) -> dict[str, Any]:
    workload, on_gpu = WORKLOADS[name], device == "cuda"
    kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    tracer = Tracer(runs, kind)
    with tempfile.TemporaryDirectory() as folder:
        covey.compare(
            ["fedavg"],
            seeds=runs,
            given=covey_settings(workload, precision, device, test=10_000 if on_gpu else 500),
            rounds=_FIRST + 2 * _TRACED,
            out=Path(folder) / "runs",
            on_round=tracer.on_round,
        )
    rows = []
    for one in tracer.profiler.key_averages():
        micro = one.self_device_time_total if on_gpu else one.self_cpu_time_total
        if micro > 0:
            rows.append({"kernel": one.key, "ms": micro / 1e3 / _TRACED, "calls": one.count / _TRACED})
    rows.sort(key=lambda row: -float(row["ms"]))
    plain = tracer.ends[:_FIRST]
    return {
        "workload": name,
        "runs": runs,
        "precision": precision,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "round_ms": 1e3 * (plain[-1] - plain[-6]) / 5,
        "traced_round_ms": 1e3 * tracer.traced / _TRACED,
        "busy": sum(float(row["ms"]) for row in rows) / (1e3 * tracer.traced / _TRACED),
        "kernels": rows,
        "host": host_rows(tracer.host),
    }


def host_rows(profiler: cProfile.Profile) -> list[dict[str, Any]]:
    """Return functions with their milliseconds in a round, alone and with what they call; the dearest first."""
    rows: list[dict[str, Any]] = []
    for one in profiler.getstats():
        code = one.code
        place = code if isinstance(code, str) else "/".join(Path(code.co_filename).parts[-2:])
        name = place if isinstance(code, str) else f"{code.co_qualname} ({place}:{code.co_firstlineno})"
        times = {"alone_ms": 1e3 * one.inlinetime / _TRACED, "ms": 1e3 * one.totaltime / _TRACED}
        rows.append({"function": name, "calls": one.callcount / _TRACED, **times})
    return sorted(rows, key=lambda row: -float(row["alone_ms"]))[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W1", choices=list(WORKLOADS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--most", type=int, default=25, help="kernels to print")
    parser.add_argument("--host", action="store_true", help="print functions of the host too")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = traced(given.workload, given.runs, given.precision, given.device)
    print(
        f"{found['workload']}, {found['runs']} runs, {found['device']}: a round {found['round_ms']:.1f} ms, traced "
        f"{found['traced_round_ms']:.1f} ms, busy {found['busy']:.0%}"
    )
    for row in found["kernels"][: given.most]:
        print(f"  {row['ms']:9.3f} ms in {row['calls']:7.1f} calls: {row['kernel'][:110]}")
    if given.host:
        for row in found["host"][: given.most]:
            about = f"{row['alone_ms']:8.3f} ms alone, {row['ms']:8.3f} in all"
            print(f"  {about}, {row['calls']:7.1f} calls: {row['function']}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
