"""Progress of runs: bars on a terminal and in a notebook, a line now and then where output is piped."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from covey.core.printable_text import printable, printable_lines
from covey.core.progress import JobPlan, listening, noting, planning

if TYPE_CHECKING:
    from covey.core.loop import OnRound

SCORED_PAUSE, PLAIN_PAUSE = 10.0, 60.0
"""Least seconds between two lines of a log: after rounds with a score, and after others."""


class PlainConsole(Console):
    """A console that does not pass on escape sequences: names and reasons in a folder are others' text."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable_lines(text), **options)


# Printed text holds names that users chose, brackets included, so markup is off.
shown_on = PlainConsole(stderr=True, markup=False)


def bars_wanted(progress: bool | None) -> bool:
    """True if progress is shown: as asked, or by default on a terminal and in a notebook."""
    if progress is not None:
        return progress
    return (sys.stderr is not None and sys.stderr.isatty()) or in_notebook()


def in_notebook() -> bool:
    """True in a Jupyter notebook."""
    shell = sys.modules.get("IPython")
    current = shell.get_ipython() if shell is not None else None
    return type(current).__name__ == "ZMQInteractiveShell"


@contextmanager
def run_progress(name: str, rounds: int, done: int) -> "Iterator[OnRound]":
    """Show the progress of one run over its rounds."""
    with _bars() as bars:
        task = bars.add_task(printable(name), total=rounds, completed=done, score="", wait="")
        log = _Log(bars.disable, rounds - done)

        def on_round(record: dict[str, Any]) -> None:
            _advance(bars, task, record)
            log.note(f"{name}: round {record['round']:,} of {rounds:,}", record, last=record["round"] >= rounds)

        with noting(_say), listening(lambda wait: bars.update(task, wait=wait)):
            yield on_round


@contextmanager
def comparison_progress() -> "Iterator[tuple[Callable[[str, int | None, int], None], OnRound]]":
    """Show the progress of each run of a job when it begins, and which of how many it is."""
    with _bars() as bars:
        current: list[tuple[TaskID, str, int]] = []
        place = {"run": 0, "runs": 0}
        log = _Log(bars.disable, 0)

        def on_plan(plan: JobPlan) -> None:
            place.update(run=plan.runs - plan.missing, runs=plan.runs)
            log.expect(plan.rounds)

        def on_run(label: str, seed: int | None, rounds: int) -> None:
            name = label if seed is None else f"{label}, seed {seed}"
            place["run"] += 1
            if place["runs"] > 1 and seed is not None:
                name = f"run {place['run']} of {place['runs']}: {name}"
            current[:] = [(bars.add_task(printable(name), total=rounds, score="", wait=""), name, rounds)]

        def on_round(record: dict[str, Any]) -> None:
            task, name, rounds = current[0]
            _advance(bars, task, record)
            last = record["round"] >= rounds and place["run"] >= place["runs"]
            log.note(f"{name}: round {record['round']:,} of {rounds:,}", record, last=last)

        with (
            noting(_say),
            planning(on_plan),
            listening(lambda wait: bars.update(current[0][0], wait=wait) if current else None),
        ):
            yield on_run, on_round


def shown(progress: bool | None, name: str, rounds: int, done: int) -> "AbstractContextManager[OnRound | None]":
    """Show the progress of one run if it is wanted."""
    return run_progress(name, rounds, done) if bars_wanted(progress) else nullcontext()


def both(first: "OnRound | None", second: "OnRound | None") -> "OnRound | None":
    """Return what calls both listeners."""
    if first is None or second is None:
        return first or second

    def on_round(record: dict[str, Any]) -> None:
        first(record)
        second(record)

    return on_round


def text_column(of: str) -> TextColumn:
    """Return a column of plain text."""
    return TextColumn(of, markup=False)


def _say(text: str) -> None:
    """Print a sentence above the bars."""
    shown_on.print(printable(text), highlight=False, soft_wrap=True)


def _bars() -> Progress:
    return Progress(
        text_column("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        text_column("{task.fields[score]}"),
        text_column("{task.fields[wait]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=shown_on,
        disable=not (shown_on.is_terminal or shown_on.is_jupyter),
    )


def _advance(bars: Progress, task: TaskID, record: dict[str, Any]) -> None:
    """Move a bar on; it keeps its accuracy until the next evaluation."""
    bars.update(task, completed=record["round"])
    if score := _score(record):
        bars.update(task, score=score)


def _score(record: dict[str, Any]) -> str:
    if isinstance(accuracy := record.get("accuracy"), float):
        return f"accuracy {accuracy:.1%}"
    if isinstance(score := record.get("score"), float):
        # Imported late: tasks need torch, and the command line starts without.
        metric = import_module("covey.task.run_metric").metric_of([record])
        return f"{metric.label} {metric.text(score)}"
    return ""


class _Log:
    """Writes a line now and then, with the time that is left, where there are no bars."""

    def __init__(self, wanted: bool, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted = wanted
        self._clock = clock
        self._started = self._last = clock()
        self._done, self._planned = 0, rounds
        self._score = ""

    def expect(self, rounds: int) -> None:
        """Take note of how many rounds are to come in all."""
        self._planned = self._done + rounds

    def note(self, where: str, record: dict[str, Any], *, last: bool) -> None:
        """Count a round; write where the run is if a line is due."""
        self._done += 1
        scored = _score(record)
        self._score = scored or self._score
        now = self._clock()
        pause = SCORED_PAUSE if scored else PLAIN_PAUSE
        long = now - self._started >= SCORED_PAUSE
        if not self._wanted or not (now - self._last >= pause or (last and long)):
            return
        self._last = now
        left = (now - self._started) / self._done * max(0, self._planned - self._done)
        words = [where, self._score, f"{duration(left)} left" if left else ""]
        print(printable(", ".join(filter(None, words))), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Format seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
