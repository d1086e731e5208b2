"""The lock of Windows, on Linux: `msvcrt` and the rules for open files are replaced by what is documented of them."""

import ctypes
import errno
import fcntl
import importlib.util
import os
import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from covey import storage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks of single handles are those of Linux")

FLOCK = "hhqqi4x"


def locking(handle: int, mode: int, count: int) -> None:
    """Lock bytes from the file's position on for this handle alone, as `msvcrt.locking` does."""
    place = os.lseek(handle, 0, os.SEEK_CUR)
    kind = {Windows.LK_NBLCK: fcntl.F_WRLCK, Windows.LK_UNLCK: fcntl.F_UNLCK}[mode]
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(FLOCK, kind, os.SEEK_SET, place, count, 0))
    except OSError as error:
        raise OSError(errno.EACCES, "Permission denied") from error


class Windows(ModuleType):
    """`msvcrt`."""

    LK_NBLCK, LK_UNLCK, locking = 2, 0, staticmethod(locking)


def refuses_open_files(unlink: Callable[..., None]) -> Callable[..., None]:
    """Return `Path.unlink` as it is where a file that is open cannot be removed."""

    def checked(path: Path, missing_ok: bool = False) -> None:
        for handle in Path("/proc/self/fd").iterdir():
            if os.path.realpath(handle) == str(path.resolve()):
                raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))
        unlink(path, missing_ok)

    return checked


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What makes the module as a process under Windows has it; each has held no lock yet."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", Windows("msvcrt"))
    monkeypatch.setattr(Path, "unlink", refuses_open_files(Path.unlink))
    running = SimpleNamespace(OpenProcess=lambda rights, inherit, number: number == os.getpid(), CloseHandle=bool)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=running), raising=False)

    def made() -> Any:
        spec = importlib.util.spec_from_file_location("storage_under_windows", storage.__file__)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return made


def test_a_second_writer_is_refused_and_told_who_the_first_is(process: Any, tmp_path: Path) -> None:
    first, second = process(), process()
    lock = first.FolderLock(tmp_path)
    for _ in range(2):
        with pytest.raises(first.Refusal, match=f"written by process {os.getpid()} on {platform.node()}"):
            second.FolderLock(tmp_path)
    with pytest.raises(first.Refusal, match="this very process"):
        first.FolderLock(tmp_path)
    assert second.lock_holder(tmp_path) == first.lock_holder(tmp_path) == os.getpid()
    lock.release()
    assert not (tmp_path / storage.LOCK).exists()
    with second.FolderLock(tmp_path), pytest.raises(first.Refusal, match=f"process {os.getpid()}"):
        first.FolderLock(tmp_path)
    assert not (tmp_path / storage.LOCK).exists()


def test_a_lock_that_was_given_up_while_somebody_read_it_names_no_writer(process: Any, tmp_path: Path) -> None:
    first, second = process(), process()
    lock = first.FolderLock(tmp_path)
    with (tmp_path / storage.LOCK).open("rb"):
        lock.release()
        assert (tmp_path / storage.LOCK).exists()
        assert second.lock_holder(tmp_path) is first.lock_holder(tmp_path) is None
        second.FolderLock(tmp_path).release()


def test_the_file_of_a_writer_that_was_killed_holds_nobody_up(process: Any, tmp_path: Path) -> None:
    (tmp_path / storage.LOCK).write_text(f"process {os.getpid() + 1} on {platform.node()}\n")
    module = process()
    assert module.lock_holder(tmp_path) is None
    with module.FolderLock(tmp_path):
        assert module.is_being_written(tmp_path)
    (tmp_path / storage.LOCK).write_text("process 7 on another machine\n")
    assert module.lock_holder(tmp_path) == 0
