"""Flags of the benchmarks that take names out of a list."""

import argparse
from collections.abc import Callable, Iterable


def names_of(known: Iterable[str], what: str) -> Callable[[str], list[str]]:
    """What makes `A,B` a list of names, for `add_argument(type=...)`; names that are not known are refused."""
    allowed = list(known)

    def chosen(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"there is no {what} '{name}'; known: {', '.join(allowed)}")
        return names

    return chosen
