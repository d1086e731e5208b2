"""Target class mixes as users give them: text, mappings, numbers, a file of labels."""

import csv
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from covey.arrays import FloatArray
from covey.data.paper_targets import PREFIXES, local_target
from covey.data.paper_targets import target as named_target
from covey.errors import Refusal, require

Target: TypeAlias = str | Path | Mapping[Any, float] | Sequence[float] | FloatArray
"""`"cat=0.5,dog=0.5"`, `"td1"`, `"local:7"`, a file of labels, class → share, or a share for each class in order."""

_HEADINGS = ("label", "labels", "class", "y", "target")
"""Headings of a column of labels; the first of these that a file has is used."""


@dataclass(frozen=True, eq=False)
class TargetMix:
    """A class mix that was asked for."""

    name: str
    mix: FloatArray
    """`[classes]`, sums to one."""
    notes: tuple[str, ...] = ()
    """Changes made to the target as given."""

    def as_mapping(self) -> dict[str, Any]:
        """Return the target for JSON; `of` reads it."""
        return {"name": self.name, "mix": self.mix.tolist(), "notes": list(self.notes)}

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> "TargetMix":
        """Read a target from `as_mapping`'s result."""
        return cls(str(mapping["name"]), np.array(mapping["mix"], dtype=np.float64), tuple(mapping["notes"]))


def parse_target(
    target: Target, class_names: Sequence[str], shares: FloatArray | None = None, clients: Sequence[str] = ()
) -> TargetMix:
    """Return a target as a mix over all classes; refuse one that cannot be read.

    Classes are given by name, or by number from 0 if no class has that name. Shares that do not sum to one are scaled,
    with a note. `shares` are the clients' own mixes `[clients, classes]`, where they are known, for targets such as
    `local:7`; `clients` are the names of clients, for those such as `local:kiel`.
    """
    if isinstance(target, TargetMix):
        return target
    if isinstance(target, Path):
        return _from_labels(target, class_names)
    if isinstance(target, str):
        text = target.strip()
        if "=" not in text:
            require(bool(text), "The target is empty: say what share of which class, such as 0=0.5,3=0.5.")
            if text.lower().startswith("local:") and shares is not None:
                return TargetMix(text, local_target(shares[client_number(text[6:], len(shares), clients)]))
            if text.lower() in PREFIXES or text.lower().startswith("local:"):
                return TargetMix(text, named_target(text, len(class_names), shares))
            require(
                not _is_file(text),
                f"'{text}' is a file: for the mix of the labels in it, --target-csv '{text}', or in Python a Path.",
            )
            raise Refusal(
                f"'{text}' is not a target: give shares such as {class_names[0]}=0.7,{class_names[-1]}=0.3; "
                f"or {', '.join(PREFIXES)}" + ("." if shares is None else "; or local:0, the mix of client 0.")
            )
        return _from_shares(text, _pairs(text), class_names)
    if isinstance(target, Mapping):
        pairs = [(str(label), share) for label, share in target.items()]
        name = ",".join(f"{label}={share:g}" if _is_number(share) else label for label, share in pairs)
        return _from_shares(name, pairs, class_names)
    require(
        isinstance(target, Sequence | np.ndarray) and np.ndim(target) <= 1,
        f"{target!r:.60} is no target: give shares such as {class_names[0]}=0.7,{class_names[-1]}=0.3.",
    )
    values = list(target)
    require(
        len(values) == len(class_names),
        f"A target in numbers has a share for each of the {len(class_names)} classes, and this one has {len(values)}.",
    )
    held = [(label, share) for label, share in enumerate(values) if not _is_number(share) or share != 0]
    name = ",".join(f"{class_names[label]}={share:.3g}" for label, share in held if _is_number(share))
    return _from_numbers(name, dict(held), class_names)


def parse_targets(
    targets: Any, class_names: Sequence[str], shares: FloatArray | None = None, clients: Sequence[str] = ()
) -> tuple[TargetMix, ...]:
    """Return the mixes of one target or of a list of them."""
    require(
        isinstance(targets, str | Path | Mapping | TargetMix | Sequence | np.ndarray),
        f"{targets!r:.60} is no target: give shares such as {class_names[0]}=0.7,{class_names[-1]}=0.3.",
    )
    one = isinstance(targets, (str, Path, Mapping, TargetMix)) or (
        len(targets) > 0
        and all(np.ndim(item) == 0 and not isinstance(item, (str, Path, TargetMix)) for item in targets)
    )
    found = tuple(parse_target(target, class_names, shares, clients) for target in ([targets] if one else targets))
    require(len(found) > 0, "There is no target: say what share of which class, such as 0=0.5,3=0.5.")
    return found


def class_number(label: str, class_names: Sequence[str]) -> int:
    """Return the number of the class named `label`, or of the class with that number."""
    if label in class_names:
        return list(class_names).index(label)
    if label.isdecimal() and int(label) < len(class_names):
        return int(label)
    close = difflib.get_close_matches(label, class_names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    listed = ", ".join(class_names[:20]) + (", …" if len(class_names) > 20 else "")
    raise Refusal(f"There is no class '{label}'.{hint} Classes: {listed}; or by number, 0 to {len(class_names) - 1}.")


def client_number(word: str | int, clients: int, names: Sequence[str] = ()) -> int:
    """Return the number of the client called `word`, or of the client with that number; refuse an unknown one."""
    text = str(word).strip()
    if text in names:
        return list(names).index(text)
    if text.isdecimal() and int(text) < clients:
        return int(text)
    close = difflib.get_close_matches(text, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    known = f"Clients: {listed}; or by number, 0" if names else "Clients are 0"
    raise Refusal(f"There is no client '{text}'.{hint} {known} to {clients - 1}.")


def client_numbers(words: str | Sequence[str | int], clients: int, names: Sequence[str] = ()) -> list[int]:
    """Return the numbers of clients given as a list, or as text with commas between names or numbers; ascending."""
    given = [word for word in words.split(",") if word.strip()] if isinstance(words, str) else list(words)
    numbers = sorted({client_number(word, clients, names) for word in given})
    require(len(numbers) < clients, "All clients are left out, so there is none to compose a mix from.")
    return numbers


def _pairs(text: str) -> list[tuple[str, Any]]:
    pairs = []
    for part in text.split(","):
        if part.strip():
            label, _, share = part.rpartition("=")
            require(bool(label.strip()), f"'{part.strip()}' is not of the form class=share, such as 3=0.5.")
            pairs.append((label.strip(), share.strip()))
    return pairs


def _from_shares(name: str, pairs: Sequence[tuple[str, Any]], class_names: Sequence[str]) -> TargetMix:
    held: dict[int, Any] = {}
    for label, share in pairs:
        number = class_number(label, class_names)
        require(number not in held, f"The target names '{class_names[number]}' twice.")
        held[number] = share
    return _from_numbers(name, held, class_names)


def _from_numbers(name: str, held: Mapping[int, Any], class_names: Sequence[str]) -> TargetMix:
    mix = np.zeros(len(class_names))
    for label, share in held.items():
        try:
            mix[label] = float(share)
        except (TypeError, ValueError):
            raise Refusal(f"The share of '{class_names[label]}' must be a number, not '{share}'.") from None
        require(
            bool(np.isfinite(mix[label])) and mix[label] >= 0,
            f"The share of '{class_names[label]}' must not be negative or infinite, not {share}.",
        )
    total = math.fsum(mix) if mix.max() < 1e300 else math.inf
    require(total < math.inf, f"The shares of '{name}' are too large to be added up.")
    require(total > 0, "The target is empty: all of its shares are zero.")
    notes = () if abs(total - 1) < 1e-6 else (f"The shares of '{name}' sum to {total:g} and were scaled to sum to 1.",)
    return TargetMix(name, mix / total, notes)


def _from_labels(path: Path, class_names: Sequence[str]) -> TargetMix:
    """Return the mix of the labels in a file: one per line, or a CSV column with one of the `_HEADINGS`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refusal(
            f"The file of labels {path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    column = 0
    if rows:
        heading = ["" if cell.strip() in class_names else cell.strip().lower() for cell in rows[0]]
        found = [heading.index(name) for name in _HEADINGS if name in heading]
        if found:
            column, rows = found[0], rows[1:]
    require(bool(rows), f"The file {path} holds no labels.")
    allowed = f"one label a line, or a table with a column headed {', '.join(_HEADINGS[:-1])} or {_HEADINGS[-1]}"
    require(all(len(row) > column for row in rows), f"Some lines of {path} have no label: it is {allowed}.")
    try:
        labels = [class_number(row[column].strip(), class_names) for row in rows]
    except Refusal as refusal:
        raise Refusal(f"In the file {path}: {refusal} A file of labels is {allowed}.") from None
    counts = np.bincount(labels, minlength=len(class_names)).astype(np.float64)
    return TargetMix(path.name, counts / counts.sum())


def _is_share(item: Any) -> bool:
    """True for an element of a target in numbers, False for a target in a list of targets."""
    return np.ndim(item) == 0 and not isinstance(item, (str, Path, TargetMix))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:
        # Text may be too long for a file name.
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
