"""The folder that is served: paths of a request as places in it, never outside."""

import os
import shutil
import stat
from itertools import count
from pathlib import Path

from covey.errors import Refusal, require
from covey.job.run_index import kind_of

OWN = ".serve"
"""Folder of the server's own files, in the folder that it serves."""

_ORIGIN = "origin"
"""File with the number that the server's own folder had in the file system when it was made."""

_LONGEST = 400
"""Characters of a path."""


class ServedFolder:
    """The folder with runs, and the server's own files in it."""

    def __init__(self, root: Path) -> None:
        kind = kind_of(root)
        require(kind is None, f"{root} is a {kind} itself: serve the folder that it lies in.")
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"The folder {root} cannot be served: {error.strerror or error}.") from error
        self.root = root.resolve()
        self.own = self.root / OWN

    def claim(self) -> Path | None:
        """Make the server's own folder; return where an older one was put that was not made in this place, if any.

        A folder that was copied, or came from a stranger, may hold jobs that name code, and a token that others know:
        its number in the file system tells.
        """
        aside = None
        if self.own.is_symlink() or (self.own.exists() and not self._made_here()):
            numbers = (self.root / f"{OWN}-{number}" for number in count(1))
            aside = next(place for place in numbers if not os.path.lexists(place))
            self.own.rename(aside)
        if not self.own.exists():
            new = self.root / f"{OWN}-new-{os.getpid()}"
            new.mkdir(mode=0o700)
            (new / _ORIGIN).write_text(f"{new.stat().st_ino}\n")
            try:
                new.rename(self.own)
            except OSError:
                # Another server was quicker; its lock refuses this one.
                shutil.rmtree(new)
        return aside

    def _made_here(self) -> bool:
        origin = self.own / _ORIGIN
        try:
            return not origin.is_symlink() and origin.read_text() == f"{self.own.stat().st_ino}\n"
        except (OSError, ValueError):
            return False

    def place(self, path: str) -> Path:
        """Return the folder or file that a path of a request names; refuse what is not plainly inside.

        Links are refused wherever they lead: a folder of a stranger may hold some.
        """
        parts = path.split("/")
        plain = 0 < len(path) <= _LONGEST and path.isprintable() and "\\" not in path
        require(
            plain and all(part and not part.startswith(".") for part in parts),
            f"'{path[:80]}' is no path in the folder that is served: names with / between them, without '..'.",
        )
        place = self.root
        for part in parts:
            place = place / part
            try:
                linked = stat.S_ISLNK(place.lstat().st_mode)
            except FileNotFoundError:
                break
            except (OSError, ValueError):
                linked = True
            require(not linked, f"'{path[:80]}' leads over a link, which is not followed.")
        whole = self.root.joinpath(*parts)
        require(whole.resolve().is_relative_to(self.root), f"'{path[:80]}' leads out of the folder that is served.")
        return whole

    def path(self, place: Path) -> str:
        """Return a place in the folder as a path of a request."""
        return place.relative_to(self.root).as_posix()

    def file(self, path: str) -> Path | None:
        """Return a regular file in the folder; None if there is none."""
        place = self.place(path)
        return place if place.is_file() and not place.is_symlink() else None
