"""Files and folders of results: JSON that is read with care, atomic writes, and locks against a second writer."""

import json
import math
import os
import platform
import stat
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EAGAIN, EDEADLK, ELOOP
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Union, get_args, get_origin, get_type_hints, is_typeddict

from covey.errors import Refusal

LOCK = ".lock"
"""File in a folder that is being written: the writer's process and host. Removed when the writer ends."""

_LOCKED_BYTE = 1 << 30
"""Place of the byte that is locked on Windows, beyond the text, which others may then read."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag with which opening a link fails, instead of writing to what it points to; Windows has none."""

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flag with which opening a pipe does not wait for its other end."""

_PLAIN = _NO_WAIT | getattr(os, "O_BINARY", 0)

_held: dict[Path, int] = {}
"""Folders that this process writes; a forked process writes none of them."""

_guard = threading.Lock()


def read_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError for what is none, holds NaN or infinities, or is nested too deeply."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _no_number(text)


def open_plain(path: Path, *, links: bool = False) -> BinaryIO:
    """Open a regular file to read, a link to one only with `links`; OSError for pipes and devices, which may block."""
    handle = os.open(path, os.O_RDONLY | _PLAIN | (0 if links else _NO_LINK))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path.name} is no regular file")
    return os.fdopen(handle, "rb")


_hints = lru_cache(maxsize=None)(get_type_hints)


def misfit(value: Any, annotation: Any, where: str) -> str | None:
    """Return where a JSON value is not of a type (`list[int]`, a typed dictionary, …), as a clause; None if it is.

    A whole number serves as a float. Keys of a typed dictionary may be missing if it says so; others may be there.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any or (annotation is type(None) and value is None):
        return None
    if origin in (Union, UnionType):
        faults = [misfit(value, choice, where) for choice in arguments]
        return None if None in faults else next(fault for fault in faults if fault is not None)
    if is_typeddict(annotation):
        if not isinstance(value, dict):
            return f"{where} is no mapping"
        missing = sorted(annotation.__required_keys__ - value.keys())
        if missing:
            return f"{where} has no {missing[0]}"
        hints = _hints(annotation)
        faults = [misfit(item, hints.get(name, Any), f"{where}.{name}") for name, item in value.items()]
        return next((fault for fault in faults if fault is not None), None)
    if origin in (list, dict) and isinstance(value, origin):
        items = enumerate(value) if isinstance(value, list) else value.items()
        faults = [misfit(item, arguments[-1], f"{where}.{name}") for name, item in items]
        return next((fault for fault in faults if fault is not None), None)
    whole = isinstance(value, int) and not isinstance(value, bool)
    kinds = {int: whole and abs(value) < 1 << 63, float: whole or isinstance(value, float)}
    good = kinds[annotation] if annotation in kinds else origin is None and isinstance(value, annotation)
    return None if good else f"{where} is {value!r:.40}"


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically."""
    replace_file(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new, never a part."""
    with replacing(path) as beside, beside.open("wb") as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside a file to write; it takes the file's place at the end, or is removed if writing fails."""
    beside = path.with_name(path.name + ".part")
    # A folder may come with a link in this place, and writing would follow it.
    beside.unlink(missing_ok=True)
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FolderLock:
    """The right to write a folder, which one writer has at a time; refused while another has it.

    The system frees the lock when the process ends, however it ends. Processes that it forks do not inherit the lock,
    so they cannot keep it after a kill.
    """

    def __init__(self, folder: Path, what: str = "run folder") -> None:
        self._path = folder / LOCK
        self._key = folder.resolve()
        self._handle: int | None = None
        with _guard:
            if _held.get(self._key) == os.getpid():
                raise _taken(folder, what, "this very process")
            try:
                self._handle = self._taken_handle(folder, what)
            except OSError as error:
                raise Refusal(f"The {what} {folder} cannot be written: {error.strerror or error}.") from error
            _held[self._key] = os.getpid()
            self._owner = os.getpid()

    def _taken_handle(self, folder: Path, what: str) -> int:
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
            try:
                _lock(handle)
                # The last writer may have removed the file after it was opened here.
                if self._path.exists() and os.path.samestat(os.fstat(handle), self._path.stat()):
                    with suppress(OSError):  # On a full disk the lock holds as well.
                        text = f"process {os.getpid()} on {platform.node()}\n".encode()
                        os.ftruncate(handle, 0)
                        os.write(handle, text)
                    return handle
            except OSError as error:
                holder = os.read(handle, 500).decode(errors="replace").strip()
                os.close(handle)
                if error.errno in (EACCES, EAGAIN, EDEADLK):
                    raise _taken(folder, what, holder or "another process") from None
                raise
            os.close(handle)

    def release(self) -> None:
        """Let others write the folder."""
        # A forked process has a copy of this object, and not the lock.
        if self._handle is None or self._owner != os.getpid():
            return
        with _guard:
            _give_up(self._handle, self._path)
            self._handle = None
            _held.pop(self._key, None)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # If the lock was refused, there is nothing to release.
        if getattr(self, "_handle", None) is not None:
            self.release()


def _taken(folder: Path, what: str, holder: str) -> Refusal:
    return Refusal(f"The {what} {folder} is being written by {holder}. Wait until that ends, or stop it.")


def is_being_written(folder: Path) -> bool:
    """True if a writer has a folder's lock. The lock is only looked at."""
    return lock_holder(folder) is not None


def _is_alive(process: int) -> bool:
    """Tell whether a process of this machine runs."""
    if sys.platform == "win32":  # There, signal 0 would be Ctrl-C.
        import ctypes

        handle = ctypes.windll.kernel32.OpenProcess(0x100000, False, process)  # SYNCHRONIZE
        return bool(handle) and bool(ctypes.windll.kernel32.CloseHandle(handle))
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # It runs, under another user.
        return True
    return True


def lock_holder(folder: Path) -> int | None:
    """Return the process that writes a folder: its number, 0 if it is on another machine, None if there is none."""
    with _guard:
        # Opening and closing the file here would give up a lock of this process.
        if (holder := _held.get(folder.resolve())) is not None:
            return holder
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | _NO_LINK | _NO_WAIT)
    except OSError:
        return None
    try:
        if sys.platform.startswith("linux"):
            kind, _, _, _, holder = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, _ASKING))
            return None if kind == fcntl.F_UNLCK else max(0, holder)
        # Elsewhere the lock cannot be looked at, so its text tells: the file of a writer that was killed stays.
        words = os.read(handle, 500).decode(errors="replace").split()
        if words[:1] != ["process"] or words[2:3] != ["on"] or not words[1].isdecimal():
            return None
        if words[3:] != platform.node().split():
            return 0
        return int(words[1]) if _is_alive(int(words[1])) else None
    except OSError:
        return None
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _locking(handle: int, mode: int) -> None:
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, mode, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)

    def _lock(handle: int) -> None:
        _locking(handle, msvcrt.LK_NBLCK)

    def _give_up(handle: int, path: Path) -> None:
        # A file that is open cannot be removed. If a reader has it open it stays, and names no writer.
        with suppress(OSError):
            os.ftruncate(handle, 0)
            _locking(handle, msvcrt.LK_UNLCK)
        os.close(handle)
        with suppress(OSError):
            path.unlink(missing_ok=True)
else:
    import fcntl

    _FLOCK = "hhqqi4x"
    """Linux's `struct flock`: type, whence, start, length, process."""
    _ASKING = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)

    def _lock(handle: int) -> None:
        # Not flock, which forked workers would inherit.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _give_up(handle: int, path: Path) -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)


def open_unlinked(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file in a folder that others may have made; a link in its place is refused, wherever it leads."""
    try:
        return os.open(path, flags | _NO_LINK, mode)
    except OSError as error:
        if error.errno == ELOOP:
            raise Refusal(f"{path} is a link, and what it leads to would be written: remove it.") from None
        raise


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read; it must not exist yet."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
