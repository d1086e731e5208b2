"""Rounds and jobs as server-sent events.

The identity of an event says how far every run is, so a reader that lost the connection goes on where it was: for one
run it is the round, for a job of several the round of each, such as `fedavg/seed-0:12;iid/seed-0:7`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.core.client_names import read_names
from covey.errors import Refusal
from covey.job.run_index import RunIndex, member_runs
from covey.job.run_summary import RunSummary
from covey.serve.job_queue import JobQueue
from covey.serve.round_tail import RoundTail
from covey.task.run_metric import metric_of

GONE = "Its folder is no longer there."

PAUSE = 0.08
"""Seconds between two looks at a run's records."""

_LOOK_AROUND = 1.0
"""Seconds between two looks for new runs, and at the state."""

_SILENCE = 15.0
"""Seconds of silence after which a comment is sent, so that nobody takes the connection for dead."""

_FIELDS = (
    *("round", "accuracy", "loss", "class_accuracy", "own_accuracy", "raw_accuracy", "train_loss", "clients"),
    *("score", "metric", "better", "metrics", "raw_score"),
    *("dropped", "unmeasured", "away", "resting", "attackers", "bytes_up", "bytes_down", "seconds", "clock"),
)
"""What a page needs of a record."""


class Counters:
    """What the server has done, for its metrics."""

    def __init__(self) -> None:
        self.requests = 0
        self.events = 0
        self.watching = 0

    def asked(self) -> None:
        """Count a request."""
        self.requests += 1


def framed(event: str, data: Mapping[str, Any], id_: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = f"event: {event}\n" + (f"id: {id_}\n" if id_ is not None else "")
    return f"{head}data: {json.dumps(dict(data), separators=(',', ':'))}\n\n".encode()


def positions(id_: str) -> dict[str, int]:
    """Return run → round as an event's identity tells; nothing for what is no identity."""
    found = {}
    for part in id_.split(";") if len(id_) < 100_000 else ():
        label, _, number = part.rpartition(":")
        if number.isascii() and number.isdecimal() and len(number) < 10:
            found[label] = int(number)
    return found


def _identity(tails: Mapping[str, RoundTail]) -> str:
    return ";".join(f"{label}:{tail.last}" if label else str(tail.last) for label, tail in tails.items())


async def run_events(
    place: Path, path: str, index: RunIndex, queue: JobQueue, counters: Counters, last: str = ""
) -> AsyncIterator[bytes]:
    """Yield the rounds of a run, or of the runs of a job, as they end, and its state as it changes."""
    known, tails = positions(last), dict[str, RoundTail]()
    state: dict[str, Any] = {}
    looked = spoke = -1e9
    counters.watching += 1
    try:
        while True:
            now = time.monotonic()
            if now - looked >= _LOOK_AROUND:
                looked = now
                for label, run in member_runs(place):
                    if label not in tails:
                        tails[label] = RoundTail(run / "metrics.jsonl", known.get(label, 0))
                        yield framed("member", {"run": label, "path": _below(path, label), "names": _names(run)})
                found = state_of(path, index.one(path), queue)
                if found != state:
                    state, spoke = found, now
                    yield framed("state", state)
            sent = False
            for label, tail in tails.items():
                before = tail.last
                for record in tail.read():
                    # The tail has read on already: what the identity tells of it is this very round.
                    whole = tail.last
                    tail.last = record["round"]
                    frame = framed("round", {"run": label, **shortened(record)}, _identity(tails))
                    tail.last = whole
                    counters.events += 1
                    yield frame
                sent = sent or tail.last != before
            if sent:
                spoke = now
            elif now - spoke > _SILENCE:
                spoke = now
                yield b": still here\n\n"
            await asyncio.sleep(PAUSE)
    finally:
        counters.watching -= 1


async def job_events(queue: JobQueue, id_: str, counters: Counters, last: str = "") -> AsyncIterator[bytes]:
    """Yield the events of a job, from the one after `last`, until it is over."""
    at = positions(last).get("", 0)
    size, spoke = -1, time.monotonic()
    while True:
        over = queue.job(id_).over
        now = time.monotonic()
        if (grown := queue.events.size(id_)) != size:
            size = grown
            for number, event in queue.events.of(id_, at):
                at, spoke = number, now
                counters.events += 1
                yield framed(str(event.get("event", "state")), event, str(number))
        if over:
            yield framed("end", queue.job(id_).as_mapping())
            return
        if now - spoke > _SILENCE:
            spoke = now
            yield b": still here\n\n"
        await asyncio.sleep(PAUSE)


def shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page needs of a round's record."""
    kept = {key: record[key] for key in _FIELDS if key in record}
    if isinstance(figures := record.get("figures"), Mapping):
        spent = {key: value for key, value in figures.items() if "epsilon" in key and isinstance(value, (int, float))}
        kept |= {"privacy": spent} if spent else {}
    if "metric" in kept:
        metric = metric_of([kept])
        kept |= {"label": metric.label, "share": metric.share}
    return kept


def state_of(path: str, line: RunSummary | None, queue: JobQueue) -> dict[str, Any]:
    """Return the state of a run or job of runs: from its folder, and from the job that makes it."""
    job = queue.writing(path)
    state = "waiting" if line is None else line.state
    error = None if job is None else job.error
    if job is not None and not job.over and state != "running":
        state = "waiting" if job.state == "waiting" else "running"
    elif job is not None and line is None:
        # It failed before there was a folder, or the folder has been removed since.
        state = job.state
        error = error or (GONE if state == "done" else None)
    elif line is None:
        state, error = "removed", GONE
    return {
        "state": state,
        "done": 0 if line is None else line.done,
        "rounds": 0 if line is None else line.rounds,
        "job": None if job is None else job.id,
        "job_state": None if job is None else job.state,
        "error": error,
    }


def _below(path: str, label: str) -> str:
    return f"{path}/{label}" if label else path


def _names(run: Path) -> Sequence[str]:
    try:
        return list(read_names(run).values())
    except Refusal:
        return []
