"""Measure the server's share of a round: selection among a million clients, an agent's decision, aggregation.

    python benchmarks/server.py --out results/server.json

Each case reports the median and the worst of several calls, and the memory allocated beyond the state (by NumPy and
Python; torch's is not traced). Aggregation is compared to a copy of the same bytes.
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

from benchmarks.name_list import names_of
from covey.aggregation import FedDRL, FedDRLSet, weighted_sum
from covey.aggregation.impact_factors import LossReports
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.model.layout import Layout, Slot
from covey.selection import Balanced, FedACS
from covey.selection.contexts import ContextSelector
from covey.selection.k_linucb import KLinUCB
from covey.selection.nccb import NCCB
from covey.selection.share_sources import AskedShares

MILLION = 1_000_000


def setting(clients: int, cohort: int) -> Setting:
    head = Slot("head.weight", (10, 1), 0)
    return Setting(clients, cohort, 1_000, 10, 0, Layout((head,), (), (head,)), Local())


def fedacs() -> Callable[[int], object]:
    """Select ten of a million clients that all have a history."""
    selector = FedACS()
    selector.begin(setting(MILLION, 10))
    rng = np.random.default_rng(0)
    selector.wins[:] = rng.integers(1, 40, MILLION) * 0.2
    selector.losses[:] = rng.integers(1, 40, MILLION) * 0.2
    everyone = np.arange(MILLION)
    return lambda t: selector.select(t, everyone)


def balanced(known: bool) -> Callable[[int], object]:
    """Ask and select ten of a million clients; all have a history, and have told their class shares or not."""
    selector = Balanced()
    head = Slot("head.bias", (10,), 0)
    selector.begin(Setting(MILLION, 10, 1_000, 10, 0, Layout((head,), (), (head,)), Local()))
    rng = np.random.default_rng(0)
    selector.uses[:] = rng.integers(0, 40, MILLION)
    selector.sizes[:] = rng.integers(100, 400, MILLION)
    assert isinstance(selector.source, AskedShares)
    if known:
        selector.source.shares[:] = rng.dirichlet(np.full(10, 0.3), MILLION)
        selector.source.known[:] = True
    everyone = np.arange(MILLION)

    def call(t: int) -> object:
        selector.survey(t, everyone)
        return selector.select(t, everyone)

    return call


STATE_BYTES: dict[str, float] = {}
"""Case → bytes of state per client; only for contextual selectors."""


def contextual(name: str, selector: ContextSelector) -> Callable[[int], object]:
    """Select five of a million clients, all with known 64-bit contexts, none in an unexplored cluster."""
    selector.begin(setting(MILLION, 5))
    selector.contexts = np.random.default_rng(0).integers(0, 256, (MILLION, 8), dtype=np.uint8)
    selector.known[:] = True
    if isinstance(selector, NCCB):
        selector.cluster[:] = np.arange(MILLION) % selector.clusters
        selector.centres = np.zeros((selector.clusters, 64))
        selector.plays[: selector.clusters] = selector.threshold + 1
    kept = [one for one in vars(selector).values() if isinstance(one, np.ndarray) and one.shape[:1] == (MILLION,)]
    STATE_BYTES[name] = sum(one.nbytes for one in kept) / MILLION
    everyone = np.arange(MILLION)
    return lambda t: selector.select(t, everyone)


VGG_11 = 9_797_092
"""Parameters of VGG-11 for CIFAR-100."""

COHORT = 10


def decision(aggregator: FedDRL | FedDRLSet) -> Callable[[int], object]:
    """Turn clients' reports into impact factors; the agent does not learn."""
    aggregator.begin(setting(100, COHORT))
    rng = np.random.default_rng(0)
    everyone = np.arange(COHORT)
    before = rng.uniform(0.2, 2, COHORT)
    reports = LossReports(
        everyone, everyone, np.ones(COHORT, dtype=np.bool_), before, before / 2, np.full(COHORT, 300.0)
    )
    return lambda t: aggregator.impact_factors(t, reports, torch.device("cpu"))


def learning(aggregator: FedDRL | FedDRLSet) -> Callable[[int], object]:
    """Train an agent after a round, with a thousand experiences: 32 steps on batches."""
    aggregator.begin(setting(100, COHORT))
    rng = np.random.default_rng(0)
    agent = aggregator.policy.agent
    for _ in range(1_000):
        states = rng.random((2, agent.architecture.state_size)) + 0.1
        agent.replay.push(states[0], rng.random(agent.architecture.action_size), -rng.random(), states[1])
    return lambda t: agent.train_now(t)


def models() -> torch.Tensor:
    return torch.randn(COHORT, VGG_11, generator=torch.Generator().manual_seed(0))


def aggregation() -> Callable[[int], object]:
    states, weights = models(), torch.full((COHORT,), 1 / COHORT, dtype=torch.float64)
    return lambda t: weighted_sum(states, weights)


def copying() -> Callable[[int], object]:
    states = models()
    room = torch.empty_like(states)
    return lambda t: room.copy_(states)


CASES: dict[str, tuple[str, Callable[[], Callable[[int], object]]]] = {
    "fedacs-1m": ("FedACS selects 10 of 1,000,000 clients that all have a history", fedacs),
    "balanced-1m": (
        "Balanced cohorts: ask, and select 10 of 1,000,000 clients whose class shares are known",
        lambda: balanced(known=True),
    ),
    "balanced-new-1m": (
        "Balanced cohorts: the same where no client has been asked yet",
        lambda: balanced(known=False),
    ),
    "nccb-1m": ("NCCB selects 5 of 1,000,000 clients by 64-bit contexts", lambda: contextual("nccb-1m", NCCB())),
    "k-linucb-1m": (
        "k-LinUCB selects 5 of 1,000,000 clients by 64-bit contexts",
        lambda: contextual("k-linucb-1m", KLinUCB()),
    ),
    "feddrl-decision": ("FedDRL decides on 10 clients", lambda: decision(FedDRL(learn=False))),
    "feddrl-set-decision": ("FedDRL for sets decides on 10 clients", lambda: decision(FedDRLSet(learn=False))),
    "feddrl-learning": ("FedDRL learns after a round, 32 steps on batches of 4", lambda: learning(FedDRL())),
    "feddrl-set-learning": ("FedDRL for sets learns after a round, 32 steps on 16", lambda: learning(FedDRLSet())),
    "average-vgg11": ("Aggregation of VGG-11 from 10 clients", aggregation),
    "average-copy": ("A copy of the same bytes, 392 MB", copying),
}


def measured(make: Callable[[], Callable[[int], object]], repeats: int) -> dict[str, float]:
    """Return the seconds of a call, and the peak of the memory it allocated."""
    call = make()
    call(1)
    taken, computed = [], []
    for t in range(2, repeats + 2):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        call(t)
        taken.append(time.perf_counter() - begin)
        computed.append(time.process_time() - begin_cpu)
    tracemalloc.start()
    call(repeats + 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "best_seconds": min(taken),
        "best_cpu_seconds": min(computed),
        "median_seconds": statistics.median(taken),
        "worst_seconds": max(taken),
        "extra_bytes": float(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), type=names_of(CASES, "case"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for name in given.cases:
        about, make = CASES[name]
        rows[name] = {"about": about, **measured(make, given.repeats)}
        row = rows[name]
        if name in STATE_BYTES:
            row["state_bytes_per_client"] = STATE_BYTES[name]
        print(
            f"{about}: {row['median_seconds'] * 1e3:.2f} ms (worst {row['worst_seconds'] * 1e3:.2f}), "
            f"{row['extra_bytes'] / 1e6:.0f} MB"
            + (f"; {STATE_BYTES[name]:.0f} bytes of state per client" if name in STATE_BYTES else ""),
            flush=True,
        )
    if given.out:
        about_machine = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
        given.out.write_text(json.dumps({"machine": about_machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
