"""Numbers that the FedDRL paper prints (see `printed.toml`)."""

from collections.abc import Mapping

from papers.printed import read_printed

_PRINTED = read_printed(__file__)
_TABLES = {"table-3": ("pa", "ce", "cn"), "table-4": ("equal", "unequal")}
"""Table → the splits of its columns."""

DECISION_SECONDS: float = _PRINTED["decision"]["seconds"]
"""Figure 9: the agent's decision."""

AGGREGATION_SECONDS: Mapping[str, float] = _PRINTED["aggregation"]
"""Figure 9: model → seconds of aggregation."""


def printed_accuracy(data: str, clients: int, split: str) -> Mapping[str, float]:
    """Return method → best accuracy in percent; {} for an environment that the paper does not have."""
    for table, splits in _TABLES.items():
        rows = _PRINTED[table].get(data, {}).get(str(clients), {})
        if split in splits and rows:
            return {method: row[splits.index(split)] for method, row in rows.items()}
    return {}
