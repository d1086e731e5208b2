"""Values of settings in one form, however they were written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def typed(given: Any, like: Any = None) -> Any:
    """Return a setting's value in one form for all ways to write it: "2" as 2 where it is a number.

    `like` is the value that it resolves to, where that is known. Elsewhere a text counts as the number that reads the
    same.
    """
    if isinstance(given, Mapping):
        known = like if isinstance(like, Mapping) else {}
        return {key: typed(value, known.get(key)) for key, value in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [typed(value, _first(like)) for value in given]
    if isinstance(like, Sequence) and not isinstance(like, str):
        # One value, or several with commas between them, stand for a list.
        parts = given.split(",") if isinstance(given, str) else [given]
        return [typed(part.strip() if isinstance(part, str) else part, _first(like)) for part in parts]
    if isinstance(given, str):
        return _typed_text(given, like)
    if isinstance(given, float) and given.is_integer() and not isinstance(like, float) and abs(given) < 1 << 53:
        return int(given)
    return float(given) if isinstance(given, int) and isinstance(like, float) and not isinstance(given, bool) else given


def _typed_text(text: str, like: Any) -> Any:
    if text.lower() in ("true", "false") and (isinstance(like, bool) or like is None):
        return text.lower() == "true"
    if isinstance(like, (str, bool)):
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number) or (like is None and text not in (str(number), f"{number:.0f}")):
        return text
    return typed(number, like)


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, Sequence) and not isinstance(values, str) and values else None
