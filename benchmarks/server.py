"""What the server's own part costs: selection among very many clients.

    python benchmarks/server.py --out results/server.json

Every figure is the median and the worst of several repeats, and the memory that was taken on top of the state.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from covey.config import Local
from covey.layout import Layout
from covey.roles import Setting
from covey.selection import FedACS

MILLION = 1_000_000


def setting(clients: int, cohort: int) -> Setting:
    return Setting(clients, cohort, 1_000, 10, 0, Layout((), (), ()), Local())


def fedacs() -> Callable[[int], object]:
    """Ten of a million clients that all have a history."""
    selector = FedACS()
    selector.begin(setting(MILLION, 10))
    rng = np.random.default_rng(0)
    selector.wins[:] = rng.integers(1, 40, MILLION) * 0.2
    selector.losses[:] = rng.integers(1, 40, MILLION) * 0.2
    everyone = np.arange(MILLION)
    return lambda round: selector.select(round, everyone)


CASES: dict[str, tuple[str, Callable[[], Callable[[int], object]]]] = {
    "fedacs-1m": ("FedACS selects 10 of 1,000,000 clients that all have a history", fedacs),
}


def measured(make: Callable[[], Callable[[int], object]], repeats: int) -> dict[str, float]:
    """Seconds of a call, and the highest memory that it took beyond what was there."""
    call = make()
    call(1)
    taken = []
    for round in range(2, repeats + 2):
        begin = time.perf_counter()
        call(round)
        taken.append(time.perf_counter() - begin)
    tracemalloc.start()
    call(repeats + 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "best_seconds": min(taken),
        "median_seconds": statistics.median(taken),
        "worst_seconds": max(taken),
        "extra_bytes": float(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name in given.cases.split(","):
        about, make = CASES[name]
        rows[name] = {"about": about, **measured(make, given.repeats)}
        row = rows[name]
        print(
            f"{about}: {row['median_seconds'] * 1e3:.1f} ms (worst {row['worst_seconds'] * 1e3:.1f}), "
            f"{row['extra_bytes'] / 1e6:.0f} MB",
            flush=True,
        )
    if given.out:
        about_machine = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
        given.out.write_text(json.dumps({"machine": about_machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
