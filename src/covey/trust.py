"""Trust: which names in what is read from a folder are code of somebody's own, and who allows it to be imported.

A folder is data. `package.module:name` in it is imported only if the caller says so in the call that reads it
(`--trust`, `trust=True`), and never if the module lies in that folder. Names that the caller types are not concerned.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from covey.errors import Refusal, require

Trust = bool | Collection[str]
"""The code that a folder may name: all of it (True), none (False), or these names alone."""

BUILT_IN = frozenset({"covey.fleet.samples:load", "covey.fleet.site:app"})
"""Parts of Covey that go by `package.module:name`."""

_PATH = re.compile(r"\.*[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_JOBS = ("compare.json", "ondemand.json", "fleet.toml")
"""Files of folders that hold run folders."""

_DATA = ("compare.json", "ondemand.json", "fleet.toml", "site.toml")
"""Files of folders that hold jobs, fleets and sites."""

_searched: list[str] = []
"""Folders that are searched for code of one's own beside `sys.path`."""


def also_search(folder: Path) -> None:
    """Search a folder, too, for code that goes by `package.module:name`; it is searched last."""
    if str(folder) not in _searched:
        _searched.append(str(folder))


def extend_path() -> None:
    """Put the folders that are searched, too, on the import path. Done only once such code is imported.

    Never one that holds data: a library that looks for an optional module would find one there that nobody named.
    """
    sys.path.extend(folder for folder in _searched if folder not in sys.path and not _holds_data(Path(folder)))


def _holds_data(folder: Path) -> bool:
    """True if a folder is that of a run, a job, a fleet or a site, or lies in one."""
    around = (folder.absolute(), *folder.absolute().parents[:2])
    return any((one / name).is_file() for one in around for name in _DATA) or (
        (folder / "config.json").is_file() and (folder / "metrics.jsonl").exists()
    )


def is_path(text: str) -> bool:
    """True if a text is of the form `package.module:name`; nothing else is ever imported by its path."""
    return bool(_PATH.fullmatch(text))


def is_own(name: Any) -> bool:
    """True if a part's name stands for code that would be imported by its path."""
    return isinstance(name, str) and ":" in name and name not in BUILT_IN


def paths_in(value: Any) -> Iterator[str]:
    """Yield the texts in an option's value that could be imported as `package.module:name`."""
    if isinstance(value, str) and value not in BUILT_IN:
        # An option may describe a part with options of its own: average,weighted=false.
        yield from (piece for piece in re.split(r"[,=\s]+", value) if is_own(piece) and is_path(piece))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from paths_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from paths_in(item)


def refused_names(found: Mapping[str, str], trust: Trust, folder: Path) -> dict[str, str]:
    """Return those of the names (by their place in the settings) that a folder may not import.

    A name that is trusted is refused if its module lies in the folder, or in the folder of the job that it is part of.
    """
    allowed = {where: name for where, name in found.items() if trust is True or (trust and name in trust)}
    around = [one for one in folder.absolute().parents[:2] if any((one / job).is_file() for job in _JOBS)]
    whole = around[-1] if around else folder
    for where, name in allowed.items():
        require(
            not _lies_in(name.partition(":")[0], whole.resolve()),
            f"The {where} {name} lies in {whole} itself: code in a folder that is read is not run, trusted or not. If "
            "it is yours, move it out of there.",
        )
    return {where: name for where, name in found.items() if where not in allowed}


def require_trusted(refused: Mapping[str, str], what: str = "The folder") -> None:
    """Refuse to go on if code is needed that nobody has allowed; name all of it."""
    if refused:
        named = ", ".join(f"{where} {name}" for where, name in refused.items())
        raise Refusal(
            f"{what} names code that is not part of Covey and not installed as a plugin: {named}. A folder's code is "
            "not run unless you say so. If you know and trust it, give --trust on the command line, or trust=True in "
            "Python."
        )


def _lies_in(module: str, folder: Path) -> bool:
    """True if a module, or a package around it, would be imported from a folder. Nothing is imported to find out."""
    imported = getattr(sys.modules.get(module), "__file__", None)
    places = [Path(imported)] if imported else []
    words = [word for word in module.split(".") if word]
    for base in (*sys.path, *_searched):
        for depth in range(1, len(words) + 1):
            place = Path(base or ".").joinpath(*words[:depth])
            places += [place, *(place.with_name(place.name + suffix) for suffix in all_suffixes())]
    return any(place.exists() and place.resolve().is_relative_to(folder) for place in places)
