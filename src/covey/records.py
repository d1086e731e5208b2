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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.config import Config
from covey.environments import FloatArray
from covey.errors import Refusal, require
from covey.evaluation import finite
from covey.messages import Fault, Order, Replies
from covey.roles import State

FORMAT = 1
"""Version of the run folder; a folder with a higher one is refused."""

_BEFORE_A_RUN = ("environment.json", "environment.json.part", "config.json.part")
"""All that a folder holds whose run was killed before it had a configuration."""

TIMINGS = ("seconds", "probe_seconds")
"""Fields of a record that differ between two runs of the same seed."""


class Stopwatch:
    """Seconds by phase: `with watch("clients"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin


def round_record(
    order: Order,
    replies: Replies,
    scores: Mapping[str, object] | None,
    skew: FloatArray,
    seconds: Mapping[str, float],
    clock: float = 0.0,
    asked: Sequence[tuple[Order, Replies]] = (),
) -> dict[str, object]:
    """One round as a line of metrics. `skew` is the true skew of each client `[clients]`.

    `clock` is the simulated time at which the round began, `asked` what was measured before it.
    """
    answers = [replies, *(answer for _, answer in asked)]
    probe_bytes: Counter[str] = Counter()
    probe_seconds: Counter[str] = Counter()
    for answer in answers:
        probe_bytes.update(answer.probe_bytes)
        probe_seconds.update(answer.probe_seconds)
    faults = [fault for answer in answers for fault in answer.faults]
    samples = replies.samples.double()
    trained = order.train and len(replies) > 0
    loss = float((replies.losses * samples).sum() / samples.sum()) if trained else float("nan")
    return {
        "round": order.round,
        **(scores or {}),
        "train_loss": finite(loss),
        "clients": order.clients.tolist(),
        "cohort_skew": float(skew[order.clients].mean()) if len(order.clients) else None,
        "dropped": [_said(fault) for fault in faults if fault.measurement is None],
        "unmeasured": [_said(fault) for fault in faults if fault.measurement is not None],
        "withheld": replies.withheld.tolist(),
        "bytes_up": sum(answer.bytes_up for answer in answers),
        "bytes_down": order.bytes_down() + sum(survey.bytes_down() for survey, _ in asked),
        "probe_bytes": dict(probe_bytes),
        "clock": clock + sum(answer.round_seconds for answer in answers),
        "seconds": {phase: round(value, 6) for phase, value in seconds.items()},
        "probe_seconds": {probe: round(value, 6) for probe, value in probe_seconds.items()},
        **({"client_loss": fairness} if (fairness := client_loss(replies)) else {}),
    }


def client_loss(replies: Replies) -> dict[str, float]:
    """How well, and how evenly, the model that was sent serves the round's clients, where they have measured that.

    Mean and variance of its losses on each client's own samples, and the gap from the lowest to the highest.
    """
    for probe, field in (("losses", "before"), ("utility", "loss")):
        rows = replies.observed(probe)
        if len(rows):
            losses = replies.probes[probe][field].double().cpu().numpy()[rows]
            return {
                "mean": float(losses.mean()),
                "variance": float(losses.var()),
                "gap": float(losses.max() - losses.min()),
            }
    return {}


def _sayable(value: Any) -> Any:
    """A record as JSON can say it: what is not a finite number is none."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {name: _sayable(item) for name, item in value.items()}
    return [_sayable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _said(fault: Fault) -> dict[str, object]:
    return {"client": fault.client, "reason": fault.reason}


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

    def write(self, record: Mapping[str, object], state: Callable[[], State], *, now: bool = True) -> None:
        """Keep a finished round: its line, then (`now`, or when it is time again) the state to go on from."""
        try:
            self._write(record, state, now)
        except (OSError, SafetensorError) as error:
            raise Refusal(
                f"The run folder {self.folder} cannot be written: {error}. Once it can, go on with: "
                f"covey resume {self.folder}"
            ) from error

    def _write(self, record: Mapping[str, object], state: Callable[[], State], now: bool) -> None:
        self._metrics.write(json.dumps(_sayable(record), allow_nan=False) + "\n")
        self._metrics.flush()
        self.rounds_done = int(str(record["round"]))
        self.clock = float(str(record["clock"]))
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


def write_checkpoint(folder: Path, rounds_done: int, state: State) -> None:
    """The method's state in one safetensors file: tensors as tensors, all else as JSON in its header."""
    tensors: dict[str, Tensor] = {}
    rest = _split(state, "", tensors)
    path = folder / "checkpoint.safetensors"
    beside = path.with_suffix(".part")
    # One entry only: the format writes several in random order, and the same state shall give the same bytes.
    header = {"format": FORMAT, "round": rounds_done, "state": rest}
    save_file(tensors, str(beside), {"covey": json.dumps(header, allow_nan=False)})
    with beside.open("rb") as written:
        os.fsync(written.fileno())
    beside.replace(path)


def has_checkpoint(folder: Path) -> bool:
    return (folder / "checkpoint.safetensors").exists()


def checkpoint_round(folder: Path) -> int:
    """Rounds done at the checkpoint; 0 where there is none."""
    if not has_checkpoint(folder):
        return 0
    with _opened(folder) as file:
        return int(json.loads(file.metadata()["covey"])["round"])


def read_checkpoint(folder: Path) -> tuple[int, State | None]:
    """Rounds done and the method's state; (0, None) where no round was finished."""
    if not has_checkpoint(folder):
        return 0, None
    with _opened(folder) as file:
        header = json.loads(file.metadata()["covey"])
        # Clones, since what the file hands out may live in the mapped file itself.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        return int(header["round"]), _join(header["state"], tensors)


@contextmanager
def _opened(folder: Path) -> Iterator[Any]:
    """The file of a checkpoint; what cannot be read of it is refused."""
    path = folder / "checkpoint.safetensors"
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise Refusal(f"The checkpoint {path} is damaged and cannot be read ({error}).") from error


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """`value` with its tensors and arrays moved to `tensors`, a reference left in their place."""
    if isinstance(value, Mapping):
        return {
            str(name): _split(item, f"{path}.{name}" if path else str(name), tensors) for name, item in value.items()
        }
    if isinstance(value, (Tensor, np.ndarray)):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
        tensors[path] = tensor.detach().cpu().contiguous()
        return {"$": kind, "path": path}
    if isinstance(value, float) and not np.isfinite(value):
        return {"$": "number", "value": str(value)}
    return value


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.get("$") == "number":
            return float(value["value"])
        if "$" in value:
            tensor = tensors[value["path"]]
            return tensor if value["$"] == "tensor" else tensor.numpy()
        return {name: _join(item, tensors) for name, item in value.items()}
    return value


def write_json(path: Path, value: object) -> None:
    replace_file(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that nobody ever sees half of it."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


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
    here = Path(__file__).resolve().parent
    if here.parent.name != "src":
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
