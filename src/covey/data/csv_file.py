"""CSV files: separator and encoding, found out and said, and the rows with their lines."""

import csv
import io
import itertools
from dataclasses import dataclass
from pathlib import Path

from covey.errors import Refusal, require

Row = tuple[int, list[str]]
"""A line of a CSV file: its number and its cells."""

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


@dataclass(frozen=True, eq=False)
class CsvFile:
    """A CSV file's header and rows."""

    file: Path
    header: list[str]
    rows: list[Row]
    separator: str
    notes: tuple[str, ...]
    """Sentences about how the file was read, where that is not the usual way."""


def read_csv(file: Path) -> CsvFile:
    """Read a CSV file: separated by commas, or else by semicolons or tabs; in UTF-8, or else in Windows-1252."""
    text, encoding_note = _decoded(file)
    separator = _separator(text)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        header = next((row for row in reader if any(cell.strip() for cell in row)), [])
        rows = [(reader.line_num, row) for row in reader if not _is_blank(row, len(header))]
    except csv.Error as error:
        raise Refusal(f"{file} cannot be read as CSV: {error}.") from error
    for line, row in rows:
        values = f"{len(row)} value{'s' if len(row) > 1 else ''}"
        require(len(row) == len(header), f"{file}, line {line}: {values} for {len(header)} columns.")
    require(len(rows) > 0, f"{file} has no rows.")
    by = f"Its columns are separated by {_SEPARATORS[separator]}."
    return CsvFile(file, header, rows, separator, (*([by] if separator != "," else []), *encoding_note))


def _is_blank(row: list[str], columns: int) -> bool:
    """True for an empty line, or one of blanks; in a table of one column, blanks are a missing value."""
    return not row or (columns != 1 and len(row) == 1 and not row[0].strip())


def _decoded(file: Path) -> tuple[str, tuple[str, ...]]:
    """Return a file's text, and a sentence if it is not UTF-8."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise Refusal(f"{file} cannot be read as CSV: {error}.") from error
    try:
        return content.decode("utf-8-sig"), ()
    except UnicodeDecodeError as error:
        if b"\0" in content:
            raise Refusal(f"{file} cannot be read as CSV: {error}; save it as UTF-8.") from error
        line = content.count(b"\n", 0, error.start) + 1
    note = f"It is not UTF-8 (line {line}), and was read as Windows-1252."
    try:
        return content.decode("cp1252"), (note,)
    except UnicodeDecodeError:
        return content.decode("latin-1"), (note.replace("Windows-1252", "Latin-1"),)


def _separator(text: str) -> str:
    """Return the first separator by which the header and the first row have the same columns, more than one."""
    for separator in _SEPARATORS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            begin = list(itertools.islice((row for row in reader if row), 2))
        except csv.Error:
            continue
        if begin and 1 < len(begin[0]) == len(begin[-1]):
            return separator
    return ","
