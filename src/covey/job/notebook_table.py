"""Tables that notebooks show in the place of an object's text."""

import html
from collections.abc import Sequence

from covey.core.printable_text import printable


def notebook_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as HTML; text of others is escaped."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<p><b>{_cell(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return html.escape(printable(str(value)))
