"""Runs in lockstep: each round, the clients of many runs are trained together."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from covey.config.schema import Config
from covey.core.checkpoint import has_checkpoint
from covey.core.interrupt import finishing_the_round
from covey.core.loop import OnRound, run_in_lockstep
from covey.core.progress import announce_note
from covey.core.records import Records
from covey.environment.federated_data import Federation
from covey.job.experiment import Experiment, gpu_sentence
from covey.job.loop_run import loop_run, reopened
from covey.job.progress_display import both
from covey.job.runs import Run
from covey.job.trackers import tracking

LOCKSTEP_CHECKPOINT = 20.0
"""Seconds between two checkpoints of a run in lockstep, if they are small."""

LOCKSTEP_CHECKPOINT_SHARE = 0.05
"""Largest share of the time that checkpoints in lockstep may take; large ones are written less often."""


def run_together(
    pending: Sequence[tuple[Config, Path]],
    on_round: Callable[[int, dict[str, Any]], None] | None = None,
    stop: Callable[[], bool] | None = None,
    given: Federation | None = None,
    track: Sequence[str] = (),
) -> list[Run]:
    """Run or resume many runs in lockstep: each round, the clients of all runs are trained together.

    `on_round(number, record)` receives the run's position and its record. A checkpoint of each run is written about
    every `LOCKSTEP_CHECKPOINT` seconds instead of every round, and less often if that would take more than
    `LOCKSTEP_CHECKPOINT_SHARE` of the time. Once `stop` returns True, every run ends after its round with a checkpoint.
    `given` is the federation of all runs, if it was passed in.
    """
    runs, built = [], []
    with ExitStack() as stack:
        for number, (config, folder) in enumerate(pending):
            begun = (folder / "config.json").is_file()
            made = folder if begun else None
            experiment = Experiment.of(config, given, resumed=has_checkpoint(folder), folder=made)
            stack.enter_context(closing(experiment.runtime))
            built.append(experiment.config)
            if begun:
                longer = Run.open(folder).config.rounds < config.rounds
                records = reopened(experiment, folder, stack, experiment.config if longer else None)
            else:
                records = stack.enter_context(closing(Records.create(folder, experiment.config, experiment.module)))
            records.checkpoint_seconds = LOCKSTEP_CHECKPOINT
            records.checkpoint_share = LOCKSTEP_CHECKPOINT_SHARE / len(pending)
            announce_note(gpu_sentence(experiment.config))
            followed = stack.enter_context(tracking(track, config, folder))
            runs.append(loop_run(experiment, records, both(followed, _numbered(on_round, number)), len(pending)))
        with finishing_the_round(*(folder for _, folder in pending)) as interrupted:
            run_in_lockstep(runs, lambda: interrupted() or (stop is not None and stop()))
    return [Run(folder, config, given) for config, (_, folder) in zip(built, pending, strict=True)]


def _numbered(on_round: Callable[[int, dict[str, Any]], None] | None, number: int) -> OnRound | None:
    return (lambda record: on_round(number, record)) if on_round else None
