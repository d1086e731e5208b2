"""Soak test of a fleet: hundreds of rounds on real processes, with nodes killed and restarted at random.

    make soak                                          # 200 rounds, about ten minutes
    python benchmarks/soak.py --rounds 50 --out results/soak.json

Five SuperNodes with TLS and keys run on the loopback interface. In each round a node may be killed (SIGKILL, often
while it works), and one that was killed may be restarted. The test passes if the memory of the server's processes
(Covey's and the SuperLink) grows by at most 10 %, no zombie process is left and no file handle leaks, every round is
done, and the model is finite.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import covey
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.core.checkpoint import read_checkpoint
from covey.fleet import Rules
from covey.fleet.loopback import Loopback, loopback_fleet

SETTINGS: dict[str, Any] = {
    "method": "fedacs",
    "clients": 5,
    "cohort": 2,
    "dataset": "digits",
    "environment": {"name": "uniform", "samples": 24},
    "local": {"epochs": 1, "batch": 8, "rate": 0.05},
    "model": {"name": "mlp", "hidden": (32,)},
    "evaluate_every": 10,
    "workers": 1,
    "runtime": "fleet",
}

FLAT = 0.10
"""Growth of memory that still counts as flat."""

LEAK = 0.1
"""New handles per round that count as a leak. A connection pool fills up and stops growing; a leak does not."""

_COMES_UP = 20.0
"""Seconds that a node may take to start."""


@dataclass
class Watch:
    """Records memory and handles of the server's processes after each round, and kills and restarts nodes."""

    fleet: Loopback
    kills: float
    returns: float
    rng: random.Random
    begin: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    killed: int = 0
    returned: int = 0
    starting: dict[str, float] = field(default_factory=dict)
    """Restarted nodes, and when: starting takes seconds."""

    def __call__(self, record: dict[str, Any]) -> None:
        processes = {"server": os.getpid(), "superlink": self.fleet.superlink}
        row: dict[str, Any] = {"round": record["round"], "seconds": round(time.monotonic() - self.begin, 1)}
        row |= {f"{name} memory": resident(process) for name, process in processes.items()}
        row |= {f"{name} handles": handles(process) for name, process in processes.items()}
        row |= {"zombies": zombies(), "lost": len(record["dropped"]), "away": len(record["away"])}
        self.rows.append(row)
        if record["round"] % 20 == 0:
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        self._disturb()

    def _disturb(self) -> None:
        sites = self.fleet.fleet.sites
        there = [name for name in sites if self.fleet.node(name) is not None]
        now = time.monotonic()
        gone = [name for name in sites if name not in there and now - self.starting.get(name, 0.0) > _COMES_UP]
        # Two nodes are left alone, so that every round has clients to invite.
        if len(there) > 2 and self.rng.random() < self.kills:
            self.killed += 1
            threading.Timer(self.rng.uniform(0, 2), self.fleet.kill_node, [self.rng.choice(there)]).start()
        if gone and self.rng.random() < self.returns:
            self.returned += 1
            back = self.rng.choice(gone)
            self.starting[back] = now
            self.fleet.start_nodes([back])


def resident(process: int) -> int:
    """Return the resident memory of a process in megabytes."""
    words = Path(f"/proc/{process}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def handles(process: int) -> int:
    """Count the open files and connections of a process."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def descendants(process: int) -> Iterator[int]:
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield int(child)
            yield from descendants(int(child))


def zombies() -> int:
    """Count zombie processes among this one's descendants."""
    count = 0
    for process in descendants(os.getpid()):
        try:
            count += Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
    return count


def growth(rows: list[dict[str, Any]], name: str) -> float:
    """Return the relative growth of a figure from the first quarter to the end: medians over a tenth of the rounds."""
    tenth = max(3, len(rows) // 10)
    quarter = len(rows) // 4
    early = statistics.median(row[name] for row in rows[quarter : quarter + tenth])
    late = statistics.median(row[name] for row in rows[-tenth:])
    return late / early - 1


def leak(rows: list[dict[str, Any]], name: str) -> float:
    """Return the growth of a figure per round, over the second half of the rounds."""
    half = rows[len(rows) // 2 :]
    return float(np.polyfit([row["round"] for row in half], [row[name] for row in half], 1)[0])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kills", type=float, default=0.15, help="chance of a kill in a round")
    parser.add_argument("--returns", type=float, default=0.3, help="chance that a node which is gone returns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds that a round waits for answers")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings = {**SETTINGS, "rounds": given.rounds, "seed": given.seed}
    config = Config.of({**settings, "runtime": "local"})
    rules = Rules(timeout=given.timeout, patience=60.0, poll=0.2)
    with tempfile.TemporaryDirectory(prefix="covey-soak-") as place:
        fleet = loopback_fleet(Path(place) / "fleet", build_federation(config), settings, rules=rules)
        with Loopback(fleet) as started:
            watch = Watch(started, given.kills, given.returns, random.Random(given.seed))
            run = covey.run(settings, out=Path(place) / "run", on_round=watch, fleet=fleet.folder)
            time.sleep(3)
            started.reap()
            left = zombies()
            _, state = read_checkpoint(run.folder)
        lost = sum(len(row["dropped"]) for row in run.metrics)
        accuracy = run.metrics[-1].get("accuracy")
    assert state is not None
    verdict = {
        "rounds": len(run.metrics),
        "seconds": round(time.monotonic() - watch.begin),
        "kills": watch.killed,
        "returns": watch.returned,
        "answers lost": lost,
        "accuracy": accuracy,
        "finite": bool(torch.isfinite(state["model"]).all()),
        "server memory": growth(watch.rows, "server memory"),
        "superlink memory": growth(watch.rows, "superlink memory"),
        "server handles a round": leak(watch.rows, "server handles"),
        "superlink handles a round": leak(watch.rows, "superlink handles"),
        "zombies": left,
    }
    held = {
        "every round done": verdict["rounds"] == given.rounds,
        "the model is finite": verdict["finite"],
        "memory is flat": max(verdict["server memory"], verdict["superlink memory"]) <= FLAT,
        "no file handle leaks": max(verdict["server handles a round"], verdict["superlink handles a round"]) < LEAK,
        "no process is left unburied": left == 0,
    }
    for name, value in verdict.items():
        text = f"{value:+.1%}" if name.endswith("memory") else f"{value:+.3f}" if name.endswith("round") else value
        print(f"{name}: {text}")
    for name, holds in held.items():
        print(f"{'yes' if holds else 'NO '}  {name}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"verdict": verdict, "held": held, "rounds": watch.rows}, indent=1))
    print("The fleet lasts." if all(held.values()) else "The fleet does not last.")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
