"""What trainers cost and reach on a GPU: speed beside FedAvg, the guard's share, and accuracy at FedACS's setting.

    python benchmarks/trainers.py --out OUT --data-dir DATA --before EARLIER/src --minutes 9
    python benchmarks/trainers.py --out OUT --data-dir DATA --minutes 9 --steps accuracy
    python benchmarks/trainers.py --out OUT --device cpu --toy        # all of it in miniature, without a data set

The same command goes on where the last one stopped: rows that are measured stay, and comparisons resume from their
checkpoints in `--work`. `--out` gets, every minute, speed.jsonl, guard.json, accuracy.json (every evaluation of every
run so far), summary.txt with what must hold, log.txt, and records.tar.gz (all records, without models).

DATA holds cifar-10-batches-py; EARLIER/src the package covey of an earlier version, for the speed of plain training
before and after (made by: git archive COMMIT src | tar -x -C EARLIER).
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gpu import TOY_ROWS, W2_ROWS, read
from benchmarks.name_list import names_of

ROOT = Path(__file__).parents[1]
STEPS = ("speed", "guard", "accuracy")
EVERY = 60.0
"""Seconds between two copies of the results to `--out`."""

PAUSE = 90.0
"""Seconds that a step has to write a checkpoint once its time is up."""

SHARES = {"scaffold": 0.75, "feddyn": 0.75, "fedcm": 0.75, "fedlc": 0.85, "adam": 0.85, "moon": 0.35}
"""Least client-samples a second, as a share of plain training's."""

TIMES_LOOP = 20.0
"""Least client-samples a second of DP-SGD, as a multiple of a plain loop's over clients."""

CHANCE = 0.1

ENVIRONMENTS = ("few-class", "uniform")
SELECTORS = ("uniform", "fedacs", "oort-simple")
COMPARED = ("sgd", "scaffold", "feddyn")
LEAKING = "feddyn leak"


class Steps:
    """The steps, each a program of its own."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.work: Path = given.work
        self.until = time.monotonic() + 60 * given.minutes
        self.log = self.work / "log.txt"

    def run(self) -> bool:
        """Run all steps that are asked for; return False if time ran out."""
        for step in self.given.steps:
            for name, command in getattr(self, step)():
                if not self._ran(name, command):
                    return False
        return True

    def speed(self) -> Iterator[tuple[str, list[str]]]:
        rows = TOY_ROWS if self.given.toy else W2_ROWS
        command = [*script("gpu.py"), "--rows", ",".join(rows), "--out", str(self.work / "speed.jsonl")]
        before = ["--before", str(self.given.before)] if self.given.before else []
        yield "speed", [*command, "--device", self.given.device, "--seconds", "0" if self.given.toy else "5", *before]

    def guard(self) -> Iterator[tuple[str, list[str]]]:
        done = self.work / "guard.json"
        toy = ["--workload", "W0", "--rounds", "8"] if self.given.toy else ["--rounds", "40"]
        if not done.exists():
            yield "guard", [*script("guard.py"), *toy, "--out", str(done)]

    def accuracy(self) -> Iterator[tuple[str, list[str]]]:
        all_methods = tuple(product(ENVIRONMENTS, SELECTORS, [COMPARED]))
        for environment, selector, compared in (*all_methods, ("few-class", "uniform", (LEAKING,))):
            folder = self.work / "accuracy" / f"{environment}-{selector}{'-leak' if LEAKING in compared else ''}"
            if not (folder / "done").exists():
                yield folder.name, self.compare(environment, selector, compared, folder)
                (folder / "done").touch()

    def compare(self, environment: str, selector: str, compared: tuple[str, ...], folder: Path) -> list[str]:
        """Return the command of one comparison: FedACS's local training, and small data in miniature."""
        local = {"epochs": 5, "batch": 400, "rate": 0.1, "momentum": 0.5, "weight_decay": 5e-4, "decay": 0.9993}
        settings: dict[str, Any] = {"rounds": 500, "clients": 200, "cohort": 10}
        more: dict[str, Any] = {"evaluate_every": 10, "aggregator.weighted": "false"}
        data = ["--dataset", "cifar10", "--model", "tutorial-cnn", "--data-dir", str(self.given.data_dir)]
        if self.given.toy:
            local |= {"epochs": 1, "batch": 10}
            settings |= {"rounds": 6, "clients": 10, "cohort": 3}
            more["evaluate_every"] = 2
            data = ["--dataset", "digits"]
        else:
            local |= {"crop": 4, "flip": "true"}
        sets = {**more, **{f"local.{name}": value for name, value in local.items()}}
        flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        flags += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        if LEAKING in compared:
            # As FedDyn's default is where clients are not invited alike.
            more |= {"trainer.leak": settings["cohort"] / settings["clients"]}
        methods = ",".join(f"{selector}+average+{trainer.removesuffix(' leak')}" for trainer in compared)
        runtime = ["--runtime", "stacked", "--device", self.given.device]
        precision = ["--precision", "fp32" if self.given.device == "cpu" else "bf16"]
        command = [sys.executable, "-m", "covey.cli.main", "compare", "--methods", methods, "--seeds", "2"]
        where = ["--environment", environment, "--out", str(folder), "--json"]
        return [*command, *where, *data, *flags, *runtime, *precision]

    def _ran(self, name: str, command: list[str]) -> bool:
        """Run a program; stop it when time is up, so that it can be resumed, and return False then."""
        note(self.log, f"{name}: begins")
        with self.log.open("a", encoding="utf-8") as file:
            child = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
        copied = 0.0
        while child.poll() is None:
            if time.monotonic() > self.until:
                stop(child)
                note(self.log, f"{name}: stopped, as its time is up; the same command goes on")
                return False
            if time.monotonic() - copied > EVERY:
                copied = time.monotonic()
                publish(self.work, self.given.out)
            time.sleep(0.5)
        note(self.log, f"{name}: ended with {child.returncode}")
        publish(self.work, self.given.out)
        if child.returncode:
            raise SystemExit(f"{name} failed with {child.returncode}; see {self.log}.")
        return True


def script(name: str) -> list[str]:
    return [sys.executable, str(ROOT / "benchmarks" / name)]


def note(log: Path, text: str) -> None:
    line = f"{time.strftime('%H:%M:%S')} {text}"
    print(line, flush=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def stop(child: subprocess.Popen[bytes]) -> None:
    """Interrupt a program and all that it started; those that do not end in time are killed."""
    for number, wait in ((signal.SIGINT, PAUSE), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait)
            return


def publish(work: Path, out: Path) -> None:
    """Copy the results so far, each file whole."""
    out.mkdir(parents=True, exist_ok=True)
    found = curves(work / "accuracy")
    rows, guard = read(work / "speed.jsonl"), work / "guard.json"
    texts = {"accuracy.json": json.dumps(found, indent=1), "summary.txt": "\n".join(summary(rows, guard, found)) + "\n"}
    for name, text in texts.items():
        (work / name).write_text(text, encoding="utf-8")
    records = work / "records.tar.gz"
    with tarfile.open(records, "w:gz") as tar:
        for path in sorted((work / "accuracy").rglob("*.json*")) if (work / "accuracy").exists() else []:
            tar.add(path, path.relative_to(work))
    for name in (*texts, "speed.jsonl", "guard.json", "log.txt", records.name):
        if (work / name).exists():
            shutil.copyfile(work / name, out / f"{name}.part")
            (out / f"{name}.part").replace(out / name)


def curves(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the evaluations of every run so far."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        rows = [row for row in map(parsed, path.read_text(encoding="utf-8").splitlines()) if row]
        scored = [row for row in rows if row.get("accuracy") is not None]
        found[str(path.parent.relative_to(folder))] = {
            "rounds": len(rows),
            "at": [row["round"] for row in scored],
            "accuracy": [row["accuracy"] for row in scored],
        }
    return found


def parsed(line: str) -> dict[str, Any] | None:
    """Return a record; None for one that is being written."""
    try:
        row: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row


def summary(rows: Mapping[str, Any], guard: Path, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what was measured beside what must hold, a line each."""
    speed = {name: float(row["samples_per_second"]) for name, row in rows.items()}
    lines = []

    def mean(prefix: str) -> float | None:
        """Of the two rows without a trainer."""
        own = [value for name, value in speed.items() if name.split("-")[0] == prefix and bare(name)]
        return fmean(own) if own else None

    plain, before = mean("covey"), mean("before")
    for name, value in speed.items():
        trainer = "-".join(name.split("-")[4:])
        if plain and trainer in SHARES:
            least = SHARES[trainer]
            lines.append(f"{trainer}: {value / plain:.0%} of plain training's speed; at least {least:.0%}")
        if trainer == "dp-sgd" and (loop := [one for row, one in speed.items() if row.startswith("loop-")]):
            lines.append(f"dp-sgd: {value / loop[0]:.1f} times a plain loop's speed; at least {TIMES_LOOP:g}")
    if plain and before:
        lines.append(f"sgd: {plain / before:.1%} of the speed before")
    if guard.exists():
        last = json.loads(guard.read_text(encoding="utf-8"))[-1]
        lines.append(f"guard: {last['share']:.2%} of a round ({last['device']})")
    for name, run in found.items():
        accuracy = run["accuracy"]
        if len(accuracy) > 1:
            later = accuracy[len(accuracy) // 5 :]
            end, low = fmean(accuracy[-5:]), min(later)
            fell = "  COLLAPSED" if low < 1.5 * CHANCE else ""
            lines.append(f"{name}: round {run['at'][-1]}, last five {end:.1%}, lowest since a fifth {low:.1%}{fell}")
    return lines


def bare(row: str) -> bool:
    """True for a row of plain training."""
    return row.split("-")[4:] in ([], ["sgd"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results, copied every minute")
    parser.add_argument("--work", type=Path, default=Path("results/trainers"), help="folder to work in and resume from")
    parser.add_argument("--data-dir", type=Path, help="folder that holds cifar-10-batches-py")
    parser.add_argument("--before", type=Path, help="folder that holds the package covey of an earlier version")
    parser.add_argument("--steps", default=",".join(STEPS), type=names_of(STEPS, "step"))
    parser.add_argument("--minutes", type=float, default=1e6, help="stop by then")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true", help="everything in miniature")
    given = parser.parse_args()
    if isinstance(given.steps, str):
        given.steps = list(STEPS)
    if "accuracy" in given.steps and not given.toy and given.data_dir is None:
        parser.error("accuracy needs --data-dir, a folder that holds cifar-10-batches-py.")
    given.work, given.out = given.work.resolve(), given.out.resolve()
    given.work.mkdir(parents=True, exist_ok=True)
    ended = Steps(given).run()
    publish(given.work, given.out)
    print((given.work / "summary.txt").read_text(encoding="utf-8"), end="")
    sys.exit(0 if ended else 3)


if __name__ == "__main__":
    main()
