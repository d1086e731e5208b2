"""Every method on the digits, in the demo's setting: a small table, for a first idea of each.

    python benchmarks/digits.py            # what results/digits.json lacks, in about ten minutes on two cores
    python benchmarks/digits.py --page     # writes the page from the stored runs

Writes results/digits.json and docs/results/digits.md.
"""

import argparse
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import covey
from benchmarks.attacks import commit_here, read_runs, table_of
from covey.job.comparison.statistics import Estimate
from covey.job.demo.skew_cost import SETTING
from covey.recipes import COVEY_AVERAGING, COVEY_SERVER
from covey.registries import methods
from covey.storage import write_json
from papers.wording import spread

ROOT = Path(__file__).parents[1]
SEEDS = range(600, 605)
"""Seeds on which no setting was chosen."""
EVERY = 5
SETTINGS: dict[str, Any] = {**SETTING, "runtime": "local", "workers": 1, "evaluate_every": EVERY}
LATE = SETTINGS["rounds"] // 2
"""Accuracy is the mean over the evaluations after this round."""
BASE = "fedavg"
SERVER = "fedavg with covey's server"
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in methods.names()},
    # It leaves normalisation layers with clients, and the default model has none.
    "fedbn": {"method": "fedbn", "model": {"name": "mlp", "norm": "batch"}},
    SERVER: {"method": BASE, "server": dict(COVEY_SERVER), "averaging": dict(COVEY_AVERAGING)},
}
REFERENCES = ("iid", "central")
OWN = tuple(name for name in methods.names() if methods[name].part.many)
"""Methods that leave clients with models of their own."""


def measured(line: tuple[str, int]) -> dict[str, Any]:
    """Run a variant with a seed: accuracy on all classes, and on the mixes of single clients."""
    variant, seed = line
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = covey.run({**SETTINGS, **VARIANTS[variant], "seed": seed}, out=Path(folder) / "run").metrics
    if rows[-1]["round"] < SETTINGS["rounds"]:
        raise KeyboardInterrupt(f"{variant}, seed {seed}, was stopped.")
    late = [row for row in rows if row["round"] > LATE and row.get("accuracy") is not None]
    scores = {name: float(np.mean([row[name] for row in late])) for name in ("accuracy", "own_accuracy")}
    return {"method": variant, "seed": seed, **{name: round(value, 6) for name, value in scores.items()}}


def run_all(path: Path, processes: int, say: Callable[[str], None] = print) -> None:
    """Run what is missing, and store every result as it comes."""
    stored = read_runs(path, SETTINGS)
    have = {(row["method"], row["seed"]) for row in stored["runs"]}
    todo = [(name, seed) for seed in SEEDS for name in VARIANTS if (name, seed) not in have]
    commit = commit_here()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for number, found in enumerate(pool.imap_unordered(measured, todo), start=1):
            stored["runs"].append({**found, "commit": commit} if commit != stored["commit"] else found)
            if number % 10 == 0 or number == len(todo):
                stored["runs"].sort(key=lambda row: (row["seed"], row["method"]))
                write_json(path, stored)
                say(f"{number} of {len(todo)}")


def page(stored: Mapping[str, Any]) -> str:
    """Return the page: methods with one model, and methods with models of clients' own."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in stored["runs"]:
        found.setdefault(row["method"], {})[row["seed"]] = row
    complete = {name: runs for name, runs in found.items() if len(runs) == len(SEEDS)}
    one = [name for name in complete if name not in OWN]
    several = [BASE, *(name for name in complete if name in OWN)]
    text = _INTRODUCTION.format(
        seeds=len(SEEDS), late=LATE + EVERY, commit=stored["commit"][:10], torch=stored["torch"]
    )
    return (
        "\n\n".join(
            [
                text,
                "## One model, all classes",
                _rows(complete, one, "accuracy", "accuracy"),
                _ONE,
                "## Models of clients' own",
                _rows(complete, several, "own_accuracy", "accuracy on clients' own mixes"),
                _SEVERAL,
            ]
        )
        + "\n"
    )


def _rows(found: Mapping[str, Mapping[int, Mapping[str, Any]]], names: Sequence[str], score: str, title: str) -> str:
    """Return a table of methods, the best first, with differences to FedAvg seed by seed."""
    values = {name: np.array([found[name][seed][score] for seed in SEEDS]) for name in names}
    rows = []
    for name in sorted(names, key=lambda name: -values[name].mean()):
        gain = values[name] - values[BASE]
        points = "-" if name == BASE else spread(Estimate.of(gain.tolist()), "{:+.1f}")
        rows.append([name, spread(Estimate.of(values[name].tolist())), points])
    return table_of(("method", title, f"points over {BASE}"), rows)


_INTRODUCTION = """# All methods on the digits, small

Every method in one small setting, the demo's, for a first idea of each. It says nothing of other skew, other data or
larger models: where clients differ by degrees, [FedACS gains](fedacs.md) what it loses here. No method is tuned.

scikit-learn's digits, 40 clients of 10 samples each with two digits; 24 of them have the digits 0 and 1. 6 clients
train in each of 60 rounds, in a perceptron, by the default local training. Accuracy in percent is the mean over
rounds {late} to 60, every fifth of which is evaluated; means over {seeds} seeds with 95 % intervals, differences seed
by seed. `python benchmarks/digits.py` runs everything and writes this page from `results/digits.json`
(commit {commit}; torch {torch}, CPU)."""

_ONE = """`iid` is FedAvg on the same clients without skew, `central` SGD on all data in one place: references, no
federated methods. `fedavg with covey's server` is FedAvg with the momentum and the average over rounds that `covey`
sets; what `covey` has above it comes from balanced cohorts."""

_SEVERAL = """Each client's model on test samples in the client's own class mix: an easier question, as a client has two
of ten digits. `fedavg` is its one model for all of them. `fedbn` has the perceptron with batch normalisation."""


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "digits.json")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "results" / "digits.md")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--page", action="store_true", help="write the page from the stored runs alone")
    given = parser.parse_args(arguments)
    if not given.page:
        run_all(given.out, given.processes, say)
    given.to.write_text(page(read_runs(given.out, SETTINGS)), encoding="utf-8")
    say(f"Page: {given.to}")


if __name__ == "__main__":
    main()
