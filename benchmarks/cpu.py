"""Benchmark Covey and other frameworks on a CPU, one after another on the same data, and print one table.

    python benchmarks/cpu.py --workloads W1,W2,W3 --seconds 30 --out results/cpu.json

Every contender is a process of its own, with nothing else running. Contenders run there and back (A B C, then C B A),
so a machine whose speed drifts favours none. The first round of each run is warm-up; the result is the median over all
other rounds of both passes.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import processes  # noqa: E402
from benchmarks.name_list import names_of  # noqa: E402
from benchmarks.workloads import WORKLOADS, Workload, prepare  # noqa: E402

TOLERANCE = 0.1
"""Results are void if the plain loop is slower than its known speed, or drifts, by more than this share, or if other
programs use more than this share of a core."""

_PATIENCE = 1800.0
"""Seconds after which a contender is stopped."""

_NOT_INSTALLED = "not installed"

YARDSTICK = "plain"
PEERS = {"pfl-2": "× pfl (2)", "flower": "× Flower"}


@dataclass(frozen=True)
class Contender:
    """A program that trains a workload."""

    name: str
    title: str
    module: str
    workers: int = 1
    precision: str = "fp32"
    launcher: tuple[str, ...] = ()
    """Module and arguments that start it, if it is not started directly."""
    needs: tuple[str, ...] = ()
    """Packages it needs besides Covey's dependencies."""

    def command(self) -> list[str]:
        launch = ["-m", *self.launcher] if self.launcher else []
        chosen = ["--workers", str(self.workers), "--precision", self.precision]
        return [sys.executable, *launch, "-m", f"benchmarks.contenders.{self.module}", *chosen]

    def missing(self) -> list[str]:
        return [package for package in self.needs if _version(package) is None]


_TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("plain", "plain PyTorch loop, 1 thread", "plain"),
        Contender("covey", "Covey, 2 workers", "covey_local", workers=2),
        Contender("covey-bf16", "Covey, 2 workers, bf16", "covey_local", workers=2, precision="bf16"),
        Contender("covey-1", "Covey, 1 worker", "covey_local"),
        Contender("pfl", "pfl, 1 process", "pfl_simulation", needs=("pfl",)),
        Contender("pfl-2", "pfl, 2 processes", "pfl_simulation", workers=2, launcher=_TORCHRUN, needs=("pfl",)),
        Contender("flower", "Flower (Ray), 2 clients at once", "flower_simulation", workers=2, needs=("flwr", "ray")),
    )
}


@dataclass(frozen=True)
class Outcome:
    """One run of one contender on one workload."""

    workload: str
    contender: str
    passage: int
    """0 there, 1 back."""
    seconds: tuple[float, ...] = ()
    """Duration of each measured round."""
    startup: float = math.nan
    """Seconds from the start of the process to the end of the first round, less the median round."""
    peak_bytes: int | None = None
    loss: float = math.nan
    """Loss of the trained model on held-out images."""
    others: float | None = None
    """Mean number of cores that other programs used meanwhile."""
    failure: str | None = None

    @classmethod
    def of(
        cls,
        workload: str,
        contender: str,
        passage: int,
        began: float,
        ends: Sequence[float],
        peak: int | None,
        loss: float,
        ready: float | None = None,
        others: float | None = None,
    ) -> "Outcome":
        """Make an outcome from the ends of rounds; `ready` is the start of the first if that does more than train."""
        seconds = tuple(end - begin for begin, end in pairwise(ends))
        startup = (ends[0] - statistics.median(seconds) if ready is None else ready) - began
        guess = math.log(WORKLOADS[workload].classes)
        learned = loss < guess
        failure = None if learned else f"it learned nothing: loss {loss:.2f}, a guess has {guess:.2f}"
        return cls(workload, contender, passage, seconds, startup, peak, loss, others, failure)


@dataclass(frozen=True)
class Row:
    """One contender on one workload: a row of the table."""

    workload: str
    contender: str
    rate: float
    """Client-samples trained per second, from the median round."""
    passages: tuple[float, ...]
    """The same for each passage."""
    round_seconds: float
    rounds: int
    startup: float
    peak_bytes: int | None
    ratios: dict[str, float]
    """Peer → this contender's rate over the peer's."""
    others: float | None = None
    """Largest mean number of cores that other programs used during one of its runs."""
    failure: str | None = None


def rows(workload: Workload, outcomes: Iterable[Outcome]) -> list[Row]:
    """Return a row for each contender, in the order of their first runs."""
    by_contender: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_contender.setdefault(outcome.contender, []).append(outcome)
    sound = {
        name: [second for outcome in runs for second in outcome.seconds]
        for name, runs in by_contender.items()
        if not any(outcome.failure for outcome in runs)
    }
    rates = {name: workload.samples_per_round / statistics.median(seconds) for name, seconds in sound.items()}
    result = []
    for name, runs in by_contender.items():
        failure = next((outcome.failure for outcome in runs if outcome.failure), None)
        if failure is not None:
            result.append(Row(workload.name, name, math.nan, (), math.nan, 0, math.nan, None, {}, None, failure))
            continue
        peaks = [outcome.peak_bytes for outcome in runs if outcome.peak_bytes is not None]
        result.append(
            Row(
                workload=workload.name,
                contender=name,
                rate=rates[name],
                passages=tuple(workload.samples_per_round / statistics.median(run.seconds) for run in runs),
                round_seconds=statistics.median(sound[name]),
                rounds=len(sound[name]),
                startup=statistics.median(outcome.startup for outcome in runs),
                peak_bytes=max(peaks, default=None),
                ratios={peer: rates[name] / rates[peer] for peer in PEERS if peer in rates},
                others=max((run.others for run in runs if run.others is not None), default=None),
            )
        )
    return result


def verdict(workload: Workload, table: Sequence[Row]) -> str:
    """Say if the results are valid: the machine was idle and the plain loop ran at its known speed."""
    crowded = max(table, key=lambda row: row.others or 0.0)
    if crowded.others is not None and crowded.others > TOLERANCE:
        beside = f"beside '{CONTENDERS[crowded.contender].title}'"
        return f"VOID: something else used {crowded.others:.2f} cores {beside}; run it again on a machine at rest"
    plain = next((row for row in table if row.contender == YARDSTICK and row.failure is None), None)
    if plain is None:
        return "not judged: the plain loop did not run"
    drift = max(plain.passages) / min(plain.passages) - 1
    ran = f"first {plain.passages[0]:,.0f}, last {plain.passages[-1]:,.0f} samples/s"
    if drift > TOLERANCE:
        return f"VOID: the plain loop drifted by {drift:.0%} ({ran})"
    if workload.yardstick is None:
        return f"the plain loop: {ran}"
    below = 1 - plain.rate / workload.yardstick
    known = f"{workload.yardstick:,.0f} known for the two-core reference machine"
    if below > TOLERANCE:
        return f"VOID: the plain loop ({ran}) is {below:.0%} below the {known}; this machine is busy, or a slower one"
    return f"valid: the plain loop ({ran}) is within {TOLERANCE:.0%} of the {known}, or above"


def table_of(results: Sequence[Row]) -> Table:
    """Return one table of all workloads."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("samples/s", "there / back", "s/round", "rounds", "start-up s", "memory MB", *PEERS.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    for workload in dict.fromkeys(row.workload for row in results):
        table.add_section()
        for row in (row for row in results if row.workload == workload):
            title = CONTENDERS[row.contender].title
            if row.failure is not None:
                table.add_row(workload, title, "not installed" if row.failure.startswith(_NOT_INSTALLED) else "failed")
                continue
            table.add_row(
                workload,
                title,
                f"{row.rate:,.0f}",
                " / ".join(f"{rate:,.0f}" for rate in row.passages),
                f"{row.round_seconds:.2f}",
                str(row.rounds),
                f"{row.startup:.1f}",
                "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}",
                *(f"{row.ratios[peer]:.2f}" if peer in row.ratios else "-" for peer in PEERS),
            )
    return table


def race(workload: Workload, contenders: Sequence[Contender], seconds: float, passes: int, say: Any) -> list[Outcome]:
    """Run contenders there and back, one at a time on the same data, each for `seconds` in total."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="covey-benchmark-") as folder:
        data = Path(folder) / "data"
        prepare(workload, data)
        for passage in range(passes):
            for contender in contenders[:: -1 if passage % 2 else 1]:
                say(f"{workload.name} {'back' if passage % 2 else 'there'}: {contender.title}")
                outcomes.append(_run(contender, workload, passage, seconds / passes, Path(folder)))
    return outcomes


def _run(contender: Contender, workload: Workload, passage: int, seconds: float, folder: Path) -> Outcome:
    missing = contender.missing()
    if missing:
        return Outcome(workload.name, contender.name, passage, failure=f"{_NOT_INSTALLED}: {', '.join(missing)}")
    answer = folder / f"{contender.name}-{passage}.json"
    asked = ["--workload", workload.name, "--data", str(folder / "data"), "--result", str(answer)]
    command = [*contender.command(), *asked, "--seconds", str(seconds), "--rounds", "1"]
    ended = processes.run(command, _environment(), ROOT, folder / "log.txt", _PATIENCE)
    if ended.code != 0 or not answer.exists():
        how = f"took longer than {_PATIENCE:.0f} s" if ended.code is None else f"exit code {ended.code}"
        return Outcome(workload.name, contender.name, passage, failure=f"failed ({how})\n{ended.log}")
    result = json.loads(answer.read_text(encoding="utf-8"))
    return Outcome.of(
        workload.name,
        contender.name,
        passage,
        ended.began,
        result["ends"],
        ended.peak_bytes,
        float(result["loss"]),
        result["ready"],
        ended.others,
    )


def _environment() -> dict[str, str]:
    """Return the environment: one thread per process, no telemetry, and this repository's packages importable."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PFL_PYTORCH_DEVICE": "cpu"}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **quiet, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def describe() -> dict[str, object]:
    """Return commit, machine and versions."""
    from covey.core.records import describe_machine

    machine = describe_machine()
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False)
    packages = ("pfl", "flwr", "ray")
    return {
        **machine,
        "uncommitted": bool(changes.stdout.strip()),
        "processor": _processor(),
        "peers": {package: _version(package) or "not installed" for package in packages},
    }


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", default="W1,W2,W3", type=names_of(WORKLOADS, "workload"))
    standard = ",".join(name for name in CONTENDERS if name != "covey-1")
    parser.add_argument("--contenders", default=standard, type=names_of(CONTENDERS, "contender"))
    parser.add_argument("--seconds", default=30.0, type=float, help="measured seconds per contender and workload")
    parser.add_argument("--passes", default=2, type=int, help="2: there and back; 1: there only")
    parser.add_argument("--out", type=Path, help="JSON file with everything that was measured")
    given = parser.parse_args(arguments)
    console = Console()
    results: list[Row] = []
    outcomes: list[Outcome] = []
    verdicts: dict[str, str] = {}
    for name in given.workloads:
        contenders = [CONTENDERS[contender] for contender in given.contenders]
        raced = race(WORKLOADS[name], contenders, given.seconds, given.passes, lambda text: console.print(text))
        outcomes += raced
        found = rows(WORKLOADS[name], raced)
        results += found
        verdicts[name] = verdict(WORKLOADS[name], found)
        if given.out:
            _write(given, results, outcomes, verdicts)
    console.print("\nClient-samples trained per second, median of rounds after warm-up", style="bold")
    # A narrow terminal wraps the table instead of truncating it.
    Console(width=max(console.width, 138)).print(table_of(results))
    for name, text in verdicts.items():
        console.print(f"{name}  {WORKLOADS[name].about}; {text}")
    failures = [row for row in results if row.failure and not row.failure.startswith(_NOT_INSTALLED)]
    for row in failures:
        console.print(f"\n{row.workload} {CONTENDERS[row.contender].title}: {row.failure}", markup=False)
    return 1 if failures else 0


def _write(
    given: argparse.Namespace, results: Sequence[Row], outcomes: Sequence[Outcome], verdicts: dict[str, str]
) -> None:
    report = {
        **describe(),
        "settings": {"seconds": given.seconds, "passes": given.passes, "contenders": given.contenders},
        "workloads": {name: asdict(WORKLOADS[name]) for name in verdicts},
        "verdicts": verdicts,
        "rows": [asdict(row) for row in results],
        "runs": [asdict(outcome) for outcome in outcomes],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(_finite(report), indent=2) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
