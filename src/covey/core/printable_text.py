"""Text that others wrote, without what a terminal would obey."""

import re

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor, clearing the screen
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)


def printable_lines(text: str) -> str:
    """Return text as `printable` does, line by line."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    """Return text on one line, without escape sequences, control characters and marks that reverse its direction."""
    plain = _SEQUENCE.sub("", text)
    return "".join(mark if mark.isprintable() else " " if mark.isspace() else "" for mark in plain)
