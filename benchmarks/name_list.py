"""Command-line flags that take a list of names."""

import argparse
from collections.abc import Callable, Iterable


def names_of(known: Iterable[str], what: str) -> Callable[[str], list[str]]:
    """Return a parser of `A,B` into a list of known names, for `add_argument(type=...)`."""
    allowed = list(known)

    def chosen(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"there is no {what} '{name}'; known: {', '.join(allowed)}")
        return names

    return chosen
