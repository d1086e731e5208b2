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

from covey.data.columns import (
    Column,
    ColumnKind,
    MissingRule,
    Values,
    absent,
    conversions,
    encoded,
    fitted,
    tests_notes,
)
from covey.data.dataset import Dataset, channel_statistics
from covey.data.labels import label_values, targets_of
from covey.data.memory_map import READ_AT_ONCE
from covey.data.own_arrays import CLIENT, find, tested_alone
from covey.data.own_split import OwnSplit, SplitKind, split_rows
from covey.data.sample_store import SampleStore, in_place_of_tensor, taken
from covey.data.table import TableOptions, marked_rows, told
from covey.errors import Refusal, require
from covey.registries import datasets

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
    told(str(file), table.notes)
    return table.dataset(file.stem)


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
            "Parquet, Feather and Arrow files are read by pyarrow, which is not installed: "
            "pip install 'covey[parquet]'."
        ) from None


def kind_of(field: Any, where: str) -> ColumnKind:
    """Return what a column is, by its type."""
    from pyarrow import types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if types.is_boolean(kind):
        return "yes or no"
    if types.is_null(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date"
    if types.is_string(kind) or types.is_large_string(kind):
        return "category"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if lists and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return "vector"
    raise Refusal(
        f"{where}, column '{field.name}' is of the type {field.type}, which is neither numbers, dates, words nor lists "
        f"of numbers: leave it out with dataset.ignore={field.name}."
    )


def values_of(given: Any, kind: ColumnKind, where: str) -> Values:
    """Return the values of a column of Arrow, as `covey.data.columns` has them; `where` names the column."""
    import pyarrow
    import pyarrow.compute as compute

    chunks = given if isinstance(given, pyarrow.ChunkedArray) else pyarrow.chunked_array([given])
    if pyarrow.types.is_dictionary(chunks.type):
        chunks = chunks.cast(chunks.type.value_type)
    if kind == "vector":
        return _vectors(chunks, where)
    if kind == "category":
        return np.asarray(compute.fill_null(chunks.cast(pyarrow.string()), "").to_numpy().astype(np.str_))
    if kind == "date":
        micro = chunks.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
        days: Values = _floats(micro) / 86_400e6
        return days
    return _floats(chunks)


def _floats(chunks: Any) -> Values:
    import pyarrow

    values: Values = chunks.cast(pyarrow.float64(), safe=False).to_numpy()
    return values


def _vectors(chunks: Any, where: str) -> Values:
    """Return lists of numbers of one length as rows, `[n, length]`."""
    import pyarrow.compute as compute

    require(chunks.null_count == 0, f"{where}: a row has no list of numbers; all must.")
    fixed = hasattr(chunks.type, "list_size")
    lengths = {chunks.type.list_size} if fixed else set(compute.unique(compute.list_value_length(chunks)).to_pylist())
    require(
        len(lengths) <= 1, f"{where}: lists of numbers have different lengths ({_some(lengths)}); all must have one."
    )
    flat = chunks.combine_chunks().flatten() if chunks.num_chunks != 1 else chunks.chunk(0).flatten()
    require(flat.null_count == 0, f"{where}: a list holds a missing value.")
    return _floats(flat).reshape(len(chunks), -1)


def _some(numbers: set[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)[:4])


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

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.converted, *self.tested)

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
            notes=(*self.notes, *tested_alone(target, rows, names)), note=note,
        )  # fmt: skip


def read_arrow_table(file: Path, options: TableOptions) -> ArrowTable:
    """Open a file, and understand its columns, one after another."""
    table = ArrowFile(file)
    with readable(file):
        return _understood(table, file, options)


def _understood(table: ArrowFile, file: Path, options: TableOptions) -> ArrowTable:
    header = list(table.schema.names)
    named = options.named(header, str(file))
    require(table.rows > 0, f"{file} has no rows.")
    features = [name for name in header if name not in named]
    require(len(features) > 0, f"{file} has no columns beside {' and '.join(map(repr, named))}: no features.")
    kinds = {name: kind_of(table.schema.field(name), str(file)) for name in features}
    answers = options.labels(header)
    labels, note = label_values([_words(table, name) for name in answers], answers, str(file))
    clients = _words(table, options.client) if options.client in named else None
    marked = None
    if options.test_column:
        told_so = _words(table, options.test_column)
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
        column = fitted(name, kinds[name], values[rows.train.numpy()], options.categories, str(file))
        columns.append(column)
        notes += tests_notes(column, values[rows.test.numpy()])
    store = ArrowSamples(table, columns)
    return ArrowTable(store, labels, clients, rows, conversions(columns), tuple(notes), note)


def _vector_size(table: ArrowFile, name: str, where: str) -> int:
    first = next(table.parts(0, [name])).column(name)
    size = values_of(first.slice(0, 1), "vector", where).shape[1]
    require(size > 0, f"{where}: lists hold no values.")
    return int(size)


def _words(table: ArrowFile, name: str) -> NDArray[Any]:
    """Return labels or clients, numbers or words; every row must have one."""
    import pyarrow
    import pyarrow.compute as compute

    column = table.column(name)
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    words = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
    missing = compute.is_null(column, nan_is_null=True)
    if words:
        missing = compute.or_kleene(missing, compute.equal(compute.utf8_trim_whitespace(column), ""))
    for row in np.flatnonzero(missing.to_numpy())[:1]:
        raise Refusal(f"{table.file}, row {row}: the column '{name}' is empty.")
    plain = words or pyarrow.types.is_primitive(column.type)
    require(plain, f"{table.file}: the column '{name}' must hold numbers or words, not {column.type}.")
    found = column.to_numpy()
    return np.asarray(found.astype(np.str_) if words or found.dtype.kind not in "biuf" else found)
