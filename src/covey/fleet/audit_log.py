"""A fleet's audit log: who registered, joined, was refused, opened and stopped runs. JSON lines, only ever appended."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from covey.core.printable_text import printable
from covey.errors import Refusal
from covey.storage import open_unlinked, read_json

AUDIT = "audit.jsonl"
"""The log in a fleet's folder."""


def note_event(folder: Path, event: str, **facts: Any) -> None:
    """Append an event to the log of a fleet's folder, with the time (UTC); facts that are None are left out."""
    known = {name: printable(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event}
    line |= {name: fact for name, fact in known.items() if fact is not None}
    text = (json.dumps(line, ensure_ascii=False) + "\n").encode(errors="replace")
    try:
        handle = open_unlinked(folder / AUDIT, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            # A line that a full disk or a power cut left incomplete ends here, and this one is not lost with it.
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            # One write in append mode: lines of several processes do not mix.
            os.write(handle, b"\n" * torn + text)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise Refusal(f"The audit log {folder / AUDIT} cannot be written: {error.strerror or error}.") from error


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a fleet, oldest first. A line that a power cut left incomplete is left out."""
    try:
        lines = (folder / AUDIT).read_bytes().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refusal(f"The audit log {folder / AUDIT} cannot be read: {error.strerror or error}.") from error
    return [event for line in lines if (event := _event(line)) is not None]


def sentence(event: Mapping[str, Any]) -> str:
    """Return an event without its time as one line."""
    facts = [f"{name} {printable(str(fact))}" for name, fact in event.items() if name not in ("time", "event")]
    return ", ".join([printable(str(event.get("event", "?"))), *facts])


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = read_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
