"""Segments: files of a run folder with what simulated clients keep. Each is written once, and removed as a whole.

A segment is a safetensors file with a tensor for each of its clients, and their rounds and checksums in its header. Its
name is its number, so that nothing in a checkpoint names a file.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.core.trainer import KeptRow
from covey.errors import Refusal, require
from covey.storage import misfit, read_json, replacing, sync_folder

FOLDER = "kept"
"""Folder of the segments, in the run folder."""

MOST_SEGMENTS = 10**15
"""A segment's number is below."""

_NAME = re.compile(r"[0-9]{8,15}\.safetensors")


class SegmentHeader(TypedDict):
    """What a segment says of itself; clients are the names of its tensors."""

    segment: int
    rounds: dict[str, int]
    """Client → the round in which it kept its row."""
    sums: dict[str, int]
    """Client → the checksum of its row."""


class KeptSegments:
    """The segments of one run folder."""

    def __init__(self, folder: Path) -> None:
        self._run = folder
        self._folder = folder / FOLDER
        require(
            not self._folder.is_symlink() and (self._folder.is_dir() or not self._folder.exists()),
            f"{self._folder} holds what clients keep, and must be a plain folder.",
        )

    def path(self, number: int) -> Path:
        return self._folder / f"{number:08}.safetensors"

    def write(self, number: int, rows: Mapping[int, KeptRow]) -> None:
        """Write a segment; it is on disk when this returns."""
        tensors = {str(client): row.values.detach().cpu().contiguous() for client, row in sorted(rows.items())}
        header: SegmentHeader = {
            "segment": number,
            "rounds": {str(client): row.t for client, row in sorted(rows.items())},
            "sums": {name: _checksum(values) for name, values in tensors.items()},
        }
        try:
            if not self._folder.is_dir():
                # Checkpoints are readable by their owner alone, too.
                self._folder.mkdir(mode=0o700)
                sync_folder(self._run)
            with replacing(self.path(number)) as beside:
                save_file(tensors, str(beside), {"covey": json.dumps(header)})
            sync_folder(self._folder)
        except (OSError, SafetensorError) as error:
            raise Refusal(
                f"The run folder {self._run} cannot be written: {error}. Once it can, resume with: "
                f"covey resume {self._run}"
            ) from error

    def rounds(self, number: int, width: int) -> dict[int, int]:
        """Return client → round of a segment's rows; refuse one that is missing, damaged, or of another width."""
        with self._opened(number) as file:
            found, _ = _header(file, number)
            for client in found:
                part = file.get_slice(str(client))
                require(
                    part.get_shape() == [width] and part.get_dtype() in ("F32", "F64"),
                    f"a row of client {client} has the shape {part.get_shape()}, and not [{width}]",
                )
            return found

    def read(self, number: int, clients: Collection[int]) -> dict[int, Tensor]:
        """Return clients' rows in a segment."""
        found = {}
        with self._opened(number) as file:
            _, sums = _header(file, number)
            for client in clients:
                # A clone: the tensor may lie in the mapped file itself.
                found[client] = file.get_tensor(str(client)).clone()
                require(_checksum(found[client]) == sums[client], f"the row of client {client} has changed")
        return found

    def remove_except(self, used: Collection[int]) -> None:
        """Remove all segments but these, and what a kill has left of others."""
        if not self._folder.is_dir():
            return
        names = {self.path(number).name for number in used}
        # What replaced their last user must be on disk first.
        sync_folder(self._run)
        for path in list(self._folder.iterdir()):
            if path.name not in names and _NAME.fullmatch(path.name.removesuffix(".part")):
                with suppress(OSError):
                    path.unlink()

    @contextmanager
    def _opened(self, number: int) -> Iterator[Any]:
        path = self.path(number)
        if not os.path.lexists(path):
            raise Refusal(
                f"The run folder {self._run} has lost {FOLDER}/{path.name}, which holds what clients keep. Put that "
                "file back, or begin another run."
            )
        try:
            require(path.is_file() and not path.is_symlink(), "it is no plain file")
            with safe_open(str(path), framework="pt") as file:
                yield file
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            reason = f"it has no row of client {error}" if isinstance(error, KeyError) else error
            raise Refusal(f"The file {path} is damaged and cannot be read ({reason}).") from error


def _header(file: Any, number: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return a segment's rounds and checksums by client."""
    stored = read_json((file.metadata() or {}).get("covey", "null"))
    fault = misfit(stored, SegmentHeader, "its header")
    require(fault is None, str(fault))
    require(stored["segment"] == number, f"it is segment {stored['segment']}")
    rounds, sums = ({int(client): value for client, value in stored[name].items()} for name in ("rounds", "sums"))
    require(
        {*map(str, rounds)} == {*map(str, sums)} == {*stored["rounds"]} == {*file.keys()},
        "its rows are not those of its header",
    )
    return rounds, sums


def copy_segments(source: Path, target: Path) -> None:
    """Copy the segments of a run folder to another one, so that a copy of its checkpoint can be resumed there."""
    KeptSegments(source)
    if not (source / FOLDER).is_dir():
        return
    (target / FOLDER).mkdir(mode=0o700, exist_ok=True)
    for path in sorted((source / FOLDER).iterdir()):
        if _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with replacing(target / FOLDER / path.name) as beside:
                shutil.copyfile(path, beside)
                shutil.copymode(path, beside)
    sync_folder(target / FOLDER)


def _checksum(row: Tensor) -> int:
    return zlib.crc32(row.contiguous().view(torch.uint8).numpy().data)
