"""Names of clients: as users write them, and in a file of a live run's folder, whose records number them."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from covey.errors import Refusal, require
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


def client_number(word: str | int, clients: int, names: Sequence[str] = ()) -> int:
    """Return the number of the client called `word`, or of the client with that number; refuse an unknown one."""
    text = str(word).strip()
    if text in names:
        return list(names).index(text)
    if text.isdecimal() and int(text) < clients:
        return int(text)
    close = difflib.get_close_matches(text, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    known = f"Clients: {listed}; or by number, 0" if names else "Clients are 0"
    raise Refusal(f"There is no client '{text}'.{hint} {known} to {clients - 1}.")


def client_numbers(words: str | Sequence[str | int], clients: int, names: Sequence[str] = ()) -> list[int]:
    """Return the numbers of clients given as a list, or as text with commas between names or numbers; ascending."""
    given = [word for word in words.split(",") if word.strip()] if isinstance(words, str) else list(words)
    numbers = sorted({client_number(word, clients, names) for word in given})
    require(len(numbers) < clients, "All clients are left out, so there is none to compose a mix from.")
    return numbers
