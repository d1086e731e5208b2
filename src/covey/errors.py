"""The one exception that is meant for people."""


class Refusal(ValueError):
    """What was asked for cannot be done; the message says what was given and what is allowed.

    The command line prints the message and exits with code 2. Anything else that is raised is a bug.
    """


def require(condition: bool, sentence: str) -> None:
    """Refuse with `sentence` unless `condition` holds."""
    if not condition:
        raise Refusal(sentence)
