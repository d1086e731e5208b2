"""Packs a script into a page: gzip, written in 85 characters; `unpack.js` reads it in the browser."""

import base64
import gzip
from functools import lru_cache
from importlib.resources import files

from covey.errors import Refusal, install

_PACKED_AS = bytes.maketrans(b"<", b",")
"""Base 85 has "<", which could end the element that holds it; "," is not among its characters."""


def packed_element(name: str, script: str) -> str:
    """Return an element that holds a script in packed form."""
    size, text = _packed(script)
    return f'<script type="text/plain" id="{name}" data-bytes="{size}">{text}</script>'


def unpacked(size: int, text: str) -> str:
    """Return the script that was packed into `text`."""
    return gzip.decompress(base64.b85decode(text.replace(",", "<"))[:size]).decode()


def plotly() -> str:
    """Return plotly.js, which the Python package contains."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise Refusal(f"A page with charts needs plotly: {install('report')}.") from error
    return str(get_plotlyjs())


def unpacking() -> str:
    """Return the script that unpacks."""
    return files("covey.page").joinpath("unpack.js").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _packed(script: str) -> tuple[int, str]:
    """Return the number of bytes of the gzip, and the text; the same script always gives the same text."""
    data = gzip.compress(script.encode(), 9, mtime=0)
    return len(data), base64.b85encode(data, pad=True).translate(_PACKED_AS).decode()
