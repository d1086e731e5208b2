"""Settings of a request as data: those that name code or files are refused."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from covey.config.values import ENDINGS, own_names
from covey.errors import require
from covey.job.settings import expand
from covey.serve.model_order import NO_PATH
from covey.trust import paths_in

_FILES = ("path", "test_file", "agent")
"""Options of parts that name a file."""

_FILE_GIVEN = re.compile(rf"(^|[,\s])({'|'.join(_FILES)})\s*=")
"""A part with such an option, described in a text: feddrl,agent=agent.safetensors."""


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, nested, without code and without paths."""
    given = expand(settings)
    require_no_code(own_names(given) | {f"setting {number}": name for number, name in enumerate(paths_in(given), 1)})
    require("data_dir" not in given, "data_dir is the server's own: COVEY_DATA, in the environment that it starts in.")
    require_no_paths(given)
    return given


def require_no_code(found: Mapping[str, str]) -> None:
    """Refuse names of code."""
    named = ", ".join(f"{where} {name}"[:120] for where, name in found.items())
    require(not found, f"A request cannot name code to import: {named}. Install it as a plugin of Covey's.")


def require_no_paths(given: Any) -> None:
    """Refuse settings that name a file, or may."""
    for text in _texts(given):
        require(
            len(text) <= 2000 and ".." not in text and bool(NO_PATH.fullmatch(text)) and text.isprintable(),
            f"'{text[:80]}' is or may be a path: settings over HTTP name no files.",
        )

    for key, value in _leaves(given):
        option = key.rpartition(".")[2]
        require(
            option not in _FILES or value in (None, ""),
            f"'{option}' names a file of the server's: settings over HTTP name no files.",
        )
        require(
            not isinstance(value, str) or not (_FILE_GIVEN.search(value) or _is_table(option, value)),
            f"'{str(value)[:80]}' names a file of the server's: settings over HTTP name no files.",
        )


def _is_table(option: str, value: str) -> bool:
    """True if a data set is named by its file."""
    return option in ("dataset", "name") and Path(value).suffix.lower() in ENDINGS


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in settings, with the name of the option that they are of."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
