"""Records: the run folder, from which a run that died goes on.

    config.json             the resolved configuration and the format's version
    environment.json        versions, machine and command
    metrics.jsonl           one line per round, only ever appended to
    checkpoint.safetensors  the method's whole state after the last round, replaced atomically

A round is first appended to the metrics, then the checkpoint is replaced. A run killed between the
two has one line too many, which a resume cuts off and computes again, to the same bits.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

import covey
from covey.arrays import State
from covey.config.schema import Config
from covey.core.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from covey.core.round_record import RoundRecord
from covey.core.scores import finite
from covey.errors import Refusal, require
from covey.storage import replace_file, write_json

_BEFORE_A_RUN = ("environment.json", "environment.json.part", "config.json.part")
"""All that a folder holds whose run was killed before it had a configuration."""


def _sayable(value: Any) -> Any:
    """A record as JSON can say it: what is not a finite number is none."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {name: _sayable(item) for name, item in value.items()}
    return [_sayable(item) for item in value] if isinstance(value, (list, tuple)) else value


class Records:
    """A run folder that is being written."""

    checkpoint_seconds = 0.0
    """Least time between two checkpoints; 0 keeps every round. Sweeps of many runs raise it."""
    checkpoint_share = 1.0
    """Most of the time that checkpoints may take where not every round is kept; those of many models are large."""
    longest_pause = 300.0
    """Seconds between two checkpoints at the most, however long one takes: what a sweep that is cut off may lose."""

    def __init__(self, folder: Path, rounds_done: int, clock: float = 0.0) -> None:
        self.folder = folder
        self.rounds_done = rounds_done
        self.clock = clock
        self._last_checkpoint = time.monotonic()
        self._pause = 0.0
        self._metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    @classmethod
    def create(cls, folder: Path, config: Config) -> "Records":
        """A new run folder. Refuses one that holds anything already."""
        try:
            require(not folder.exists() or folder.is_dir(), f"The output folder {folder} is a file; choose another.")
            if folder.exists() and any(path.name not in _BEFORE_A_RUN for path in folder.iterdir()):
                raise Refusal(
                    f"The output folder {folder} is not empty. Choose another, or go on with: covey resume {folder}"
                )
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "environment.json", describe_machine())
            write_json(folder / "config.json", {"format": FORMAT, "config": config.as_mapping()})
            return cls(folder, 0)
        except OSError as error:
            raise Refusal(f"The output folder {folder} cannot be written: {error.strerror or error}.") from error

    @classmethod
    def reopen(cls, folder: Path) -> tuple["Records", State | None]:
        """A run folder to go on with, and the method's state at its checkpoint (None before the first)."""
        read_config(folder)
        done, state = read_checkpoint(folder)
        try:
            rows = [row for row in read_metrics(folder) if int(row["round"]) <= done]
            require(
                len(rows) == done,
                f"The run folder {folder} has lost records: its checkpoint is of round {done}, and metrics.jsonl has "
                f"{len(rows)} of its rounds. Put that file back, or begin another run.",
            )
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            replace_file(folder / "metrics.jsonl", text.encode())
            return cls(folder, done, float(rows[-1]["clock"]) if rows else 0.0), state
        except OSError as error:
            raise Refusal(f"The run folder {folder} cannot be written: {error.strerror or error}.") from error

    def write(self, record: RoundRecord, state: Callable[[], State], *, now: bool = True) -> None:
        """Keep a finished round: its line, then (`now`, or when it is time again) the state to go on from."""
        try:
            self._write(record, state, now)
        except (OSError, SafetensorError) as error:
            raise Refusal(
                f"The run folder {self.folder} cannot be written: {error}. Once it can, go on with: "
                f"covey resume {self.folder}"
            ) from error

    def _write(self, record: RoundRecord, state: Callable[[], State], now: bool) -> None:
        self._metrics.write(json.dumps(_sayable(record), allow_nan=False) + "\n")
        self._metrics.flush()
        self.rounds_done = record["round"]
        self.clock = record["clock"]
        begin = time.monotonic()
        if now or begin - self._last_checkpoint >= max(self.checkpoint_seconds, self._pause):
            # The line shall be there wherever the checkpoint is, even if the machine loses its power.
            os.fsync(self._metrics.fileno())
            write_checkpoint(self.folder, self.rounds_done, state())
            self._last_checkpoint = time.monotonic()
            if self.checkpoint_seconds:
                self._pause = min(self.longest_pause, (self._last_checkpoint - begin) / self.checkpoint_share)

    def close(self) -> None:
        self._metrics.close()


def read_config(folder: Path) -> Config:
    """The configuration of a run folder, or a refusal that says why it is not one."""
    path = folder / "config.json"
    if not path.is_file():
        raise Refusal(f"{folder} is not a run folder: it has no config.json.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = int(data["format"])
        mapping = data["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{folder} is not a run folder: its config.json cannot be read ({error}).") from error
    if found > FORMAT:
        raise Refusal(f"{folder} was made by a newer version of Covey (format {found}; this one reads up to {FORMAT}).")
    return Config.stored(mapping)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run folder; a last line that was cut off in writing is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            break
        rows.append(row)
    return rows


def describe_machine() -> dict[str, object]:
    """Versions, machine and command: what somebody needs to understand a result later."""
    versions = {}
    for package in ("covey", "torch", "numpy", "scipy", "scikit-learn", "safetensors"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": versions,
    }


def _commit() -> str | None:
    """The commit of the source tree that Covey runs from, where it is one."""
    here = Path(covey.__file__).resolve().parent
    if here.parent.name != "src":
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
