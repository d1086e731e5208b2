"""Columns of Arrow as arrays: values of features, and labels and clients."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.data.columns import ColumnKind, Values
from covey.data.table import require_given
from covey.data.written_values import is_missing_name
from covey.errors import Refusal, require

_CLASSES = 10_000
"""Most classes that lists of labels may number; a larger number is a mistake."""


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
    if _is_list(kind) and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return "vector"
    raise Refusal(
        f"{where}, column '{field.name}' is of the type {field.type}, which is neither numbers, dates, words nor lists "
        f"of numbers: leave it out with dataset.ignore={field.name}."
    )


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


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


def words_of_column(column: Any, file: Path, name: str) -> NDArray[Any]:
    """Return labels or clients `[n]`, numbers or words; every row must have one."""
    import pyarrow
    import pyarrow.compute as compute
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    words = types.is_string(column.type) or types.is_large_string(column.type)
    missing = compute.is_null(column, nan_is_null=True).to_numpy()
    for row in np.flatnonzero(missing)[:1].tolist():
        require_given("", f"{file}, row {row}", name)
    if types.is_decimal(column.type):
        column = column.cast(pyarrow.float64(), safe=False)
    plain = words or types.is_primitive(column.type)
    require(plain, f"{file}: the column '{name}' must hold numbers or words, not {column.type}.")
    found = column.to_numpy()
    if not words and found.dtype.kind in "biuf":
        return np.asarray(found)
    found = found.astype(np.str_)
    different, first = np.unique(found, return_index=True)
    for row in sorted(row for row, word in zip(first.tolist(), different, strict=True) if is_missing_name(word))[:1]:
        require_given(str(found[row]), f"{file}, row {row}", name)
    return np.asarray(found)


def labels_of_column(column: Any, file: Path, name: str) -> NDArray[Any]:
    """Return labels `[n]`, or of a column of lists `[n, k]`: 0/1 lists as they are, and lists of classes as 0/1."""
    from pyarrow import types

    if types.is_date(column.type) or types.is_timestamp(column.type) or types.is_time(column.type):
        raise Refusal(
            f"{file}: the label '{name}' is of the type {column.type}: give what a model can learn, such as a number "
            "of days; or, if dates are names of classes, words of the type dictionary (category in pandas)."
        )
    if not _is_list(column.type):
        return words_of_column(column, file, name)
    require(
        types.is_integer(column.type.value_type) or types.is_floating(column.type.value_type),
        f"{file}: the label '{name}' holds lists of {column.type.value_type}; they must hold 0 and 1, or numbers of "
        "classes.",
    )
    return _label_lists(column, f"{file}, column '{name}'")


def _label_lists(column: Any, where: str) -> NDArray[Any]:
    import pyarrow.compute as compute

    require(column.null_count == 0, f"{where}: a row has no list; all must, and that of no class is empty.")
    lengths = compute.list_value_length(column).to_numpy()
    flat = compute.list_flatten(column)
    require(flat.null_count == 0, f"{where}: a list holds a missing value.")
    values = np.asarray(flat.to_numpy())
    alike = len(np.unique(lengths)) == 1
    if alike and lengths[0] > 0 and bool(np.isin(values, (0, 1)).all() or values.dtype.kind == "f"):
        return values.reshape(len(lengths), -1)
    require(
        not alike and values.dtype.kind in "iu" and int(values.min(initial=0)) >= 0,
        f"{where}: lists of labels hold 0 and 1, one for each class; or numbers of classes from 0, as many as a sample "
        "has; or numbers to predict, with decimals.",
    )
    classes = int(values.max()) + 1
    require(classes <= _CLASSES, f"{where}: the number of a class is {classes - 1:,}; the largest is {_CLASSES - 1:,}.")
    found = np.zeros((len(lengths), classes), dtype=np.uint8)
    found[np.repeat(np.arange(len(lengths)), lengths), values] = 1
    return found


def index_of_pandas(schema: Any) -> tuple[str, ...]:
    """Return the columns in which pandas has kept the index of a frame's rows."""
    try:
        stored = (schema.pandas_metadata or {}).get("index_columns") or ()
    except ValueError:  # Metadata that are damaged.
        return ()
    return tuple(name for name in stored if isinstance(name, str) and name in schema.names)
