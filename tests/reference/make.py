"""Make the reference records: what every method computed when they were made, and folders of every kind.

    python tests/reference/make.py            # records.json
    python tests/reference/make.py --folders  # folders

Uses public names alone, so that an older version can make them too; `tests/test_reference.py` compares.
A change that is meant to change results makes the records anew, and the changelog says why. The folders stay as they
are, and so do `first_records.json`: they were made by the first version. Later ones must be able to read and resume
these folders, and to compute these records with the settings of that time.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import covey

HERE = Path(__file__).parent
ROUNDS = 5
SMALL: dict[str, Any] = {
    "clients": 12,
    "cohort": 4,
    "rounds": ROUNDS,
    "workers": 1,
    "environment": {"name": "dirichlet", "alpha": 0.3},
    "local": {"epochs": 1, "batch": 8, "rate": 0.1},
    "model": {"name": "mlp", "hidden": (16,)},
}
FIRST: dict[str, dict[str, Any]] = {
    "nccb": {"selector": {"covariance": "diagonal", "gamma": 0.1, "stop_words": "hash"}},
    "nccb+feddrl-set": {"selector": {"name": "nccb", "covariance": "diagonal", "gamma": 0.1, "stop_words": "hash"}},
    "k-linucb": {"selector": {"model": "shared", "stop_words": "hash"}},
    "ondemand": {"aggregator": {"sends": "gradient", "gradients": "received"}},
}
"""Options of the first version that were defaults then, by the run."""
TIMINGS = ("seconds", "probe_seconds")
LATER = ("metrics",)
"""Fields of a record that are newer than the reference."""
EXTRA: dict[str, dict[str, Any]] = {
    "fedbn": {"method": "fedbn", "model": {"name": "mlp", "hidden": (16,), "norm": "batch"}},
    "fedrep": {"method": "fedrep", "local": {"epochs": 2, "batch": 8, "rate": 0.1}},
    "fedacs+cmfl": {"selector": "fedacs", "aggregator": "cmfl"},
    "nccb+feddrl-set": {"selector": "nccb", "aggregator": "feddrl-set"},
    "devices": {
        "method": "oort",
        "devices": {"spread": 1.0, "dropout": 0.2, "availability": 0.75, "deadline": 30.0},
        "altered": {"poison": 0.25},
    },
    "images": {
        "method": "fedprox",
        "dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 240, "test": 60},
        "environment": {"name": "uniform", "samples": 20},
        "model": {"name": "fashion-cnn"},
        "local": {"epochs": 2, "batch": 8, "rate": 0.05, "momentum": 0.5, "crop": 2, "flip": True, "decay": 0.99},
        "rounds": 2,
    },
}
WAYS: dict[str, dict[str, Any]] = {
    "local": {},
    "local-fp64": {"precision": "fp64"},
    "stacked-fp64": {"precision": "fp64", "runtime": "stacked", "device": "cpu"},
}


def settings_of(name: str) -> dict[str, Any]:
    """The settings of one reference run."""
    return {**SMALL, **EXTRA.get(name, {"method": name})}


def first_settings_of(name: str) -> dict[str, Any]:
    """The settings that one reference run had in the first version."""
    return {**settings_of(name), **FIRST.get(name, {}), "numbering": "environment"}


def names() -> list[str]:
    return [*covey.methods.names(), *EXTRA]


def processor() -> str:
    """What decides the bits of a result: processor, operating system and torch."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith(("model name", "flags"))]
        model = hashlib.sha256("\n".join(sorted(set(lines))).encode()).hexdigest()[:16]
    return f"{platform.machine()} {model} torch {torch.__version__}"


def record_of(run: covey.Run) -> dict[str, Any]:
    """A run's rounds without timings and later fields, and the digest of its checkpoint."""
    rows = [{key: value for key, value in row.items() if key not in (*TIMINGS, *LATER)} for row in run.metrics]
    return {"metrics": rows, "checkpoint": _digest(run.folder)}


def _digest(folder: Path) -> str:
    """Return the digest of a checkpoint, as it is with every tensor written whole: later versions shorten long ones."""
    from covey.core import checkpoint

    written = folder / "checkpoint.safetensors"
    if b'.places"' in written.read_bytes()[: 1 << 20]:
        done, state = checkpoint.read_checkpoint(folder)
        assert state is not None
        longest, checkpoint._LONG = checkpoint._LONG, 1 << 62
        try:
            with tempfile.TemporaryDirectory() as place:
                checkpoint.write_checkpoint(Path(place), done, state)
                return hashlib.sha256((Path(place) / written.name).read_bytes()).hexdigest()
        finally:
            checkpoint._LONG = longest
    return hashlib.sha256(written.read_bytes()).hexdigest()


def make(settings: dict[str, Any], way: str, folder: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record_of(covey.run(settings, **WAYS[way], out=folder))


def make_folders(to: Path) -> None:
    """A run that stopped half-way, a finished one, a comparison and an on-demand job."""
    shutil.rmtree(to, ignore_errors=True)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    small_agent = {"method": "feddrl", "aggregator": {"hidden": 8}}
    for name in ("fedacs", "feddrl", "mocha", "nccb", "ondemand"):
        given = {**SMALL, **(small_agent if name == "feddrl" else {"method": name})}
        with suppress(KeyboardInterrupt):
            covey.run(given, out=to / f"stopped-{name}", on_round=stop)
    covey.run({**SMALL, "method": "ondemand"}, out=to / "finished")
    covey.compare(["fedavg", "fedacs", "iid"], seeds=2, out=to / "comparison", **{**SMALL, "rounds": 3})
    covey.ondemand(to / "finished", target="0=0.5,3=0.5", out=to / "ondemand", rounds=2)


def main() -> None:
    torch.set_num_threads(1)
    if "--folders" in sys.argv:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.chdir(HERE)
            make_folders(Path("folders"))
        return
    records: dict[str, Any] = {"processor": processor(), "runs": {}}
    with tempfile.TemporaryDirectory() as place:
        for name in names():
            records["runs"][name] = {way: make(settings_of(name), way, Path(place) / f"{name}-{way}") for way in WAYS}
            print(name, file=sys.stderr)
    text = json.dumps(records, allow_nan=False)
    (HERE / "records.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
