"""What a client's answer says in words, without Flower's wrapping and safe to print."""

import re

from flwr.app import Message

from covey.core.printable_text import printable

_WRAPPED = re.compile(r"<class '(?:[^']*\.)?([^'.]+)'>:<'(.*)'>", re.DOTALL)
"""Flower's report of an exception; from a simulated node, the whole trace takes the place of the message."""

_FROM_APP = "Exception ClientAppException occurred. Message: "


def reason_of(text: str | None) -> str:
    """Return the reason of a client's error, without Flower's wrapping."""
    wrapped = _WRAPPED.fullmatch((text or "").strip())
    if wrapped is None:
        return short(text)
    kind, message = wrapped[1], wrapped[2].strip()
    return short(message).removeprefix(_FROM_APP) if "\n" in message else short(f"{kind}: {message}")


def short(text: str | None) -> str:
    """Return the last line of a message that a client sent, printable and cut to 200 characters."""
    lines = [line for part in (text or "").splitlines() if (line := printable(part).strip())]
    line = lines[-1] if lines else "no reason given"
    return line if len(line) <= 200 else f"{line[:197]}..."


def declined(answer: Message) -> str:
    """Return why a client answered with an error."""
    return f"it answered with an error: {reason_of(answer.error.reason)}"
