"""Numbers that Jeong and Lee (2024) print in their tables (see `printed.toml`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.printed import read_printed

_PRINTED: Mapping[str, Any] = read_printed(__file__)

ALPHAS: tuple[float, ...] = tuple(_PRINTED["alphas"])


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The paper's numbers for one data set; outer sequences are over `ALPHAS`."""

    accuracy: Mapping[str, Sequence[Sequence[float]]]
    """Table 2: algorithm → fractions for TD 1, TD 2, TD 3 and Local."""
    error: Sequence[float]
    """Table 3."""
    rounds: Mapping[str, Sequence[Sequence[str]]]
    """Table 4: algorithm → rounds to 95 %, to 98 % and to the peak."""
    composed: Sequence[Sequence[str]]
    """Table 5: for each target, n·MAE and (number of clients)."""


def printed_numbers(data: str) -> Printed:
    """Return the numbers of a data set."""
    return Printed(**_PRINTED[data])
