"""Atomic file writes."""

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically."""
    replace_file(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new, never a part."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
