"""A user's table in a CSV file: a label, optionally each row's client, and columns that become features."""

import shlex
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from covey.data.columns import (
    DECIMAL_COMMA,
    Cells,
    Column,
    MissingRule,
    Values,
    conversions,
    encoded,
    fitted,
    notations,
    read_cells,
    tests_notes,
    with_points,
)
from covey.data.csv_file import CsvFile, Row, read_csv
from covey.data.dataset import Dataset, channel_statistics
from covey.data.labels import label_values, targets_of
from covey.data.own_arrays import CLIENT, find, tested_alone
from covey.data.own_split import OwnSplit, SplitKind, split_rows
from covey.data.written_values import is_missing_name
from covey.errors import Refusal, require
from covey.registries import datasets

EARLIER_TABLE: dict[str, Any] = {
    "split": "within", "missing": "refuse", "ignore": (), "categorical": (), "categories": 50, "test_file": "",
    "test_column": "",
}  # fmt: skip
"""What held in folders from before tables had these options."""


LABELS = ("label", "target", "class", "y", "outcome", "diagnosis")
"""Names that a column of labels is looked for by, where none is given."""

CLIENTS = (CLIENT, "site", "user", "hospital", "device", "institution", "center", "centre", "station")
"""Names that a column of clients is looked for by, where none is given."""


def column_by_name(header: list[str], names: tuple[str, ...]) -> str | None:
    """Return the column with the first of these names, whatever its case."""
    lower = {name.strip().lower(): name for name in reversed(header)}
    return next((lower[name] for name in names if name in lower), None)


@dataclass(frozen=True)
class TableOptions:
    """Options of data sets that are tables."""

    label: str
    client: str
    test: float
    split: SplitKind
    missing: MissingRule
    ignore: tuple[str, ...]
    categorical: tuple[str, ...]
    categories: int
    test_column: str

    def labels(self, header: list[str]) -> list[str]:
        """Return the columns of the label: one, or those of a list such as a,b."""
        several = [name.strip() for name in self.label.split(",") if name.strip()]
        return [self.label] if self.label in header or not several else several

    def named(self, header: list[str], file: str) -> list[str]:
        """Return the columns that are no features: label, client, test, and what is ignored; refuse absent ones."""
        named = [*self.labels(header), *([self.test_column] if self.test_column else []), *self.ignore]
        # Only the environment "natural" needs clients, so the column of the default name may be missing.
        named += [self.client] if self.client in header or self.client != CLIENT else []
        for column in (*named, *self.categorical):
            hint = _which(header) if column in (*self.labels(header), self.client) else "give one of these."
            require(
                column in header,
                f"{file} has no column '{column}' (it has: {', '.join(header)}); {hint} The whole command: "
                f"covey inspect {shlex.quote(file)}",
            )
        twice = sorted({name for name in header if header.count(name) > 1})
        require(not twice, f"{file} has two columns '{twice[0] if twice else ''}'; give each a name of its own.")
        return named


def _which(header: list[str]) -> str:
    """Return a sentence with the options that name label and client, guessed by the columns' names."""
    guesses = (("label", column_by_name(header, LABELS)), ("client", column_by_name(header, CLIENTS)))
    found = [(option, name) for option, name in guesses if name is not None]
    if not found:
        return "say which with --set dataset.label=COLUMN and --set dataset.client=COLUMN."
    said = " and ".join(f"'{name}' is the {option}" for option, name in found)
    flags = shlex.join([word for option, name in found for word in ("--set", f"dataset.{option}={name}")])
    unknown = [f"--set dataset.{option}=COLUMN" for option, name in guesses if option == "label" and name is None]
    return f"by the names {said}, so type: {' '.join([*unknown, flags])}."


@datasets.add("csv", earlier=EARLIER_TABLE)
def csv(
    data_dir: Path | None,
    /,
    *,
    path: str = "",
    label: str = "label",
    client: str = CLIENT,
    test: float = 0.2,
    split: SplitKind = "within",
    missing: MissingRule = "median",
    ignore: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    categories: int = 50,
    test_file: str = "",
    test_column: str = "",
) -> Dataset:
    """A CSV file with a header: a label (or several, a,b), optionally a client; other columns become numbers.

    Words become features of 0 and 1, dates days; a missing value becomes the median, or is refused. The share `test` is
    held out: within every client, its last rows, or whole clients; or `test_file` or `test_column` says what is.
    Columns in `categorical` are words, whatever they look like; so is a label that is named there.
    """
    options = TableOptions(label, client, test, split, missing, ignore, categorical, categories, test_column)
    file = find(path, data_dir, "csv")
    table = read_table(file, find(test_file, data_dir, "csv") if test_file else None, options)
    data = table.dataset(file.stem)
    told(str(file), table.how_read, table.converted, data.notes[len(table.how_read) + len(table.converted) :])
    return data


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was understood."""

    source: str
    labels: NDArray[Any]
    clients: NDArray[Any] | None
    rows: OwnSplit
    columns: tuple[Column, ...]
    values: list[Values]
    converted: tuple[str, ...]
    """Sentences about columns that became something else, or are odd."""
    tested: tuple[str, ...]
    """Sentences about clients without samples of a kind, and about values of the test rows alone."""
    task_note: str = ""
    """A sentence about the task that the labels are for, if it was inferred."""
    how_read: tuple[str, ...] = ()
    """Sentences about separator, encoding and the way numbers and dates are written, if they are not the usual."""

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.how_read, *self.converted, *self.tested)

    def dataset(self, name: str) -> Dataset:
        """Return the table as a data set."""
        names, target, note = targets_of(self.labels, None, self.source, self.task_note)
        x = torch.from_numpy(encoded(self.columns, self.values, len(self.labels)))
        train_x, rows = x[self.rows.train], self.rows
        mean, deviation = channel_statistics(train_x)
        return Dataset(
            name, train_x, target[rows.train], x[rows.test], target[rows.test], names, mean, deviation,
            rows.groups, rows.names, test_groups=rows.test_groups,
            notes=(*self.notes, *tested_alone(target, rows, names)), note=note, columns=self.columns,
        )  # fmt: skip


def read_table(file: Path, test_file: Path | None, options: TableOptions) -> Table:
    """Read a CSV file, and understand its columns."""
    found = read_csv(file)
    header, rows = found.header, found.rows
    named = options.named(header, str(file))
    sources, separator = [str(file)] * len(rows), found.separator
    how_read = [*found.notes]
    if test_file is not None:
        tests = _test_rows(test_file, found, options)
        rows, sources = rows + tests.rows, sources + [str(test_file)] * len(tests.rows)
        how_read += [note for note in tests.notes if note not in how_read]
    features = [name for name in header if name not in named]
    kept = [name for name in named if name not in options.ignore]
    require(len(features) > 0, f"{file} has no columns beside {' and '.join(map(repr, kept))}: no features.")

    def cells(name: str) -> Cells:
        place = header.index(name)
        return Cells(sources, name, [row[place] for _, row in rows], [line for line, _ in rows], separator)

    def place_of(row: int) -> str:
        return f"{sources[row]}, line {rows[row][0]}"

    words = {name: _column(sources, header, rows, name) for name in kept}
    marked = None
    if test_file is not None:
        marked = np.array([source != str(file) for source in sources])
    elif options.test_column:
        marked = marked_rows(
            [place_of(row) for row in range(len(rows))], words[options.test_column], options.test_column
        )
    clients = words.get(options.client)
    understood = {name: read_cells(cells(name), options.missing, name in options.categorical) for name in features}
    ways = {name: one.notation for name, one in understood.items()}
    split = split_rows(clients, len(rows), options.test, str(file), how=options.split, marked=marked)
    columns, notes = [], list(split.notes)
    for name, (kind, values, way) in understood.items():
        column = fitted(name, kind, values[split.train.numpy()], options.categories, str(file))
        column = replace(column, written=way.removeprefix("dates, ") if kind == "date" else "")
        columns.append(column)
        notes += tests_notes(column, values[split.test.numpy()], "test")
    answers = options.labels(header)
    for name in (name for name in answers if name not in options.categorical):
        points = with_points(cells(name), words[name].tolist())
        if points is not None:
            words[name], ways[name] = np.array(points), DECIMAL_COMMA
    labels, note = label_values(
        [words[name] for name in answers], answers, str(file), place_of, options.categorical,
        f"if labels are words: dataset.categorical={answers[0]}",
    )  # fmt: skip
    return Table(
        str(file), labels, clients, split, tuple(columns), [one.values for one in understood.values()],
        conversions(columns), tuple(notes), note, (*how_read, *notations(ways)),
    )  # fmt: skip


def _test_rows(file: Path, training: CsvFile, options: TableOptions) -> CsvFile:
    """Read the file of test rows, which has the columns of the training rows."""
    require(not options.test_column, "Give dataset.test_file or dataset.test_column, not both.")
    found = read_csv(file)
    require(
        found.header == training.header,
        f"{file} has other columns ({', '.join(found.header)}) than {training.file} ({', '.join(training.header)}).",
    )
    return found


def told(source: str, how_read: tuple[str, ...], converted: tuple[str, ...], odd: tuple[str, ...]) -> None:
    """Say once what is odd about a file's tests and how it was read; of conversions, of which there are many, a count.

    `covey inspect` says all in full.
    """
    # Classes that only the tests have come last, and matter most.
    notes = [*reversed(odd), *how_read]
    full = notes[:2] if converted[1:] else [*notes, *converted][:2]
    said = [*full]
    if converted[1:]:
        said.append(f"{len(converted)} columns were converted, or filled in where a value is missing.")
    more = len(notes) + len(converted) - len(full)
    if said:
        warnings.warn(f"{source}: {' '.join(said)}{f' All: covey inspect {source}' if more else ''}", stacklevel=3)


def header_of(file: Path) -> list[str]:
    """Return the names of a CSV file's columns."""
    return read_csv(file).header


def _column(sources: list[str], header: list[str], rows: list[Row], name: str) -> NDArray[Any]:
    """Return the labels or clients; every row must have one."""
    place = header.index(name)
    for source, (line, row) in zip(sources, rows, strict=True):
        require_given(row[place], f"{source}, line {line}", name)
    return np.array([row[place] for _, row in rows])


def require_given(word: str, place: str, column: str) -> None:
    """Refuse a label or a client that is empty, or a word for a missing value."""
    if is_missing_name(word):
        says = f"says '{word}', which stands for a missing value" if word.strip() else "is empty"
        raise Refusal(f"{place}: the column '{column}' {says}: give it a value, or leave the row out.")


def marked_rows(places: list[str], words: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """Return the rows that a column says are for testing; `places` name them."""
    known = {**dict.fromkeys(("test", "true", "yes", "1"), True), **dict.fromkeys(("train", "false", "no", "0"), False)}
    lower = [str(word).strip().lower() for word in words]
    for place, word in zip(places, lower, strict=True):
        require(
            word in known,
            f"{place}: the column '{name}' says '{word}'; it must say test or train, 1 or 0, true or false.",
        )
    return np.array([known[word] for word in lower], dtype=bool)
