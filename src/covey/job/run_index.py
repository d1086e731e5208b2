"""List of the runs, comparisons, on-demand jobs and fleets under a folder, with their results in short.

It reads JSON alone: no code of a folder, no checkpoint, no link. A run costs two small reads, and one that has not
changed since the last listing costs two looks at its files, so that a thousand runs take well under a second.
"""

import math
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.core.printable_text import printable
from covey.job.run_summary import Kind, RunSummary
from covey.storage import LOCK, is_being_written, open_plain, read_json

MIX_SCORES = "mix_scores.json"
"""File of an on-demand job: the accuracy of each model on its target."""

DEPTH = 6
"""Folders below this depth are not searched."""

_MARKS: Mapping[str, Kind] = {
    "fleet.toml": "fleet",
    "compare.json": "comparison",
    "ondemand.json": "ondemand",
    "config.json": "run",
}
"""File that says what a folder holds → kind; the first that is there counts."""

_LARGEST = 4 << 20
"""Most bytes that are read of one file."""

_LATEST = 253_402_214_400.0
"""The end of the year 9999, in seconds since 1970; a file may claim to be younger, and no calendar has more."""

_TAIL = 1 << 16
"""Bytes at the end of the records that are read first."""

_SCORES = ("accuracy", "score", "metric", "better", "loss")
"""What is kept of a record's scores."""


class RunIndex:
    """Lists what is under a folder, and remembers what it read by the files' times and sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[tuple[str, str], tuple[tuple[int, int, int], Any]] = {}

    def all(self) -> list[RunSummary]:
        """Return a line for every run, comparison, on-demand job and fleet, the last changed first."""
        found = [self._line(place, kind) for place, kind in found_under(self.folder)]
        return sorted(found, key=lambda line: (-line.changed, line.path))

    def one(self, path: str) -> RunSummary | None:
        """Return the line of one folder, by its path below the one that is listed; None if it holds no such thing."""
        place = self.folder / path
        kind = kind_of(place)
        return None if kind is None else self._line(place, kind)

    def _line(self, place: Path, kind: Kind) -> RunSummary:
        path = place.relative_to(self.folder).as_posix()
        try:
            _require_printable(path)
            if kind == "run":
                return self._run(place, path)
            return self._job(place, path, kind)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            shown, name = printable(path), printable(place.name)
            return RunSummary(shown, kind, "damaged", name, changed=_changed(place), fault=_in_words(error))

    def _run(self, place: Path, path: str) -> RunSummary:
        _require_printable(path)
        config = self._known(place, "config.json", _settings)
        last = self._known(place, "metrics.jsonl", _last_record)
        done, rounds = (int(last["round"]) if last else 0), int(config["rounds"])
        running = (place / LOCK).exists() and is_being_written(place)
        return RunSummary(
            path=path,
            kind="run",
            state="running" if running else "finished" if done >= rounds else "stopped",
            name=printable(str(config["method"])),
            dataset=_name(config.get("dataset")),
            environment=_name(config.get("environment")),
            model=_name(config.get("model")),
            runtime=printable(str(config.get("runtime", "local"))),
            clients=int(config["clients"]),
            cohort=int(config["cohort"]),
            seed=int(config["seed"]),
            done=done,
            rounds=rounds,
            accuracy=_figure(last, "accuracy"),
            score=_figure(last, "score"),
            metric=_word(last, "metric"),
            better=_word(last, "better"),
            loss=_figure(last, "loss"),
            changed=_changed(place),
        )

    def _job(self, place: Path, path: str, kind: Kind) -> RunSummary:
        """Return the line of a comparison, an on-demand job or a fleet: that of its runs together."""
        about = self._known(place, next(name for name, one in _MARKS.items() if one == kind), _JOBS[kind])
        runs = [self._run(one, one.relative_to(self.folder).as_posix()) for one in _runs_below(place)]
        scored = [run.main for run in runs if run.main is not None]
        measured = {(run.metric, run.better) for run in runs if run.main is not None}
        # Numbers of several metrics have no mean.
        mean = sum(scored) / len(scored) if len(measured) == 1 else None
        metric, better = measured.pop() if len(measured) == 1 else (None, None)
        planned = int(about["runs"])
        rounds = sum(run.rounds for run in runs)
        if runs and planned > len(runs):
            rounds += (planned - len(runs)) * max(run.rounds for run in runs)
        running = any(run.state == "running" for run in runs) or is_being_written(place)
        complete = len(runs) >= planned and all(run.state == "finished" for run in runs)
        first = runs[0] if runs else None
        return RunSummary(
            path=path,
            kind=kind,
            state="running" if running else "finished" if complete and runs else "stopped",
            name=printable(str(about["name"])),
            dataset=first.dataset if first else None,
            environment=first.environment if first else None,
            model=first.model if first else None,
            runtime=first.runtime if first else None,
            clients=first.clients if first else None,
            cohort=first.cohort if first else None,
            done=sum(run.done for run in runs),
            rounds=rounds,
            accuracy=mean if metric is None else None,
            score=None if metric is None else mean,
            metric=metric,
            better=better,
            mix_accuracy=self._known(place, MIX_SCORES, _mix_accuracy) if kind == "ondemand" else None,
            used=about.get("used"),
            epsilon=about.get("epsilon"),
            changed=max([_changed(place), *(run.changed for run in runs)]),
            runs=tuple(run.path for run in runs),
        )

    def _known(self, place: Path, name: str, read: Callable[[Path], Any]) -> Any:
        """Return what a file holds, as it was read when it had the same time, size and number."""
        try:
            found = (place / name).stat(follow_symlinks=False)
        except FileNotFoundError:
            if name in ("metrics.jsonl", MIX_SCORES):
                return None
            raise
        key, stamp = (str(place), name), (found.st_mtime_ns, found.st_size, found.st_ino)
        if key not in self._read or self._read[key][0] != stamp:
            self._read[key] = (stamp, read(place / name))
        return self._read[key][1]


def kind_of(place: Path) -> Kind | None:
    """Return what a folder holds; None if it is none of the kinds. Links count for nothing."""
    return next((kind for name, kind in _MARKS.items() if _is_file(place / name)), None)


def found_under(folder: Path) -> Iterator[tuple[Path, Kind]]:
    """Yield runs and jobs under a folder, with their kind. Runs of a job are part of it; links are not followed."""
    waiting: list[tuple[str, int]] = [(str(folder), 0)]
    while waiting:
        place, depth = waiting.pop()
        try:
            with os.scandir(place) as entries:
                listed = list(entries)
        except OSError:
            continue
        names = {entry.name for entry in listed if entry.is_file(follow_symlinks=False)}
        kind = next((kind for name, kind in _MARKS.items() if name in names), None)
        if kind is not None:
            yield Path(place), kind
        elif depth < DEPTH:
            waiting += [
                (entry.path, depth + 1)
                for entry in listed
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "__"))
            ]


def member_runs(place: Path) -> list[tuple[str, Path]]:
    """Return label and folder of the runs that a folder holds: a run is its only one, named ""."""
    kind = kind_of(place)
    if kind == "run":
        return [("", place)]
    return [] if kind is None else [(one.relative_to(place).as_posix(), one) for one in _runs_below(place)]


def last_lines(path: Path, most: int = _LARGEST) -> list[bytes]:
    """Return the whole lines at the end of a file, at least one if there is any within `most` bytes."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        block = _TAIL
        while True:
            begin = max(0, size - block)
            file.seek(begin)
            *lines, _ = file.read(size - begin).split(b"\n")
            whole = lines if begin == 0 else lines[1:]
            if whole or begin == 0 or block >= most:
                return whole
            block *= 8


def _runs_below(place: Path) -> list[Path]:
    """Return the run folders of a job: at most two levels below it."""
    found = []
    for entry in _folders(place):
        if kind_of(entry) == "run":
            found.append(entry)
        else:
            found += [one for one in _folders(entry) if kind_of(one) == "run"]
    return found


def _folders(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            return sorted(
                Path(entry.path)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        return []


def _text(path: Path) -> str:
    with open_plain(path) as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"{path.name} is larger than {_LARGEST >> 20} MiB")
    return data.decode("utf-8")


def _settings(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = read_json(_text(path))["config"]
    kept = ("method", "dataset", "environment", "model", "runtime", "clients", "cohort", "rounds", "seed")
    return {key: config[key] for key in kept if key in config}


def _last_record(path: Path) -> dict[str, Any] | None:
    """Return round, main metric and loss of the last line, with the scores of the last line that has any."""
    lines = last_lines(path)
    if not lines:
        return None
    last = read_json(lines[-1])
    scored = last
    for line in reversed(lines[-200:]):
        if b'"accuracy"' in line or b'"score"' in line:
            found = read_json(line)
            if found.get("accuracy", found.get("score")) is not None:
                scored = found
                break
    return {"round": last["round"], **{name: scored.get(name) for name in _SCORES}}


def _comparison(path: Path) -> dict[str, Any]:
    plan = read_json(_text(path))
    unvaried = plan.get("unvaried", {})
    variants = sum(
        math.prod(len(values) for key, values in plan["vary"].items() if key not in unvaried.get(method, ()))
        for method in plan["methods"]
    )
    return {"name": ", ".join(map(str, plan["methods"])), "runs": variants * len(plan["seeds"])}


def _mix_accuracy(path: Path) -> float | None:
    scores = [float(one) for one in read_json(_text(path))["accuracy"] if one is not None]
    return sum(scores) / len(scores) if scores else None


def _ondemand(path: Path) -> dict[str, Any]:
    job = read_json(_text(path))
    plan, noise = job["plan"], job["plan"].get("insight_dp")
    return {
        "used": len({int(client) for one in job.get("composed", ()) for client in one["clients"]}) or None,
        "epsilon": None if noise is None else float(str(noise).split(",")[0]),
        "name": "; ".join(str(target["name"]) for target in plan["targets"]),
        "runs": len(plan["targets"]) + bool(plan["continued"]),
    }


def _fleet(path: Path) -> dict[str, Any]:
    given = tomllib.loads(_text(path))
    return {"name": f"fleet at {given.get('address', 'an unknown address')}", "runs": 1}


_JOBS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "comparison": _comparison,
    "ondemand": _ondemand,
    "fleet": _fleet,
}
"""Kind of a job → what reads its name and its number of runs."""


def _figure(record: Mapping[str, Any] | None, name: str) -> float | None:
    value = None if record is None else record.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _word(record: Mapping[str, Any] | None, name: str) -> str | None:
    value = None if record is None else record.get(name)
    return printable(value) if isinstance(value, str) else None


def _name(part: Any) -> str | None:
    named = part.get("name") if isinstance(part, Mapping) else part
    return None if named is None else printable(str(named))


def _changed(place: Path) -> float:
    """Return when the records, or else the folder, last changed."""
    for path in (place / "metrics.jsonl", place):
        try:
            return min(max(path.stat(follow_symlinks=False).st_mtime, 0.0), _LATEST)
        except OSError:
            continue
    return 0.0


def _require_printable(path: str) -> None:
    if not path.isprintable():
        raise ValueError("the folder's name has characters that cannot be shown")


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat(follow_symlinks=False).st_mode)
    except (OSError, ValueError):
        return False


def _in_words(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error))[:200]


def filtered(
    lines: Sequence[RunSummary],
    *,
    text: str = "",
    kind: str = "",
    state: str = "",
    order: str = "changed",
    descending: bool = True,
) -> list[RunSummary]:
    """Return the lines that hold every word of `text`, of a kind and a state, by one of their figures; unknown last.

    By `score`, the best main metric comes first.
    """
    figure = "rank" if order == "score" else order
    words = text.lower().split()
    kept = []
    for line in lines:
        about = " ".join(str(one) for one in (line.path, line.name, line.dataset, line.environment, line.model)).lower()
        if all(word in about for word in words) and kind in ("", line.kind) and state in ("", line.state):
            kept.append(line)
    known = [line for line in kept if getattr(line, figure) is not None]
    known.sort(key=lambda line: getattr(line, figure), reverse=descending)
    return [*known, *(line for line in kept if getattr(line, figure) is None)]
