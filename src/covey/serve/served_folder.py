"""The folder that is served: paths of a request as places in it, never outside."""

import hashlib
import hmac
import os
import secrets
import shutil
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from covey.errors import Refusal, require
from covey.job.run_index import kind_of
from covey.storage import write_private

OWN = ".serve"
"""Folder of the server's own files, in the folder that it serves."""

_ORIGIN = "origin"
"""File that proves that the server's own folder was made here: its number in the file system, signed by its user."""

_KEY = "key"
"""File with the key of a user's signatures, in the user's folder for the state of programs."""

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

        A folder that was copied, or came from a stranger, may hold jobs that name code, and a token that others know.
        Its number in the file system tells, and a stranger cannot sign it.
        """
        aside = None
        if self.own.is_symlink() or (self.own.exists() and not self._made_here()):
            numbers = (self.root / f"{OWN}-{number}" for number in count(1))
            aside = next(place for place in numbers if not os.path.lexists(place))
            self.own.rename(aside)
        if not self.own.exists():
            new = self.root / f"{OWN}-new-{os.getpid()}"
            new.mkdir(mode=0o700)
            (new / _ORIGIN).write_text(f"{_signed(new)}\n")
            try:
                new.rename(self.own)
            except OSError:
                # Another server was quicker; its lock refuses this one.
                shutil.rmtree(new)
        return aside

    def _made_here(self) -> bool:
        origin = self.own / _ORIGIN
        try:
            plain = not origin.is_symlink() and origin.stat().st_size < _LONGEST
            known = origin.read_bytes().strip() if plain else b""
        except OSError:
            return False
        return hmac.compare_digest(known, _signed(self.own).encode())

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


def _signed(folder: Path) -> str:
    """Return a folder's number in the file system with this user's signature."""
    number = str(folder.stat().st_ino)
    return f"{number} {hmac.new(_user_key(), number.encode(), hashlib.sha256).hexdigest()}"


def _user_key() -> bytes:
    """Return the key that this user signs with; made when it is first asked for."""
    place = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "covey" / _KEY
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            write_private(place, secrets.token_bytes(32))
        key = place.read_bytes()
    except OSError as error:
        raise Refusal(
            f"The server keeps a key in {place}, which cannot be used: {error.strerror or error}. Set XDG_STATE_HOME "
            "to a folder of your own that can be written."
        ) from error
    require(len(key) == 32, f"The key in {place} is damaged: remove it.")
    return key
