"""A strategy's run folder: a line for each round with its faults, the state to go on from; `covey report` reads it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.config import Config
from covey.federations import GIVEN
from covey.messages import Order, Replies
from covey.records import (
    FORMAT,
    Records,
    describe_machine,
    read_checkpoint,
    read_metrics,
    replace_file,
    round_record,
    write_json,
)
from covey.roles import Method


class RunFolder:
    """A folder that a strategy writes after every round, and goes on from when it is started again."""

    def __init__(self, folder: Path, config: Config) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.done, self.state = read_checkpoint(folder)
        # The clients' data are their own business, so nothing is said of a data set.
        unknown = {"dataset": {"name": GIVEN}, "environment": GIVEN, "runtime": "flower"}
        about = {"format": FORMAT, "config": {**config.as_mapping(), **unknown}}
        write_json(folder / "config.json", about)
        if not (folder / "environment.json").exists():
            write_json(folder / "environment.json", describe_machine())
        rows = [row for row in read_metrics(folder) if int(row["round"]) <= self.done]
        self._write_rows(rows)
        self._records = Records(folder, self.done, float(rows[-1]["clock"]) if rows else 0.0)

    def keep(
        self,
        method: Method,
        order: Order,
        replies: Replies,
        asked: Sequence[tuple[Order, Replies]],
        notes: Mapping[str, Any],
    ) -> None:
        """A finished round: its line, then the method's state."""
        nothing = np.zeros(len(method.model_of_client))
        waited = {"clients": replies.round_seconds}
        record = round_record(order, replies, None, nothing, waited, self._records.clock, asked)
        record |= {"cohort_skew": None, **notes}
        record |= {"figures": figures} if (figures := method.figures()) else {}
        self._records.write(record, method.state_dict)

    def score(self, round: int, scores: Mapping[str, Any]) -> None:
        """Add what clients found of a round's model to its line."""
        rows = read_metrics(self.folder)
        if rows and rows[-1]["round"] == round:
            found = {name: float(scores[name]) for name in ("accuracy", "loss") if name in scores}
            rows[-1] = {"round": round, **found, "own_accuracy": None, **rows[-1]}
            self._records.close()
            self._write_rows(rows)
            self._records = Records(self.folder, round, float(rows[-1]["clock"]))

    def close(self) -> None:
        self._records.close()

    def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        replace_file(self.folder / "metrics.jsonl", text.encode())
