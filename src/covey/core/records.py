"""Records: the run folder, from which a stopped run resumes.

    config.json             the resolved configuration and the format's version
    environment.json        versions, machine and command
    metrics.jsonl           one line per round, append-only
    checkpoint.safetensors  the method's whole state after the last round, replaced atomically
    constants.safetensors   frozen parameters of the model, if it has any
    kept/                   what simulated clients keep, in segments that the checkpoint refers to

A round is first appended to the metrics, then the checkpoint is replaced. A run killed between the two has one line too
many; resuming removes that line and computes the round again, to the same bits.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

import covey
from covey.arrays import State
from covey.config.schema import Config
from covey.core.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from covey.core.given_parts import hold_again
from covey.core.interrupt import withdraw_stop
from covey.core.model_constants import FILE as CONSTANTS
from covey.core.model_constants import write_constants
from covey.core.printable_text import printable
from covey.core.round_record import RoundRecord, read_record
from covey.core.scores import EvaluationScores, finite
from covey.errors import Refusal, require
from covey.storage import LOCK, FolderLock, open_plain, read_json, replace_file, write_json
from covey.trust import Trust

_BEFORE_A_RUN = ("environment.json", "environment.json.part", CONSTANTS, f"{CONSTANTS}.part", "config.json.part", LOCK)
"""Files that a run may leave if it is killed before it writes its configuration."""


def _json_value(value: Any) -> Any:
    """Return a record as JSON can hold it: NaN and infinities become None."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {name: _json_value(item) for name, item in value.items()}
    return [_json_value(item) for item in value] if isinstance(value, (list, tuple)) else value


class Records:
    """Writes a run folder, and keeps other writers out of it until it is closed."""

    checkpoint_seconds = 0.0
    """Least seconds between two checkpoints; 0 writes one every round. Sweeps of many runs raise it."""
    checkpoint_share = 1.0
    """Largest share of the time spent on checkpoints, if not every round has one; those of many models are large."""
    longest_pause = 300.0
    """Most seconds between two checkpoints, however long one takes: the work that a killed sweep may lose."""
    on_checkpoint: Callable[[], None] | None = None
    """Called whenever a checkpoint is on disk."""

    def __init__(self, folder: Path, rounds_done: int, clock: float = 0.0, *, lock: FolderLock | None = None) -> None:
        self._lock = lock
        self.folder = folder
        self.rounds_done = rounds_done
        self.clock = clock
        self._last_checkpoint = time.monotonic()
        self._pause = 0.0
        self._taking = 0.0
        """Seconds that it took to get the state to write next."""
        self._metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    @classmethod
    def create(cls, folder: Path, config: Config, module: nn.Module | None = None) -> "Records":
        """Create a run folder, with what `module` has beside its state; refuse one that is not empty."""
        require_unused(folder)
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(FolderLock(folder, "output folder"))
                # Another process may have begun a run since.
                require_unused(folder)
                write_json(folder / "environment.json", describe_machine())
                if module is not None:
                    write_constants(folder, config.model.name, module)
                write_json(folder / "config.json", {"format": FORMAT, "config": config.as_mapping()})
                made = cls(folder, 0, lock=lock)
            except OSError as error:
                raise _unwritable(folder, error) from error
            stack.pop_all()
        return made

    @classmethod
    def reopen(cls, folder: Path, config: Config | None = None) -> tuple["Records", State | None]:
        """Open a run folder to resume, and return it with the state in its checkpoint (None before the first).

        A `config` replaces the one of the folder: that of a run with more rounds.
        """
        stored = config or read_config(folder)
        with ExitStack() as stack:
            lock = stack.enter_context(FolderLock(folder))
            withdraw_stop(folder)
            done, state = read_checkpoint(folder)
            rows = [_as_planned(row, stored) for row in read_metrics(folder) if int(row["round"]) <= done]
            require(
                len(rows) == done,
                f"The run folder {folder} has lost records: its checkpoint is of round {done}, and metrics.jsonl has "
                f"{len(rows)} of its rounds. Put that file back, or begin another run.",
            )
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            try:
                if config is not None:
                    write_json(folder / "environment.json", {**environment_of(folder), "extended": config.rounds})
                    write_json(folder / "config.json", {"format": FORMAT, "config": config.as_mapping()})
                replace_file(folder / "metrics.jsonl", text.encode())
                opened = cls(folder, done, float(rows[-1].get("clock", 0.0)) if rows else 0.0, lock=lock)
            except OSError as error:
                raise Refusal(f"The run folder {folder} cannot be written: {error.strerror or error}.") from error
            stack.pop_all()
        return opened, state

    def state_due(self, state: Callable[[], State], *, now: bool = True) -> State | None:
        """Return the method's state if a checkpoint is to be written with the round that has ended, else None."""
        begin = time.monotonic()
        if not now and begin - self._last_checkpoint < max(self.checkpoint_seconds, self._pause):
            return None
        with self._writing():
            found = state()
        self._taking = time.monotonic() - begin
        return found

    def write(self, record: RoundRecord, state: State | None) -> None:
        """Write a finished round: its line, then a checkpoint if there is a `state` (that of `state_due`)."""
        with self._writing():
            self._write(record, state)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse what cannot be written to the folder."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            require(self.folder.is_dir(), f"The run folder {self.folder} was removed while the run wrote to it.")
            raise Refusal(
                f"The run folder {self.folder} cannot be written: {error}. Once it can, resume with: "
                f"covey resume {self.folder}"
            ) from error

    def _write(self, record: RoundRecord, state: State | None) -> None:
        self._metrics.write(json.dumps(_json_value(record), allow_nan=False) + "\n")
        self._metrics.flush()
        self.rounds_done = record["round"]
        self.clock = record["clock"]
        if state is None:
            return
        begin = time.monotonic() - self._taking
        # The line must be on disk before the checkpoint is, even if the machine loses power.
        os.fsync(self._metrics.fileno())
        write_checkpoint(self.folder, self.rounds_done, state)
        if self.on_checkpoint is not None:
            self.on_checkpoint()
        self._last_checkpoint = time.monotonic()
        if self.checkpoint_seconds:
            self._pause = min(self.longest_pause, (self._last_checkpoint - begin) / self.checkpoint_share)

    def close(self) -> None:
        self._metrics.close()
        if self._lock is not None:
            self._lock.release()


def _as_planned(row: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return a record without scores if its round is evaluated only where a run ends, and this one goes on."""
    t = int(row["round"])
    if t == config.rounds or t % config.evaluate_every == 0:
        return row
    return {name: value for name, value in row.items() if name not in EvaluationScores.__annotations__}


def require_unused(folder: Path) -> None:
    """Refuse an output folder that is a file or not empty."""
    try:
        require(not folder.exists() or folder.is_dir(), f"The output folder {folder} is a file; choose another.")
        if folder.exists() and any(path.name not in _BEFORE_A_RUN for path in folder.iterdir()):
            raise Refusal(
                f"The output folder {folder} is not empty. Choose another, or resume with: covey resume {folder}"
            )
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> Refusal:
    return Refusal(f"The output folder {folder} cannot be written: {error.strerror or error}.")


def read_config(folder: Path, *, trust: Trust = False) -> Config:
    """Read the configuration of a run folder, or refuse and say why it is not one.

    Code of somebody's own that it names is imported only if `trust` allows it.
    """
    return Config.stored(_read_config_file(folder)[1], trust=trust, folder=folder)


def with_parts_again(folder: Path, parts: Mapping[str, Any], trust: Trust) -> Trust:
    """Take parts again that a folder's run was given as Python objects (section → object); return what is trusted.

    A part that the folder names by its place, `package.module:name`, is trusted by being given.
    """
    given = {section: part for section, part in parts.items() if part is not None}
    if not given:
        return trust
    settings = _read_config_file(folder)[1]
    typed: list[str] = []
    for section, part in given.items():
        name = settings.get(section) if section == "method" else (settings.get(section) or {}).get("name")
        typed += hold_again(section, str(name), part, str(folder))
    return trust if trust is True else [*(trust or ()), *typed]


def folder_format(folder: Path) -> int:
    """Return the version of a run folder: `FORMAT` if there is no run in it yet.

    A run of an earlier version keeps the settings that held then, so what it is resumed with is read as earlier too.
    """
    return _read_config_file(folder)[0] if (folder / "config.json").is_file() else FORMAT


def _read_config_file(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return a run folder's version and its settings as they are written."""
    path = folder / "config.json"
    if not path.is_file():
        hint = ""
        if (folder / "compare.json").is_file():
            hint = (
                " It holds a comparison: covey.Comparison.open reads it, and covey.compare with the same arguments, or "
                f"covey resume {folder}, continues it."
            )
        raise Refusal(f"{folder} is not a run folder: it has no config.json.{hint}")
    try:
        data = read_json(path.read_text(encoding="utf-8"))
        found = int(data["format"])
        mapping = data["config"]
        require(isinstance(mapping, dict), "its settings are no mapping")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise Refusal(f"{folder} is not a run folder: its config.json cannot be read ({error}).") from error
    if found > FORMAT:
        raise Refusal(f"{folder} was made by a newer version of Covey (format {found}; this one reads up to {FORMAT}).")
    return found, mapping


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the rounds of a run folder; a last line that was cut off is left out, and any other damage refused."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        with open_plain(path, links=True) as file:
            *lines, _ = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror or error}.") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row: dict[str, Any] = {**read_record(line)}
            require(row["round"] > (rows[-1]["round"] if rows else 0), "its round does not follow the line before")
            classes = {len(one["class_accuracy"]) for one in (row, *rows[-1:]) if "class_accuracy" in one}
            require(len(classes) <= 1, "it has other classes than the line before")
            require(len({"clock" in one for one in (row, *rows[-1:])}) == 1, "only some lines have a clock")
        except ValueError as error:
            raise Refusal(f"{path} is damaged: line {number} is no record of a round ({error}).") from error
        rows.append(row)
    return rows


def describe_machine() -> dict[str, object]:
    """Return versions, machine and command, to understand a result later."""
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


def made_by(folder: Path) -> str:
    """Return the commands that began and extended a run; empty if it was no command, or is not known."""
    words = environment_of(folder).get("command")
    if not isinstance(words, list) or not words or Path(str(words[0])).name not in ("covey", "__main__.py"):
        return ""
    return printable(shlex.join(["covey", *map(str, words[1:])]) + extended_by(folder))


def extended_by(folder: Path) -> str:
    """Return the command that extended a run to its last number of rounds, to append to the one that began it."""
    rounds = environment_of(folder).get("extended")
    return (
        f" && {shlex.join(['covey', 'resume', str(folder), '--rounds', str(rounds)])}"
        if isinstance(rounds, int)
        else ""
    )


def environment_of(folder: Path) -> dict[str, Any]:
    """Return a run folder's record of its machine; empty if it cannot be read."""
    try:
        with open_plain(folder / "environment.json", links=True) as file:
            about = read_json(file.read())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _commit() -> str | None:
    """Return the commit of the source tree that Covey runs from; None outside one."""
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
