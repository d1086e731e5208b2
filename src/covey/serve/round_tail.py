"""New rounds of a run, read from the end of its records as they are written."""

from pathlib import Path
from typing import Any

from covey.core.round_record import RoundRecord
from covey.storage import misfit, open_plain, read_json

_MOST = 16 << 20
"""Bytes that are read at once."""


class RoundTail:
    """Follows one file of records; a look at a file that has not changed costs one call of the system."""

    def __init__(self, path: Path, after: int = 0) -> None:
        self.path = path
        self.last = after
        """The last round that was returned, or that the reader has seen elsewhere."""
        self._seen: tuple[int, int] | None = None
        self._at = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the rounds that were written since, in order, none twice; lines that are no records are left out."""
        try:
            found = self.path.stat(follow_symlinks=False)
        except OSError:
            return []
        if (found.st_ino, found.st_size) == self._seen:
            return []
        if self._seen is None or found.st_ino != self._seen[0] or found.st_size < self._at:
            # A resumed run replaces its records: rounds that it computes again are known already.
            self._at = 0
        try:
            opened = open_plain(self.path)
        except OSError:
            return []
        with opened as file:
            file.seek(self._at)
            data = file.read(_MOST)
        *lines, rest = data.split(b"\n")
        self._at += len(data) - len(rest)
        self._seen = (found.st_ino, self._at + len(rest)) if len(data) < _MOST else (found.st_ino, -1)
        records = []
        for line in lines:
            try:
                record = read_json(line)
            except ValueError:
                continue
            if misfit(record, RoundRecord, "") is None and record.get("round", 0) > self.last:
                self.last = record["round"]
                records.append(record)
        return records
