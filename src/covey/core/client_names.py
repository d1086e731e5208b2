"""Names of a live run's clients, in a file of the run folder; its records number them."""

from collections.abc import Sequence
from pathlib import Path

from covey.errors import Refusal
from covey.storage import misfit, read_json, write_json

_FILE = "names.json"


def write_names(folder: Path, names: Sequence[str]) -> None:
    """Write the names of clients 0, 1, … to a run folder, unless they are there."""
    if not (folder / _FILE).exists():
        write_json(folder / _FILE, list(names))


def read_names(folder: Path) -> dict[int, str]:
    """Return client → name; empty if the run folder has none."""
    path = folder / _FILE
    if not path.is_file():
        return {}
    try:
        names = read_json(path.read_text(encoding="utf-8"))
        fault = misfit(names, list[str], "its content")
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault:
        raise Refusal(f"The names of the clients in {path} cannot be read ({fault}).")
    return dict(enumerate(names))
