"""Rows as a pandas data frame, where pandas is installed."""

from typing import TYPE_CHECKING, Any

from covey.errors import Refusal

if TYPE_CHECKING:
    import pandas


def data_frame(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    """Return rows as a pandas data frame; refused if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise Refusal("A data frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)
