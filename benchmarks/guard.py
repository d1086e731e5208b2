"""Measure the guard's share of a round: W1, 50 clients of 1.6 million parameters, FedAvg.

python benchmarks/guard.py                    # the stacked runtime on a GPU if there is one, otherwise `local`
python benchmarks/guard.py --rounds 8 --out results/guard.json
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import covey
from benchmarks.workloads import WORKLOADS, dataset_options
from covey.core.guard import Guard
from covey.core.replies import Replies

_WARM_UP = 3
"""First rounds, which are not measured."""


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(rounds: int, name: str = "W1") -> dict[str, Any]:
    """Run a workload with a clock around the guard; return the medians of a round and of the guard's part of it."""
    workload, on_gpu = WORKLOADS[name], torch.cuda.is_available()
    guard: list[float] = []
    ends: list[float] = []
    unwatched = Guard.screened

    def watched(self: Guard, t: int, start: Tensor | None, replies: Replies, places: Tensor | None = None) -> Replies:
        begin = _now()
        screened = unwatched(self, t, start, replies, places)
        guard.append(_now() - begin)
        return screened

    Guard.screened = watched  # type: ignore[method-assign]
    load = os.getloadavg()[0]
    folder = tempfile.TemporaryDirectory()
    try:
        covey.run(
            method="fedavg",
            dataset=dataset_options(workload, 500),
            environment={"name": "iid", "samples": workload.samples},
            clients=workload.clients,
            cohort=workload.cohort,
            model=workload.model,
            local={"epochs": workload.epochs, "batch": workload.batch, "rate": workload.rate},
            runtime="stacked" if on_gpu else "local",
            precision="bf16" if on_gpu else "fp32",
            rounds=rounds,
            evaluate_every=rounds,
            on_round=lambda record: ends.append(_now()),
            out=Path(folder.name) / "run",
        )
    finally:
        folder.cleanup()
        Guard.screened = unwatched  # type: ignore[method-assign]
    # The last round also evaluates.
    whole = [later - earlier for earlier, later in zip(ends[_WARM_UP:-2], ends[_WARM_UP + 1 : -1], strict=True)]
    round_seconds, guard_seconds = statistics.median(whole), statistics.median(guard[_WARM_UP + 1 : -1])
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "cpu",
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": [load, os.getloadavg()[0]],
        "workload": name,
        "clients": workload.cohort,
        "parameters": workload.parameters,
        "rounds": len(whole),
        "round_seconds": round_seconds,
        "guard_seconds": guard_seconds,
        "share": guard_seconds / round_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workload", default="W1", choices=list(WORKLOADS))
    parser.add_argument("--out", type=Path, help="file of results; that of the same kind of machine is replaced")
    given = parser.parse_args()
    found = measured(given.rounds, given.workload)
    whole, part = (found[name] * 1e3 for name in ("round_seconds", "guard_seconds"))
    print(f"{found['device']}: a round {whole:.1f} ms, the guard {part:.2f} ms, {found['share']:.1%}")
    if given.out:
        rows = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else []
        rows = [row for row in rows if row["device"] != found["device"]]
        given.out.write_text(json.dumps([*rows, found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
