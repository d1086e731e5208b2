"""What the clients of a live run are called: a file in the run folder, beside records that number them."""

import json
from collections.abc import Sequence
from pathlib import Path

from covey.storage import write_json

_FILE = "names.json"


def write_names(folder: Path, names: Sequence[str]) -> None:
    """Keep the names of clients 0, 1, … in a run folder, unless they are there."""
    if not (folder / _FILE).exists():
        write_json(folder / _FILE, list(names))


def read_names(folder: Path) -> dict[int, str]:
    """Client → name; empty where a run folder holds none."""
    path = folder / _FILE
    return dict(enumerate(json.loads(path.read_text(encoding="utf-8")))) if path.is_file() else {}
