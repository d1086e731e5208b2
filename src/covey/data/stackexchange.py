"""Stack Exchange dumps: posts and comments with their owners, from Posts.xml and Comments.xml."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from xml.parsers import expat

from covey.data.documents import LONGEST, Writing, opened
from covey.errors import Refusal, require

_CHUNK = 1 << 18
_TAG = re.compile(r"<(/?)([a-z0-9]+)[^<>]*>", re.IGNORECASE)


def stack_exchange(path: Path) -> Iterator[Writing]:
    """Yield the texts of one file of a dump: bodies of posts without their code, comments as they are.

    Rows without an owner (deleted users) are skipped. A document type, the only place where XML can declare entities
    that grow, is refused: dumps have none.
    """
    rows: list[Writing] = []

    def row(name: str, attributes: dict[str, str]) -> None:
        owner = attributes.get("OwnerUserId") or attributes.get("UserId")
        if name == "row" and owner:
            rows.append((owner, without_tags(attributes.get("Body", "")) or attributes.get("Text", "")))

    def refuse(*declared: object) -> None:
        raise Refusal(
            f"{path}, line {parser.CurrentLineNumber} declares a document type, which dumps of Stack Exchange do not, "
            "and which may hide entities that fill the memory; it is not read."
        )

    parser = expat.ParserCreate()
    parser.StartElementHandler = row
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    fed = 0
    with opened(path) as stream:
        while chunk := stream.read(_CHUNK):
            _parse(parser, chunk, path)
            fed += len(chunk)
            require(
                fed - max(0, parser.CurrentByteIndex) <= LONGEST,
                f"{path}, line {parser.CurrentLineNumber}: a row is longer than {LONGEST >> 20} MiB.",
            )
            yield from rows
            rows.clear()
        _parse(parser, b"", path)
        yield from rows


def _parse(parser: expat.XMLParserType, chunk: bytes, path: Path) -> None:
    """Parse the next `chunk`; an empty one ends the document."""
    try:
        parser.Parse(chunk, not chunk)
    except expat.ExpatError as error:
        raise Refusal(f"{path} cannot be read as XML: {error}.") from error


def without_tags(body: str) -> str:
    """Return the words of an HTML text, without those between <code> and </code> (or <pre>)."""
    parts: list[str] = []
    at = inside = 0
    for tag in _TAG.finditer(body):
        if not inside:
            parts.append(body[at : tag.start()])
        if tag[2].lower() in ("code", "pre"):
            inside = max(0, inside - 1) if tag[1] else inside + 1
        at = tag.end()
    if not inside:
        parts.append(body[at:])
    return unescape(" ".join(parts))
