"""Measure federations from a thousand to a million clients: start-up, a round by phase, and memory.

    python benchmarks/million.py --out results/million.json
    python benchmarks/million.py --out results/million.json --cells fedavg-1000000-50
    python benchmarks/million.py --table results/million.json

A cell is a method, a number of clients and a number of rounds: fedavg-1000-4. Each runs in a process of its own, with
one worker, and is written as soon as it is measured; cells that the file has are passed over. Clients hold 100 of
10,000 shared synthetic images (3 x 32 x 32), cohorts have 100, clients train `tutorial-cnn` for five epochs. Seconds
are CPU seconds of that process; wall seconds stand beside them, and mean little on a shared machine.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

METHODS = ("fedavg", "fedacs", "oort", "nccb", "nccb-told")
CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
ROUNDS = 3
"""Rounds of a cell of the curve; the first is warm-up."""
LONG = "fedavg-1000000-50"
CELLS = (*(f"{method}-{clients}-{ROUNDS}" for clients in CLIENTS for method in METHODS), LONG)

TOLD = "-told"
"""What the name of a method ends with whose clients are not asked for their contexts: random ones are told instead.

A survey of a million clients takes many minutes of the clients' time, and none of the rounds that follow.
"""


def settings_of(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """Return the settings of a cell."""
    return {
        "method": method.removesuffix(TOLD),
        "dataset": {"name": "synthetic", "shape": (3, 32, 32)},
        "environment": {"name": "uniform", "samples": 100},
        "model": "tutorial-cnn",
        "clients": clients,
        "cohort": 100,
        "rounds": rounds,
        "evaluate_every": max(5, rounds),
        "local": {"epochs": 5, "batch": 50, "rate": 0.05},
        "workers": 1,
    }


class Phases:
    """CPU and wall seconds by phase, of the functions that are watched."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)

    def watch(self, owner: type, name: str, phase: str) -> None:
        """Add the time of each call of a method to a phase."""
        original = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            begin, begin_cpu = time.perf_counter(), time.process_time()
            try:
                return original(*given, **named)
            finally:
                which = "survey" if name == "execute" and not given[1].train else phase
                self.cpu[which] += time.process_time() - begin_cpu
                self.wall[which] += time.perf_counter() - begin

        setattr(owner, name, timed)

    def taken(self) -> dict[str, dict[str, float]]:
        """Return the seconds since the last call."""
        found = {"cpu": dict(self.cpu), "wall": dict(self.wall)}
        self.cpu.clear()
        self.wall.clear()
        return found


def measured(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """Run a cell in this process."""
    import covey
    from covey.core.build import dataset_of
    from covey.core.one_model import OneModel
    from covey.core.records import Records
    from covey.runtime.local import LocalRuntime

    imported = time.process_time()
    config = covey.Config.of(settings_of(method, clients, rounds))
    dataset = dataset_of(config)
    images = dataset.x.nbytes + dataset.test_x.nbytes
    data_cpu, data_peak = time.process_time() - imported, _peak()
    phases = Phases()
    phases.watch(LocalRuntime, "execute", "clients")
    phases.watch(LocalRuntime, "evaluate", "evaluation")
    for name, phase in (("survey", "selection"), ("surveyed", "clustering"), ("order", "selection")):
        phases.watch(OneModel, name, phase)
    for name in ("screened", "absorb", "joint_work"):
        phases.watch(OneModel, name, "aggregation")
    phases.watch(Records, "write", "records")
    if method.endswith(TOLD):
        tell_contexts()
    each: list[dict[str, Any]] = []
    begin, begin_cpu = time.perf_counter(), time.process_time()
    ends: list[tuple[float, float]] = []
    first: list[tuple[float, float]] = []
    available = LocalRuntime.available

    def started(self: LocalRuntime, t: int) -> Any:
        if t == 1:
            first.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
        return available(self, t)

    LocalRuntime.available = started  # type: ignore[method-assign]

    def on_round(record: dict[str, Any]) -> None:
        ends.append((time.perf_counter(), time.process_time()))
        each.append(phases.taken())
        print(record["round"], {name: round(taken, 2) for name, taken in each[-1]["cpu"].items()}, file=sys.stderr)

    with tempfile.TemporaryDirectory() as place:
        run = covey.run(config, out=Path(place) / "run", on_round=on_round)
        checkpoint = (run.folder / "checkpoint.safetensors").stat().st_size
        line = max(len(text) for text in (run.folder / "metrics.jsonl").read_text().splitlines())
        accuracy = run.metrics[-1]["accuracy"]
    differences = list(zip(ends[1:], ends[:-1], strict=True))
    names = sorted({name for one in each[1:] for name in one["cpu"]} - {"evaluation"})
    evaluation = [one["cpu"].get("evaluation", 0.0) for one in each[1:]]
    rounds_cpu = [now[1] - before[1] - scored for (now, before), scored in zip(differences, evaluation, strict=True)]
    return {
        "method": method,
        "clients": clients,
        "rounds": rounds,
        "data_cpu_seconds": data_cpu,
        "import_cpu_seconds": imported,
        "start_seconds": first[0][0],
        "start_cpu_seconds": first[0][1],
        "survey_cpu_seconds": sum(one["cpu"].get("survey", 0.0) + one["cpu"].get("clustering", 0.0) for one in each),
        "survey_seconds": sum(one["wall"].get("survey", 0.0) + one["wall"].get("clustering", 0.0) for one in each),
        "round_cpu_seconds": statistics.median(rounds_cpu),
        "round_seconds": statistics.median(now[0] - before[0] for now, before in differences),
        "phases_cpu_seconds": {
            name: statistics.median(one["cpu"].get(name, 0.0) for one in each[1:]) for name in names
        },
        "images_bytes": images,
        "peak_before_bytes": data_peak,
        "peak_bytes": _peak(),
        "checkpoint_bytes": checkpoint,
        "longest_record": line,
        "accuracy": accuracy,
    }


def tell_contexts() -> None:
    """Have NCCB's survey in the first round replaced by random contexts of all clients."""
    import numpy as np

    from covey.selection.nccb import NCCB

    def survey(self: Any, t: int, candidates: Any) -> None:
        if not self.known.all():
            self.contexts = np.random.default_rng(0).integers(0, 256, self.contexts.shape, dtype=np.uint8)
            self.known[:] = True
            self._cluster(t, candidates)

    NCCB.survey = survey  # type: ignore[assignment]


def _peak() -> int:
    """Return the most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_cells(cells: list[str], out: Path) -> None:
    """Measure the cells that the file lacks, one process after another."""
    kept: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    rows = kept.setdefault("rows", {})
    for cell in cells:
        if cell in rows:
            continue
        command = [sys.executable, __file__, "--cell", cell]
        load = os.getloadavg()[0]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows[cell] = {**json.loads(done.stdout), "commit": _commit(), "load_before": load}
        kept["machine"] = {"cores": os.cpu_count(), "python": platform.python_version()}
        out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        print(line_of(cell, rows[cell]), flush=True)


def line_of(cell: str, row: dict[str, Any]) -> str:
    """Return a cell's figures in a sentence."""
    return (
        f"{cell}: start-up {row['start_cpu_seconds']:.1f} s, round {row['round_cpu_seconds']:.2f} s of CPU, "
        f"{(row['peak_bytes'] - row['images_bytes']) / 2**20:.0f} MiB beyond the images"
    )


def table(path: Path) -> str:
    """Return the curve as a Markdown table: CPU seconds and memory by method and number of clients."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    lines = [
        "| method | clients | rounds | start-up | round | of it clients | selection | aggregation | records "
        "| round / 1,000 clients | survey | MiB beyond the images | checkpoint |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows.values(), key=lambda one: (METHODS.index(one["method"]), one["clients"], one["rounds"])):
        small = rows.get(f"{row['method']}-1000-{ROUNDS}")
        ratio = f"{row['round_cpu_seconds'] / small['round_cpu_seconds']:.2f}" if small else "-"
        phases = row["phases_cpu_seconds"]
        survey = f"{row['survey_cpu_seconds']:.1f}" if row["survey_cpu_seconds"] else "-"
        lines.append(
            f"| `{row['method']}` | {row['clients']:,} | {row['rounds']} | {row['start_cpu_seconds']:.2f} "
            f"| {row['round_cpu_seconds']:.2f} | {phases['clients']:.2f} | {phases['selection']:.3f} "
            f"| {phases['aggregation']:.3f} | {phases['records']:.3f} | {ratio} | {survey} "
            f"| {(row['peak_bytes'] - row['images_bytes']) / 2**20:,.0f} | {row['checkpoint_bytes'] / 1e6:.1f} MB |"
        )
    return "\n".join(lines)


def _commit() -> str:
    """Return the commit that was measured; it says so if files differ from it."""
    told = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty"]
    return subprocess.run(told, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS), help="cells to measure, with commas between them")
    parser.add_argument("--out", type=Path, default=Path("results/million.json"))
    parser.add_argument("--table", type=Path, help="print the table of a file instead")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table:
        print(table(given.table))
    elif given.cell:
        method, clients, rounds = given.cell.rsplit("-", 2)
        print(json.dumps(measured(method, int(clients), int(rounds))))
    else:
        run_cells(given.cells.split(","), given.out)


if __name__ == "__main__":
    main()
