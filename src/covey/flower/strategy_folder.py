"""A strategy's run folder: a line for each round with its faults, the state to resume from; `covey report` reads it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.arrays import State
from covey.config.same_settings import require_same
from covey.config.schema import GIVEN, Config
from covey.config.values import own_names
from covey.core.checkpoint import read_checkpoint
from covey.core.records import Records, describe_machine, folder_format, read_config, read_metrics
from covey.core.round_record import RoundRecord
from covey.errors import Refusal, require
from covey.model.layout import Layout
from covey.storage import FolderLock, read_json, replace_file, write_json
from covey.task.learning_task import ACCURACY, Metric


class RoundCount:
    """The records of a strategy without a folder: rounds are counted and nothing is written."""

    def __init__(self) -> None:
        self.rounds_done = 0
        self.clock = 0.0

    def state_due(self, state: Callable[[], State], *, now: bool = True) -> State | None:
        """Return None: no state is kept."""
        return None

    def write(self, record: RoundRecord, state: State | None) -> None:
        """Count a finished round."""
        self.rounds_done, self.clock = record["round"], record["clock"]


class RunFolder:
    """A folder that a strategy writes after every round, and resumes from when it is started again."""

    def __init__(self, folder: Path, config: Config, layout: Layout) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = FolderLock(folder)
        # The server knows nothing of the clients' data.
        unknown = {"dataset": {"name": GIVEN}, "environment": GIVEN, "runtime": "flower"}
        tensors = {slot.name: list(slot.shape) for slot in (*layout.parameters, *layout.buffers)}
        about = {**config.as_mapping(), **unknown}
        written = folder_format(folder)
        if (folder / "config.json").is_file():
            self._require_same(Config.of(about), tensors)
        self.done, self.state = read_checkpoint(folder)
        about["rounds"] = max(config.rounds, self.done)
        write_json(folder / "config.json", {"format": written, "config": about, "tensors": tensors})
        if not (folder / "environment.json").exists():
            write_json(folder / "environment.json", describe_machine())
        rows = [row for row in read_metrics(folder) if int(row["round"]) <= self.done]
        self.last: Mapping[str, Any] = rows[-1] if rows else {}
        """The line of the last finished round."""
        self._write_rows(rows)
        self.records = Records(folder, self.done, float(rows[-1].get("clock", 0.0)) if rows else 0.0)

    def name(self, new: str) -> str:
        """Return what clients call this run: `new` the first time. They keep what they hold under this name."""
        place = self.folder / "name.json"
        if not place.is_file():
            write_json(place, {"name": new})
        try:
            known = read_json(place.read_text(encoding="utf-8"))["name"]
            require(isinstance(known, str) and known.isalnum(), "it holds no name")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refusal(f"{place} cannot be read: {error}.") from error
        return str(known)

    def _require_same(self, config: Config, tensors: Mapping[str, Sequence[int]]) -> None:
        """Refuse a folder of another run; a resumed one may have more rounds than it was begun with."""
        before = read_config(self.folder, trust=own_names(config.as_mapping()).values())
        require_same(
            before,
            replace(config, rounds=before.rounds),
            f"The run in {self.folder}",
            "give the strategy another folder",
        )
        kept = json.loads((self.folder / "config.json").read_text(encoding="utf-8")).get("tensors", tensors)
        require(
            kept == tensors,
            f"The run in {self.folder} is about a model with other tensors: give the strategy that model, or another "
            "folder.",
        )

    def score(self, t: int, scores: Mapping[str, Any], metric: Metric = ACCURACY) -> None:
        """Add the scores that clients report of a round's model to its line."""
        found = {name: float(scores[name]) for name in ("accuracy", "loss") if name in scores}
        if metric == ACCURACY:
            self._add(t, {**found, "own_accuracy": None})
        elif metric.name in scores:
            self._add(t, {"score": scores[metric.name], "metric": metric.name, "better": metric.better, **found})

    def note_unscored(self, t: int, reasons: Mapping[int, str]) -> None:
        """Add the clients that declined to evaluate, and why, to a round's line."""
        if reasons:
            faults = [{"client": client, "reason": reason} for client, reason in sorted(reasons.items())]
            self._add(t, {"unscored": faults})

    def _add(self, t: int, found: Mapping[str, Any]) -> None:
        rows = read_metrics(self.folder)
        if rows and rows[-1]["round"] == t:
            rows[-1] = {"round": t, **found, **rows[-1]}
            self.records.close()
            self._write_rows(rows)
            self.records = Records(self.folder, t, float(rows[-1].get("clock", 0.0)))

    def close(self) -> None:
        self.records.close()
        self._lock.release()

    def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        replace_file(self.folder / "metrics.jsonl", text.encode())
