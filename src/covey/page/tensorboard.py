"""A run's metrics as TensorBoard event files."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from covey.errors import Refusal
from covey.job.runs import Run
from covey.page.run_data import runs_of
from covey.page.tables import environment_of


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
        for name, value in _scalars(row).items():
            yield int(row["round"]), now, name, value


def _scalars(row: Mapping[str, Any]) -> dict[str, float]:
    values: dict[str, float] = {"dropped": float(len(row["dropped"])), "cohort": float(len(row["clients"]))}
    for name, value in row.items():
        if name == "round":
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            values[name] = float(value)
        elif isinstance(value, Mapping):
            values.update(_numbers(name, value))
        elif name == "class_accuracy":
            values.update({f"{name}/{label}": float(one) for label, one in enumerate(value)})
    return values


def _numbers(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield all numbers of a nested mapping, named by their path."""
    for part, one in values.items():
        if isinstance(one, Mapping):
            yield from _numbers(f"{name}/{part}", one)
        elif isinstance(one, (int, float)) and not isinstance(one, bool):
            yield f"{name}/{part}", float(one)
