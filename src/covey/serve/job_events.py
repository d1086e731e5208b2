"""What happened to a job, in a file of its folder: a line is an event, and its number the event's identity."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from covey.job.run_index import member_runs
from covey.serve.round_tail import RoundTail
from covey.storage import read_json

_FILE = "events.jsonl"

_KEPT = ("round", "accuracy", "score", "metric", "loss")
"""What an event tells of a round's record."""

_PAUSE = 1.0
"""Seconds between two looks for new runs of a job."""


class JobEvents:
    """The events of all jobs: states, and rounds of their runs."""

    def __init__(self, place: Callable[[str], Path]) -> None:
        self._place = place
        self._tails: dict[str, dict[str, RoundTail]] = {}
        self._looked: dict[str, float] = {}

    def add(self, job: str, event: Mapping[str, Any]) -> None:
        """Add an event."""
        with (self._place(job) / _FILE).open("ab+") as file:
            cut = False
            if file.tell():
                file.seek(-1, os.SEEK_END)
                cut = file.read(1) != b"\n"
            # A line that a kill cut off is ended here, and counts as one that cannot be read.
            file.write((b"\n" if cut else b"") + json.dumps(dict(event)).encode() + b"\n")

    def size(self, job: str) -> int:
        """Return a number that grows with every event."""
        try:
            return (self._place(job) / _FILE).stat().st_size
        except OSError:
            return 0

    def of(self, job: str, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Return the events of a job after one, with their numbers, from 1."""
        path = self._place(job) / _FILE
        if not path.is_file():
            return []
        *lines, _ = path.read_bytes().split(b"\n")
        found = []
        for number, line in enumerate(lines, start=1):
            if number > after:
                try:
                    found.append((number, read_json(line)))
                except ValueError:
                    found.append((number, {"event": "lost"}))
        return found

    def follow(self, job: str, folder: Path | None, *, last: bool = False) -> None:
        """Add the rounds that the runs of a job have ended since; new runs are looked for now and then, and `last`."""
        if folder is None:
            return
        tails = self._tails.get(job)
        if tails is None:
            said = [event for _, event in self.of(job) if event.get("event") == "round"]
            tails = self._tails[job] = {}
            for event in said:
                tails[event["run"]] = RoundTail(folder / event["run"] / "metrics.jsonl", int(event["round"]))
        if last or time.monotonic() - self._looked.get(job, -_PAUSE) >= _PAUSE:
            self._looked[job] = time.monotonic()
            for label, run in member_runs(folder):
                tails.setdefault(label, RoundTail(run / "metrics.jsonl"))
        for label, tail in tails.items():
            for record in tail.read():
                kept: dict[str, Any] = {key: record[key] for key in _KEPT if key in record}
                self.add(job, {"event": "round", "run": label} | kept)
