"""A strategy's run folder: a line for each round with its faults, the state to go on from; `covey report` reads it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from covey.config.schema import GIVEN, Config, require_same
from covey.core.checkpoint import FORMAT, read_checkpoint
from covey.core.interfaces import Method
from covey.core.messages import Order
from covey.core.records import Records, describe_machine, read_config, read_metrics
from covey.core.replies import Replies
from covey.core.round_record import RoundRecord, round_record
from covey.core.stall_warning import warn_of_stall
from covey.errors import require
from covey.model.layout import Layout
from covey.storage import replace_file, write_json


class RunFolder:
    """A folder that a strategy writes after every round, and goes on from when it is started again."""

    def __init__(self, folder: Path, config: Config, layout: Layout) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        # The clients' data are their own business, so nothing is said of a data set.
        unknown = {"dataset": {"name": GIVEN}, "environment": GIVEN, "runtime": "flower"}
        tensors = {slot.name: list(slot.shape) for slot in (*layout.parameters, *layout.buffers)}
        about = {**config.as_mapping(), **unknown}
        if (folder / "config.json").is_file():
            self._require_same(Config.of(about), tensors)
        self.done, self.state = read_checkpoint(folder)
        about["rounds"] = max(config.rounds, self.done)
        write_json(folder / "config.json", {"format": FORMAT, "config": about, "tensors": tensors})
        if not (folder / "environment.json").exists():
            write_json(folder / "environment.json", describe_machine())
        rows = [row for row in read_metrics(folder) if int(row["round"]) <= self.done]
        self.last: Mapping[str, Any] = rows[-1] if rows else {}
        """The line of the last finished round."""
        self._write_rows(rows)
        self._records = Records(folder, self.done, float(rows[-1]["clock"]) if rows else 0.0)
        self._notice = warn_of_stall(folder, None)

    def _require_same(self, config: Config, tensors: Mapping[str, Sequence[int]]) -> None:
        """Refuse a folder of another run; one that is gone on with may have more rounds than it was begun with."""
        before = read_config(self.folder)
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

    def keep(
        self,
        method: Method,
        order: Order,
        replies: Replies,
        asked: Sequence[tuple[Order, Replies]],
        notes: Mapping[str, Any],
    ) -> None:
        """A finished round: its line, then the method's state."""
        waited = {"clients": replies.round_seconds}
        record = round_record(order, replies, None, None, waited, self._records.clock, asked)
        record.update(cast(RoundRecord, notes))
        if figures := method.figures():
            record["figures"] = figures
        self._records.write(record, method.state_dict)
        self._notice(cast(dict[str, Any], record))

    def score(self, t: int, scores: Mapping[str, Any]) -> None:
        """Add what clients found of a round's model to its line."""
        rows = read_metrics(self.folder)
        if rows and rows[-1]["round"] == t:
            found = {name: float(scores[name]) for name in ("accuracy", "loss") if name in scores}
            rows[-1] = {"round": t, **found, "own_accuracy": None, **rows[-1]}
            self._records.close()
            self._write_rows(rows)
            self._records = Records(self.folder, t, float(rows[-1]["clock"]))

    def close(self) -> None:
        self._records.close()

    def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        replace_file(self.folder / "metrics.jsonl", text.encode())
