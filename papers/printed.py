"""Numbers printed in the papers, kept in a file `printed.toml` beside each paper's modules."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_printed(module: str) -> dict[str, Any]:
    """Read the numbers beside a module, given its `__file__`."""
    return tomllib.loads(Path(module).with_name("printed.toml").read_text(encoding="utf-8"))


def by_method(printed: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return figures under our names of methods; `names` maps a method in the paper to its forms here."""
    return {name: value for method, value in printed.items() for name in names[method]}
