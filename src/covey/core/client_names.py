"""Names of a live run's clients, in a file of the run folder; its records number them."""

import json
from collections.abc import Sequence
from pathlib import Path

from covey.storage import write_json

_FILE = "names.json"


def write_names(folder: Path, names: Sequence[str]) -> None:
    """Write the names of clients 0, 1, … to a run folder, unless they are there."""
    if not (folder / _FILE).exists():
        write_json(folder / _FILE, list(names))


def read_names(folder: Path) -> dict[int, str]:
    """Return client → name; empty if the run folder has none."""
    path = folder / _FILE
    return dict(enumerate(json.loads(path.read_text(encoding="utf-8")))) if path.is_file() else {}
