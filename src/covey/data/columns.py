"""Columns of a table as numbers: numbers, yes and no, dates, categories, and what is missing among them.

What a conversion needs (the median, the categories, the first day) comes from the training rows alone. Each says in a
sentence what it does.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey.data.written_values import (
    EPOCH,
    days_of,
    decimal_commas,
    is_written_missing,
    maybe_thousands,
    unclear_dates,
    with_point,
)
from covey.errors import Refusal, require

ColumnKind = Literal["number", "yes or no", "date", "category", "vector"]

MissingRule = Literal["median", "refuse"]
"""What is done where a value is missing: the training rows' median takes its place, or the file is refused."""

_TRUE, _FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")

Values = NDArray[Any]
"""A column's values: float64 `[n]` with NaN where one is missing (a vector's: `[n, width]`); of categories the words
`[n]`, the empty one where it is missing."""


@dataclass(frozen=True)
class Column:
    """One column, and how its values become features."""

    name: str
    kind: ColumnKind
    categories: tuple[str, ...] = ()
    """Words of the training rows, in order; each is a feature, 1 where the column says it and 0 elsewhere."""
    fill: float = 0.0
    """Takes the place of a missing value: the training rows' median."""
    gaps: int = 0
    """Training rows without a value; if there are any, a feature says which."""
    origin: float = 0.0
    """The first day of a date's training rows, in days from 1970."""
    constant: bool = False
    """True if all training rows have the same value."""
    size: int = 1
    """Numbers in one value of a vector."""
    empty: bool = False
    """True if no training row has a value."""
    written: str = ""
    """The order of day, month and year in a date, if it is not that of ISO 8601."""

    @property
    def width(self) -> int:
        """Number of features."""
        main = len(self.categories) if self.kind == "category" else self.size
        return main + (1 if self.gaps else 0)

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        if self.kind == "category":
            names = [f"{self.name}={word}" for word in self.categories]
        else:
            names = [self.name] if self.size == 1 else [f"{self.name}[{place}]" for place in range(self.size)]
        return [*names, f"{self.name} is missing"] if self.gaps else names

    def as_mapping(self) -> dict[str, Any]:
        """Return what new rows need to become features, as JSON has it."""
        known: dict[str, Any] = {"column": self.name, "kind": self.kind, "features": self.features}
        if self.kind == "category":
            return {**known, "words": list(self.categories)}
        if self.kind == "date":
            known |= {"first_day": self.origin, "first_date": _day(self.origin), "written": self.written or "ISO 8601"}
        return known if self.kind == "vector" else {**known, "missing": self.fill}

    @property
    def rule(self) -> str:
        """How a value becomes features, for whoever has no training rows."""
        said = {
            "number": "the number",
            "yes or no": "1 for yes, 0 for no",
            "date": f"days from {_day(self.origin)}" + (f" (written {self.written})" if self.written else ""),
            "category": f"1 for its word, 0 for the others: {', '.join(self.categories)}; another word is all 0",
            "vector": f"{self.size} numbers",
        }[self.kind]
        if self.kind != "vector":
            instead = _day(self.fill) if self.kind == "date" else f"{self.fill:.9g}"
            said += "; missing: " + ("all 0" if self.kind == "category" else instead)
        return said + ("; the last feature is 1 where it is missing" if self.gaps else "")

    def encode(self, values: Values) -> NDArray[np.float32]:
        """Return the features of values, `[n, width]`."""
        found = np.zeros((len(values), self.width), dtype=np.float32)
        missing = absent(values)
        if self.kind == "category":
            for place, word in enumerate(self.categories):
                found[:, place] = values == word
        elif self.kind == "vector":
            found[:, : self.size] = values
        else:
            with np.errstate(over="ignore"):  # Values too large for float32 become infinite, and are refused.
                found[:, 0] = np.where(missing, self.fill, values) - self.origin
        if self.gaps:
            found[:, -1] = missing
        return found

    def unseen(self, values: Values) -> int:
        """Return how many values are categories that the training rows lack."""
        if self.kind != "category":
            return 0
        return int((~np.isin(values, self.categories) & ~absent(values)).sum())

    @property
    def sentence(self) -> str:
        """What the column is and becomes."""
        said = {
            "number": "a number, kept",
            "yes or no": "yes or no, as 1 and 0",
            "date": f"a date, as days from {_day(self.origin)}",
            "category": f"words, as {len(self.categories)} features of 0 and 1 ({_few(self.categories)})",
            "vector": f"{self.size} numbers, kept",
        }[self.kind]
        if self.empty:
            return f"'{self.name}': no training row has a value; it tells nothing."
        if self.constant:
            said += "; it is the same in all training rows and tells nothing"
        if self.gaps:
            said += (
                f"; {_rows(self.gaps, 'training', 'lack')} it, {self.instead} there, and a feature of 0 and 1 says so"
            )
        return f"'{self.name}': {said}."

    @property
    def instead(self) -> str:
        """What takes the place of a missing value."""
        if self.kind == "category":
            return "all its features are 0"
        return f"the median{f' {self.fill:g}' if self.kind == 'number' else ''} takes its place"


def absent(values: Values) -> NDArray[np.bool_]:
    """Return where a column has no value, `[n]`."""
    if values.dtype.kind == "f":
        nothing: NDArray[np.bool_] = np.isnan(values if values.ndim == 1 else values.sum(axis=1) * 0.0)
        return nothing
    return np.asarray(values == "", dtype=bool)


class TooManyWords(Refusal):
    """A column has more different words than become features; it may be a number of rows, such as patients."""

    def __init__(self, column: str, words: int, sentence: str) -> None:
        super().__init__(sentence)
        self.column, self.words = column, words


DATES_IN_TEXT = "dates are written as 2024-01-31, or all as 31.01.2024 or 1/31/2024"


def fitted(name: str, kind: ColumnKind, values: Values, most: int, where: str, dates: str = DATES_IN_TEXT) -> Column:
    """Return the conversion of a column, from the values of its training rows; `dates` says what dates look like."""
    missing = absent(values)
    present = values[~missing]
    gaps = int(missing.sum())
    if kind == "vector":
        return Column(name, kind, size=values.shape[1], constant=len(values) > 0 and bool((values == values[0]).all()))
    constant = gaps == 0 and len(np.unique(present)) == 1
    if kind == "category":
        words = tuple(str(word) for word in np.unique(present))
        if len(words) > most:
            raise TooManyWords(
                name,
                len(words),
                f"{where}, column '{name}' has {len(words):,} different words "
                f"({_few(words)}), more than the {most} that become features of their own: leave the column out with "
                f"dataset.ignore={name}, or raise dataset.categories; {dates}.",
            )
        return Column(name, kind, words, gaps=gaps, constant=constant, empty=not len(present))
    fill = float(np.median(present)) if len(present) else 0.0
    origin = float(present.min()) if kind == "date" and len(present) else 0.0
    return Column(name, kind, fill=fill, gaps=gaps, origin=origin, constant=constant, empty=not len(present))


@dataclass(frozen=True)
class Cells:
    """A column of text: its name, its cells, and how to name one of them in a refusal."""

    files: Sequence[str]
    """File of each cell."""
    name: str
    cells: Sequence[str]
    lines: Sequence[int]
    """Line of each cell in the file."""
    separator: str = ","
    """What is between cells in the file."""

    def place(self, row: int) -> str:
        return f"{self.files[row]}, line {self.lines[row]}, column '{self.name}': '{self.cells[row]}'"


class Understood(NamedTuple):
    """What a column of text is, and its values."""

    kind: ColumnKind
    values: Values
    notation: str = ""
    """How its numbers or dates are written, if that is not the usual way; a sentence names the columns."""


DECIMAL_COMMA = "numbers with a decimal comma"

UNCLEAR_DATES = "words: they may be dates, and nothing shows whether the day or the month comes first"


def read_cells(column: Cells, missing: MissingRule, categorical: bool, order: str = "") -> Understood:
    """Return what a column of text is, and its values; dates that fit several orders are read in this one."""
    words = [cell.strip() for cell in column.cells]
    gaps = np.array([is_written_missing(word) for word in words], dtype=bool)
    for row in np.flatnonzero(gaps)[:1] if missing == "refuse" else ():
        raise Refusal(
            f"{column.place(int(row))} is a missing value; with dataset.missing=median the column's median takes its "
            "place."
        )
    filled = [word for word, gap in zip(words, gaps, strict=True) if not gap]
    if not categorical:
        points = with_points(column, words)
        numbers = _numbers(column, points or words, gaps, len(filled))
        if numbers is not None:
            return Understood("number", numbers, DECIMAL_COMMA if points else "")
        truths = _spread(_truths(filled), gaps)
        if truths is not None:
            return Understood("yes or no", truths)
        days = days_of(filled, order)
        if days is not None:
            dates = _spread(days.values, gaps)
            assert dates is not None
            return Understood("date", dates, f"dates, {days.order}" if days.order else "")
    either = not categorical and unclear_dates(filled)
    words = ["" if gap else word for word, gap in zip(words, gaps, strict=True)]
    return Understood("category", np.array(words, dtype=np.str_), UNCLEAR_DATES if either else "")


def with_points(column: Cells, words: Sequence[str]) -> list[str] | None:
    """Return words with decimal points in place of commas; None if they are no numbers with commas."""
    filled = [word for word in words if not is_written_missing(word)]
    if not decimal_commas(filled):
        return None
    if column.separator == "," and maybe_thousands(filled):
        row = next(row for row, word in enumerate(words) if "," in word)
        raise Refusal(
            f"{column.place(row)} may have a decimal comma or a comma between thousands: write it without, or take the "
            f"column for words with dataset.categorical={column.name}."
        )
    return [with_point(word) for word in words]


def notations(found: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each way in which columns are written; `found` are the columns' names and ways."""
    ways: dict[str, list[str]] = {}
    for name, way in found.items():
        if way:
            ways.setdefault(way, []).append(f"'{name}'")
    return tuple(
        f"Column{'s' if len(names) > 1 else ''} {_few(names)} {'were' if len(names) > 1 else 'was'} read as {way}."
        for way, names in ways.items()
    )


def _numbers(column: Cells, words: Sequence[str], gaps: NDArray[np.bool_], filled: int) -> Values | None:
    """Return a column as numbers; None if it holds others, and a refusal if those are few."""
    values = np.full(len(words), np.nan)
    failed = []
    for row, (word, gap) in enumerate(zip(words, gaps, strict=True)):
        if not gap:
            try:
                values[row] = float(word)
            except ValueError:
                failed.append(row)
    if failed:
        # Most are numbers, so the others are mistakes rather than categories.
        require(
            2 * len(failed) >= filled,
            f"{column.place(failed[0])} is not a number, as most of the column are; correct it, or take the column "
            f"for categories with dataset.categorical={column.name}.",
        )
        return None
    with np.errstate(over="ignore"):
        infinite = ~np.isfinite(values.astype(np.float32)) & ~gaps
    for row in np.flatnonzero(infinite)[:1]:
        raise Refusal(f"{column.place(int(row))} is not a finite float32 number.")
    return values


def _truths(words: Sequence[str]) -> list[float] | None:
    """Return words such as yes and no as 1 and 0; None if there are others."""
    lower = [word.lower() for word in words]
    pairs = zip(_TRUE, _FALSE, strict=True)
    fits = any(set(lower) <= {yes, no} for yes, no in pairs)
    return [float(word in _TRUE) for word in lower] if fits and words else None


def _spread(found: list[float] | None, gaps: NDArray[np.bool_]) -> Values | None:
    """Return values in their rows, NaN in the others."""
    if found is None:
        return None
    values = np.full(len(gaps), np.nan)
    values[~gaps] = found
    return values


def _day(number: float) -> str:
    """Return the date of a day counted from 1970, or its number where no calendar has it."""
    try:
        return str(EPOCH.date() + datetime.timedelta(days=int(np.floor(number))))
    except OverflowError:
        return f"day {number:g} after 1970"


def _rows(count: int, which: str, verb: str) -> str:
    return f"1 {which} row {verb}s" if count == 1 else f"{count:,} {which} rows {verb}"


def _few(words: Iterable[str], most: int = 4) -> str:
    """Return the first words, for a sentence."""
    words = list(words)
    return ", ".join(word[:20] for word in words[:most]) + (", …" if len(words) > most else "")


def encoded(columns: Sequence[Column], values: Sequence[Values], count: int) -> NDArray[np.float32]:
    """Return the features of all columns, `[n, features]`."""
    found = np.empty((count, sum(column.width for column in columns)), dtype=np.float32)
    at = 0
    for column, given in zip(columns, values, strict=True):
        found[:, at : at + column.width] = column.encode(given)
        at += column.width
    return found


def conversions(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return a sentence for each column that is not simply kept."""
    plain: tuple[ColumnKind, ...] = ("number", "vector")
    return tuple(column.sentence for column in columns if column.gaps or column.constant or column.kind not in plain)


def tests_notes(column: Column, values: Values, which: str) -> tuple[str, ...]:
    """Return what to say about a column's test rows, or its new ones."""
    return (*_unseen_note(column, values, which), *_filled_note(column, values, which))


def _unseen_note(column: Column, values: Values, which: str) -> tuple[str, ...]:
    """Return what to say about categories of these rows that the training rows lack."""
    count = column.unseen(values)
    if not count:
        return ()
    words = sorted(set(values[~np.isin(values, column.categories) & ~absent(values)].tolist()))
    said = f"{_rows(count, which, 'say')} what no training row does ({_few(words)})"
    return (f"'{column.name}': {said}: all its features are 0 there.",)


def _filled_note(column: Column, values: Values, which: str) -> tuple[str, ...]:
    """Return what to say about rows without a value in a column where training rows have one."""
    count = 0 if column.gaps else int(absent(values).sum())
    if not count:
        return ()
    return (f"'{column.name}': {_rows(count, which, 'lack')} it, and no training row does: {column.instead} there.",)
