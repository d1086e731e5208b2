"""Numbers and dates as tables write them: with a decimal comma, by day, month and year, or missing."""

import datetime
import re
from collections.abc import Sequence
from typing import NamedTuple

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?"})
"""How tables write that there is no value, in lower case."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")

_DATES = {
    "day.month.year": "%d.%m.%Y",
    "day/month/year": "%d/%m/%Y",
    "month/day/year": "%m/%d/%Y",
    "year/month/day": "%Y/%m/%d",
}
"""Orders of a date beside that of ISO 8601. A dot is written between day and month, in this order, and nowhere else."""

_TIMES = ("", " %H:%M", " %H:%M:%S")


class Days(NamedTuple):
    """Dates as days from 1970."""

    values: list[float]
    order: str
    """How the dates are written; empty for ISO 8601."""


def is_written_missing(word: str) -> bool:
    """True for a word by which tables say that there is no value."""
    return word.strip().lower() in MISSING


def is_missing_name(word: str) -> bool:
    """True for a word that names no class and no client. "None" may name one: a sample without any defect."""
    return is_written_missing(word) and word.strip().lower() != "none"


def decimal_commas(words: Sequence[str]) -> bool:
    """True if most words are numbers, some of them with a decimal comma, as `1,5`."""
    if not any("," in word for word in words):
        return False
    with_comma = sum(_COMMA.fullmatch(word) is not None for word in words)
    return with_comma > 0 and 2 * (with_comma + sum(_WHOLE.fullmatch(word) is not None for word in words)) > len(words)


def maybe_thousands(words: Sequence[str]) -> bool:
    """True if every comma may separate thousands, as in `1,234`."""
    return all(_THOUSANDS.fullmatch(word) is not None for word in words if _COMMA.fullmatch(word))


def with_point(word: str) -> str:
    """Return a number that is written with a decimal comma with a point; other words as they are."""
    return word.replace(",", ".") if _COMMA.fullmatch(word) else word


def days_of(words: Sequence[str], order: str = "") -> Days | None:
    """Return dates such as 2024-01-31, 2024-01-31 12:30, 31.01.2024 or 1/31/2024 as days from 1970.

    None if there are other words, or if nothing shows whether the day or the month comes first, unless `order` does.
    """
    if not words:
        return None
    iso = _iso(words)
    if iso is not None:
        return Days(iso, "")
    orders = _orders(words)
    fitting = [one for one in orders if one[0] == order] or orders
    return Days(fitting[0][1], fitting[0][0]) if len(fitting) == 1 else None


def unclear_dates(words: Sequence[str]) -> bool:
    """True for dates such as 1/2/2024, where nothing shows whether the day or the month comes first."""
    return bool(words) and len(_orders(words)) > 1


def _orders(words: Sequence[str]) -> list[tuple[str, list[float]]]:
    """Return the orders in which all words are dates, and their days from 1970."""
    return [(order, found) for order, form in _DATES.items() if (found := _in_order(words, form)) is not None]


def _iso(words: Sequence[str]) -> list[float] | None:
    try:
        return [_day(datetime.datetime.fromisoformat(word)) for word in words]
    except ValueError:
        return None


def _in_order(words: Sequence[str], form: str) -> list[float] | None:
    """Return dates that are all written in one order, each with a time or without."""
    known: dict[str, float] = {}
    for word in words:
        if word not in known:
            found = _parsed(word, form)
            if found is None:
                return None
            known[word] = found
    return [known[word] for word in words]


def _parsed(word: str, form: str) -> float | None:
    for time in _TIMES:
        try:
            return _day(datetime.datetime.strptime(word, form + time))
        except ValueError:
            continue
    return None


def _day(date: datetime.datetime) -> float:
    aware = date if date.tzinfo else date.replace(tzinfo=datetime.UTC)
    return (aware - EPOCH) / datetime.timedelta(days=1)
