"""Texts and their authors, read one at a time from JSON lines, plain or compressed."""

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from covey.data.files import reason
from covey.errors import Refusal, require

Writing = tuple[str, str]
"""Author and text."""

COMPRESSED = (".xz", ".gz")

LONGEST = 1 << 24
"""Most bytes of one line (or one row of XML); longer ones are refused as no person's text."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, unpacked if its name ends in .xz or .gz."""
    openers: dict[str, Callable[[Path, str], Any]] = {".xz": lzma.open, ".gz": gzip.open}
    try:
        with openers.get(path.suffix, Path.open)(path, "rb") as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise Refusal(f"{path} cannot be read: {reason(error)}.") from error


def json_lines(path: Path) -> Iterator[Writing]:
    """Yield the texts of a file with one JSON object per line: `user` (Yelp: `user_id`), `text`; others are ignored."""
    with opened(path) as stream:
        number = 0
        while line := stream.readline(LONGEST + 1):
            number += 1
            require(len(line) <= LONGEST, f"{path}, line {number} is longer than {LONGEST >> 20} MiB.")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.isspace():
                yield _writing(line, f"{path}, line {number}")


def _writing(line: bytes, place: str) -> Writing:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refusal(f"{place} is not UTF-8 text: byte {error.start + 1} is 0x{line[error.start]:02x}.") from None
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{place} is not a JSON object, one to a line: {getattr(error, 'msg', error)}.") from None
    require(isinstance(record, dict), f"{place} is not a JSON object, one to a line, but a {type(record).__name__}.")
    user = record.get("user", record.get("user_id"))
    require(
        isinstance(user, (str, int)) and not isinstance(user, bool),
        f"{place} does not say who wrote it: 'user' (or 'user_id') must be text or a whole number, not {user!r:.50}.",
    )
    text = record.get("text", False)
    require(text is None or isinstance(text, str), f"{place} has no 'text', or one that is not text.")
    # JSON can spell half of a surrogate pair, which cannot be printed.
    return str(user).encode("utf-8", "replace").decode("utf-8"), text or ""
