"""New rows of a table as features, by the columns of the table that a model was trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covey.config.values import ENDINGS
from covey.data.arrow_table import ArrowFile, readable
from covey.data.arrow_values import kind_of, values_of
from covey.data.columns import Cells, Column, ColumnKind, MissingRule, Values, absent, encoded, read_cells, tests_notes
from covey.data.csv_file import read_csv
from covey.errors import require


def new_features(
    file: Path, columns: Sequence[Column], missing: MissingRule
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return a file's rows as features `[n, features]`, and what to say of them. Columns are found by name.

    Medians, words and first days are those of the training rows; a word that they lack is 0 in all features.
    """
    require(file.is_file(), f"There is no file {file}.")
    read = _arrow_values if ENDINGS.get(file.suffix.lower()) == "parquet" else _csv_values
    values = read(file, columns, missing)
    features = encoded(columns, values, len(values[0]))
    for row in np.flatnonzero(~np.isfinite(features).all(axis=1))[:1].tolist():
        require(False, f"{file}: row {row}, counted from 0, holds a value that is not a finite float32 number.")
    notes = [note for column, own in zip(columns, values, strict=True) for note in tests_notes(column, own, "new")]
    return features, tuple(notes)


def _csv_values(file: Path, columns: Sequence[Column], missing: MissingRule) -> list[Values]:
    table = read_csv(file)
    _require_columns(file, table.header, columns)
    sources, lines, found = [str(file)] * len(table.rows), [line for line, _ in table.rows], []
    for column in columns:
        place = table.header.index(column.name)
        cells = Cells(sources, column.name, [row[place] for _, row in table.rows], lines, table.separator)
        understood = read_cells(cells, missing, column.kind == "category", column.written)
        found.append(_as_trained(column, understood.kind, understood.values, f"{file}, column '{column.name}'"))
    return found


def _arrow_values(file: Path, columns: Sequence[Column], missing: MissingRule) -> list[Values]:
    table, found = ArrowFile(file), []
    _require_columns(file, list(table.schema.names), columns)
    require(table.rows > 0, f"{file} has no rows.")
    for column in columns:
        where = f"{file}, column '{column.name}'"
        kind = kind_of(table.schema.field(column.name), str(file))
        with readable(file):
            values = values_of(table.column(column.name), kind, where)
        gaps = np.flatnonzero(absent(values))
        require(
            len(gaps) == 0 or missing == "median",
            f"{where} lacks a value in row {gaps[0] if len(gaps) else 0}, and the run refuses missing values "
            "(dataset.missing=refuse).",
        )
        found.append(_as_trained(column, kind, values, where))
    return found


def _require_columns(file: Path, header: list[str], columns: Sequence[Column]) -> None:
    lacking = [column.name for column in columns if column.name not in header]
    require(not lacking, f"{file} lacks columns that the model was trained on: {', '.join(lacking)}.")
    twice = [column.name for column in columns if header.count(column.name) > 1]
    require(not twice, f"{file} has two columns '{twice[0] if twice else ''}'.")


def _as_trained(column: Column, kind: ColumnKind, values: Values, where: str) -> Values:
    """Return values of the training rows' kind; refuse another kind."""
    if kind != column.kind and absent(values).all() and column.kind != "vector":
        return np.full(len(values), "") if column.kind == "category" else np.full(len(values), np.nan)
    require(kind == column.kind, f"{where} was read as {_NAMES[kind]}; the model was trained on {_NAMES[column.kind]}.")
    size = values.shape[1] if kind == "vector" else 1
    require(size == column.size, f"{where} has lists of {size} numbers; the model was trained on {column.size}.")
    return values


_NAMES: dict[ColumnKind, str] = {
    "number": "numbers", "yes or no": "yes and no", "date": "dates", "category": "words", "vector": "lists of numbers",
}  # fmt: skip
