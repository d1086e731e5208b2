"""A user's table in a Parquet, Feather or Arrow file, read by row groups where its rows are used. Needs pyarrow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.data.arrow_values import index_of_pandas, kind_of, labels_of_column, values_of, words_of_column
from covey.data.columns import Column, MissingRule, absent, conversions, encoded, fitted, tests_notes
from covey.data.dataset import Dataset, channel_statistics
from covey.data.labels import label_values, targets_of
from covey.data.memory_map import READ_AT_ONCE
from covey.data.own_arrays import CLIENT, find, tested_alone
from covey.data.own_split import OwnSplit, SplitKind, split_rows
from covey.data.sample_store import SampleStore, in_place_of_tensor, taken
from covey.data.table import TableOptions, marked_rows, told
from covey.errors import Refusal, install, require
from covey.registries import datasets

_DATES = "here dates are a column of that type, not of text (pandas.to_datetime makes one)"

_BATCH = 1 << 16
"""Rows of a row group that are read at a time."""


@datasets.add("parquet")
def parquet(
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
    categories: int = 50,
    test_column: str = "",
) -> Dataset:
    """A Parquet, Feather or Arrow file: a label, optionally a client; other columns become numbers, lists are vectors.

    Files may be larger than memory: rows are read where they are used. Options are those of csv. Needs pyarrow.
    """
    options = TableOptions(label, client, test, split, missing, ignore, (), categories, test_column)
    file = find(path, data_dir, "parquet")
    table = read_arrow_table(file, options)
    data = table.dataset(file.stem)
    told(str(file), table.how_read, table.converted, data.notes[len(table.how_read) + len(table.converted) :])
    return data


class ArrowFile:
    """A Parquet, Feather or Arrow file: its columns, and its rows in blocks."""

    def __init__(self, file: Path) -> None:
        self.file = file
        require_arrow()
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet

        with readable(file):
            if file.suffix.lower() in (".feather", ".arrow"):
                self._batches = pyarrow.ipc.open_file(pyarrow.memory_map(str(file)))
                self.schema = self._batches.schema
                counts = [self._batches.get_batch(at).num_rows for at in range(self._batches.num_record_batches)]
            else:
                self._batches = None
                about = self._parquet.metadata
                self.schema = self._parquet.schema_arrow
                counts = [about.row_group(at).num_rows for at in range(about.num_row_groups)]
        self.index = index_of_pandas(self.schema)
        """Columns of pandas' row index, which are no features."""
        self.begin = np.cumsum([0, *counts])
        """Row where each block begins, and after them the number of rows."""

    @property
    def _parquet(self) -> Any:
        import pyarrow.parquet

        # Opened in every process that reads: a file's position is shared by processes that were forked.
        return pyarrow.parquet.ParquetFile(str(self.file))

    @property
    def rows(self) -> int:
        return int(self.begin[-1])

    def parts(self, block: int, names: Sequence[str]) -> Iterator[Any]:
        """Yield a block's rows in order, some at a time."""
        if self._batches is not None:
            batch = self._batches.get_batch(block).select(list(names))
            for at in range(0, batch.num_rows, _BATCH):
                yield batch.slice(at, _BATCH)
        else:
            yield from self._parquet.iter_batches(_BATCH, row_groups=[block], columns=list(names))

    def column(self, name: str) -> Any:
        """Return one column, of all rows."""
        import pyarrow

        if self._batches is None:
            return self._parquet.read(columns=[name]).column(name)
        blocks = range(self._batches.num_record_batches)
        return pyarrow.chunked_array(
            [self._batches.get_batch(at).column(name) for at in blocks], self.schema.field(name).type
        )


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Refuse a file that is damaged, or is something else."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        about = " ".join(str(error).split()).rstrip(".")
        raise Refusal(f"{file} cannot be read as a table, or not all of it: {about[:200]}.") from error


def require_arrow() -> None:
    """Refuse if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise Refusal(
            f"Parquet, Feather and Arrow files are read by pyarrow, which is not installed: {install('parquet')}."
        ) from None


class ArrowSamples(SampleStore):
    """Rows of a table as features, float32, read by row groups."""

    def __init__(self, table: ArrowFile, columns: Sequence[Column]) -> None:
        width = sum(column.width for column in columns)
        super().__init__((table.rows, width), torch.float32, f"{table.file}: row")
        self.table = table
        self.columns = tuple(columns)

    @cached_property
    def _names(self) -> list[str]:
        return [column.name for column in self.columns]

    def read(self, rows: Tensor) -> Tensor:
        with readable(self.table.file):
            return self._read(rows)

    def _read(self, rows: Tensor) -> Tensor:
        wanted = rows.numpy()
        found = np.empty((len(wanted), self.shape[1]), dtype=np.float32)
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        for begin, batch in self._batches(ascending):
            low, high = np.searchsorted(ascending, [begin, begin + batch.num_rows])
            if low < high:
                found[order[low:high]] = self._features(batch.take(ascending[low:high] - begin))
        return torch.from_numpy(found)

    def _batches(self, ascending: NDArray[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the batches that hold these rows, each with the number of its first row."""
        bounds = self.table.begin
        for block in range(len(bounds) - 1):
            low, high = np.searchsorted(ascending, [bounds[block], bounds[block + 1]])
            begin = int(bounds[block])
            for batch in self.table.parts(block, self._names) if low < high else ():
                yield begin, batch
                begin += batch.num_rows
                if begin > ascending[high - 1]:
                    break

    def _features(self, batch: Any) -> NDArray[np.float32]:
        where = str(self.table.file)
        values = [
            values_of(batch.column(column.name), column.kind, f"{where}, column '{column.name}'")
            for column in self.columns
        ]
        return encoded(self.columns, values, batch.num_rows)

    def keep_within(self, limit: int) -> None:
        before = self._kept
        super().keep_within(limit)
        if before is None and self._kept is not None:
            # Row groups are read as a whole, so all rows at once cost little more than some.
            kept, read = self._kept
            at = 0
            self._kept = None
            for piece in self.pieces():
                kept[at : at + len(piece)] = piece
                at += len(piece)
            read.fill_(1)
            self._kept = kept, read


@dataclass(frozen=True, eq=False)
class ArrowTable:
    """A file's table as it was understood."""

    store: ArrowSamples
    labels: NDArray[Any]
    clients: NDArray[Any] | None
    rows: OwnSplit
    converted: tuple[str, ...]
    """Sentences about columns that became something else, or are odd."""
    tested: tuple[str, ...]
    """Sentences about clients without samples of a kind, and about values of the test rows alone."""
    task_note: str = ""
    """A sentence about the task that the labels are for, if it was inferred."""
    how_read: tuple[str, ...] = ()
    """Sentences about columns that were left out."""

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.how_read, *self.converted, *self.tested)

    @property
    def source(self) -> str:
        return str(self.store.table.file)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.store.columns

    def dataset(self, name: str) -> Dataset:
        """Return the table as a data set; a small one is read now."""
        names, target, note = targets_of(self.labels, None, self.source, self.task_note)
        small = self.store.nbytes <= READ_AT_ONCE
        x = self.store.to(torch.device("cpu")) if small else in_place_of_tensor(self.store)
        rows = self.rows
        train_x = taken(x, rows.train)
        mean, deviation = channel_statistics(train_x)
        return Dataset(
            name, train_x, target[rows.train], taken(x, rows.test), target[rows.test], names, mean, deviation,
            rows.groups, rows.names, test_groups=rows.test_groups,
            notes=(*self.notes, *tested_alone(target, rows, names)), note=note, columns=self.columns,
        )  # fmt: skip


def read_arrow_table(file: Path, options: TableOptions) -> ArrowTable:
    """Open a file, and understand its columns, one after another."""
    table = ArrowFile(file)
    with readable(file):
        return _understood(table, file, options)


def _understood(table: ArrowFile, file: Path, options: TableOptions) -> ArrowTable:
    from pyarrow.types import is_dictionary

    header = list(table.schema.names)
    named = options.named(header, str(file))
    require(table.rows > 0, f"{file} has no rows.")
    features = [name for name in header if name not in named and name not in table.index]
    require(len(features) > 0, f"{file} has no columns beside {' and '.join(map(repr, named))}: no features.")
    kinds = {name: kind_of(table.schema.field(name), str(file)) for name in features}
    answers = options.labels(header)
    categories = [name for name in answers if is_dictionary(table.schema.field(name).type)]
    labels, note = label_values(
        [labels_of_column(table.column(name), file, name) for name in answers], answers, str(file),
        lambda row: f"{file}, row {row}", categories,
        "if labels are words: the type dictionary, category in pandas",
    )  # fmt: skip

    def words(name: str) -> NDArray[Any]:
        return words_of_column(table.column(name), file, name)

    clients = words(options.client) if options.client in named else None
    marked = None
    if options.test_column:
        told_so = words(options.test_column)
        marked = marked_rows([f"{file}, row {row}" for row in range(len(told_so))], told_so, options.test_column)
    rows = split_rows(clients, table.rows, options.test, str(file), how=options.split, marked=marked)
    columns, notes = [], list(rows.notes)
    for name in features:
        where = f"{file}, column '{name}'"
        if kinds[name] == "vector":
            columns.append(Column(name, "vector", size=_vector_size(table, name, where)))
            continue
        values = values_of(table.column(name), kinds[name], where)
        gaps = np.flatnonzero(absent(values))
        require(
            len(gaps) == 0 or options.missing == "median",
            f"{where} lacks a value in row {gaps[0] if len(gaps) else 0}; with dataset.missing=median the column's "
            "median takes its place.",
        )
        column = fitted(name, kinds[name], values[rows.train.numpy()], options.categories, str(file), _DATES)
        columns.append(column)
        notes += tests_notes(column, values[rows.test.numpy()], "test")
    store = ArrowSamples(table, columns)
    dropped = [name for name in table.index if name not in named]
    index = tuple(
        f"The index '{name}' of pandas was left out: it tells the order of rows, or names them." for name in dropped
    )
    return ArrowTable(store, labels, clients, rows, conversions(columns), tuple(notes), note, index)


def _vector_size(table: ArrowFile, name: str, where: str) -> int:
    first = next(table.parts(0, [name])).column(name)
    size = values_of(first.slice(0, 1), "vector", where).shape[1]
    require(size > 0, f"{where}: lists hold no values.")
    return int(size)
