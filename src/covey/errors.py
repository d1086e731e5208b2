"""Exceptions whose messages are for users; the command line prints them as they are."""

from pathlib import Path


class Refusal(ValueError):
    """A request that cannot be met. The message says what was given, what is allowed and what to do.

    The command line prints the message and exits with code 2. Any other exception is a bug.
    """


class Interrupted(Exception):
    """A job was stopped before it was complete; the command line exits with code 130."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"Stopped. Resume with: covey resume {folder}")
        self.folder = folder


def require(condition: bool, sentence: str) -> None:
    """Raise `Refusal(sentence)` unless `condition` holds."""
    if not condition:
        raise Refusal(sentence)


def install(extra: str) -> str:
    """Return the command that installs what an extra of Covey needs.

    Not by Covey's name: a package index may hold another package of this name.
    """
    return f"pip install '.[{extra}]' in Covey's checkout"
