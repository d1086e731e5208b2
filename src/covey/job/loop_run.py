"""A run as the round loop takes it: its records reopened, and its method as of its last finished round."""

from contextlib import ExitStack, closing
from pathlib import Path

from covey.config.schema import Config
from covey.core.client_store import StoresRows
from covey.core.loaded_state import load_state
from covey.core.loop import LoopRun, OnRound
from covey.core.records import Records, read_metrics
from covey.core.stall_warning import warn_of_stall
from covey.job.experiment import Experiment


def reopened(experiment: Experiment, folder: Path, stack: ExitStack, config: Config | None = None) -> Records:
    """Reopen the records of a run, and restore method and runtime as of its last finished round.

    The stack closes the records. A `config` replaces that of the folder.
    """
    records, state = Records.reopen(folder, config)
    stack.enter_context(closing(records))
    if state is not None:
        load_state(experiment.method, state, folder)
    experiment.runtime.restore(read_metrics(folder))
    return records


def loop_run(experiment: Experiment, records: Records, on_round: OnRound | None, runs: int = 1) -> LoopRun:
    """Return a run as the loop takes it; `runs` advance together."""
    if isinstance(experiment.method, StoresRows):
        experiment.method.attach_folder(records.folder, runs=runs)
        records.on_checkpoint = experiment.method.checkpointed
    return LoopRun(
        experiment.method,
        experiment.runtime,
        records,
        experiment.truth,
        experiment.config.rounds,
        experiment.config.evaluate_every,
        warn_of_stall(records.folder, on_round),
    )
