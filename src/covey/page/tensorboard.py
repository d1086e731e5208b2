"""A run's metrics as TensorBoard event files."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from covey.core.records import environment_of
from covey.errors import Refusal
from covey.job.runs import Run
from covey.job.trackers import scalars
from covey.page.run_data import runs_of


def tensorboard(folder: Path, out: Path) -> int:
    """Write the metrics of a run, or of each run of a comparison, under `out`; return the number of values.

    TensorBoard lists a run by its folder's name, and a run of a comparison as `<comparison>/<method>/seed-<n>`.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise Refusal("Event files need TensorBoard: pip install tensorboard") from error
    written = 0
    folder = Path(folder)
    for place, run in runs_of(folder):
        try:
            writer = SummaryWriter(str(Path(out) / folder.resolve().name / place))
        except OSError as error:
            raise Refusal(f"The folder {out} cannot be written: {error.strerror or error}.") from error
        for step, time, name, value in _values(run):
            writer.add_scalar(name, value, step, walltime=time)
            written += 1
        writer.close()
    if not written:
        raise Refusal(f"{folder} has no finished round yet; resume with: covey resume {folder}")
    return written


def _values(run: Run) -> Iterator[tuple[int, float | None, str, float]]:
    """Yield round, time of day, name and value of every number in the records."""
    started = environment_of(run.folder).get("started")
    try:
        now = datetime.fromisoformat(started).timestamp() if isinstance(started, str) else None
    except (ValueError, OverflowError):
        now = None
    for row in run.metrics:
        if now is not None:
            now += sum(row["seconds"].values())
        for name, value in scalars(row).items():
            yield int(row["round"]), now, name, value
