"""Runs of a job that are not finished: run together where the runtime can, else one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.config.schema import Config
from covey.config.values import own_names
from covey.core.loop import OnRound
from covey.core.progress import JobPlan, announce_plan
from covey.core.runtime_traits import traits_of
from covey.environment.federated_data import Federation
from covey.job.lockstep_runs import run_together
from covey.job.runs import Run, resume_any, run

OnRun = Callable[[str, int | None, int], None]
"""Called when a run begins: label, seed (None if it has none, or for many in lockstep), rounds."""


def _unchanged(record: dict[str, Any]) -> dict[str, Any]:
    return record


@dataclass(frozen=True)
class PendingRun:
    """A run of a job, begun or not."""

    label: str
    seed: int | None
    config: Config
    folder: Path
    shown: Callable[[dict[str, Any]], dict[str, Any]] = _unchanged
    """Turns a round's record into the one that `on_round` receives."""

    @property
    def begun(self) -> bool:
        """True if there is a run folder to resume."""
        return (self.folder / "config.json").is_file()

    @property
    def finished(self) -> bool:
        """True if nothing is left to run."""
        return self.begun and Run.open(self.folder).finished and not self.longer

    @property
    def longer(self) -> int | None:
        """Rounds to which the run in the folder is to be extended."""
        rounds = self.config.rounds
        return rounds if self.begun and Run.open(self.folder).config.rounds < rounds else None

    @property
    def rounds_left(self) -> int:
        """Rounds that are not recorded yet."""
        return self.config.rounds - (len(Run.open(self.folder).metrics) if self.begun else 0)


def run_missing(
    runs: Sequence[PendingRun],
    given: Federation | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    fleet: Path | str | None,
    track: Sequence[str] = (),
) -> bool:
    """Run or resume those that are not finished, and return True if all are finished in the end.

    Several runs on the stacked runtime advance in lockstep. A run that is stopped ends the others too.
    """
    missing = [one for one in runs if not one.finished]
    announce_plan(JobPlan(len(runs), len(missing), sum(one.rounds_left for one in missing)))
    lockstep = [one for one in missing if traits_of(one.config.runtime).lockstep]
    if len(lockstep) > 1:
        if on_run:
            on_run(f"{len(lockstep)} runs in lockstep", None, sum(one.rounds_left for one in lockstep))
        run_together(
            [(one.config, one.folder) for one in lockstep], _counted(lockstep, on_round), given=given, track=track
        )
        if not all(one.finished for one in lockstep):
            return False
        missing = [one for one in missing if not traits_of(one.config.runtime).lockstep]
    for one in missing:
        if on_run:
            on_run(one.label, one.seed, one.config.rounds)
        listener = _shown(one, on_round)
        if one.begun:
            named = own_names(one.config.as_mapping()).values()
            ended = resume_any(
                one.folder,
                federation=given,
                on_round=listener,
                fleet=fleet,
                trust=named,
                rounds=one.longer,
                progress=False,
                track=track,
            )
        else:
            ended = run(
                one.config,
                federation=given,
                out=one.folder,
                on_round=listener,
                fleet=fleet,
                progress=False,
                track=track,
            )
        if not ended.finished:
            break
    return all(one.finished for one in runs)


def _counted(runs: Sequence[PendingRun], on_round: OnRound | None) -> Callable[[int, dict[str, Any]], None] | None:
    """Report progress over the rounds of all runs in lockstep: their number so far stands for the round."""
    if on_round is None:
        return None
    done = 0

    def on_any_round(number: int, record: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        on_round({**runs[number].shown(record), "round": done})

    return on_any_round


def _shown(one: PendingRun, on_round: OnRound | None) -> OnRound | None:
    return None if on_round is None else lambda record: on_round(one.shown(record))
