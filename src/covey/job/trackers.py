"""Trackers: TensorBoard, MLflow and Weights & Biases follow a run while it goes on.

A tracker gets the settings when a run begins or resumes, the numbers of every round, and how the run ended. One that
fails later is named in a warning, and the run goes on without it. Where its results go is its own affair: MLflow reads
MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, Weights & Biases WANDB_MODE and WANDB_PROJECT.
"""

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.schema import Config
from covey.errors import Refusal, install, require
from covey.storage import read_json, write_json

if TYPE_CHECKING:
    from covey.core.loop import OnRound

_FILE = "trackers.json"
"""The file of a run folder that holds the trackers' own numbers of the run, so that a resumed run goes on there."""

_PROJECT = "covey"


class Tracker(ABC):
    """Follows one run."""

    number: str | None = None
    """The tracker's own name of the run, if it has one."""

    @abstractmethod
    def log(self, t: int, values: Mapping[str, float]) -> None:
        """Take the numbers of round `t`."""

    @abstractmethod
    def end(self, finished: bool) -> None:
        """Learn that the run ended: finished, or stopped or failed."""


class TensorBoardTracker(Tracker):
    """Writes event files to the folder `tensorboard` of the run folder."""

    def __init__(self, folder: Path, settings: Mapping[str, str], known: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        table = "".join(f"|{name}|{value}|\n" for name, value in settings.items())
        self._writer.add_text("settings", f"|setting|value|\n|---|---|\n{table}")

    def log(self, t: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, t)
        self._writer.flush()

    def end(self, finished: bool) -> None:
        self._writer.close()


class MLflowTracker(Tracker):
    """Logs to the tracking server or folder that MLflow is set to."""

    def __init__(self, folder: Path, settings: Mapping[str, str], known: str | None) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        try:
            found = self._client.get_run(known) if known else None
        except MlflowException:
            found = None
        if found is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            known_experiment = self._client.get_experiment_by_name(name)
            experiment = known_experiment.experiment_id if known_experiment else self._client.create_experiment(name)
            found = self._client.create_run(experiment, run_name=folder.name, tags={"covey.folder": str(folder)})
            # MLflow takes 100 at a time.
            params = [Param(key, value[:500]) for key, value in settings.items()]
            for at in range(0, len(params), 100):
                self._client.log_batch(found.info.run_id, params=params[at : at + 100])
        else:
            self._client.update_run(found.info.run_id, status="RUNNING")
        self._name = self.number = str(found.info.run_id)

    def log(self, t: int, values: Mapping[str, float]) -> None:
        metrics = [self._metric(name, value, 0, t) for name, value in values.items()]
        for at in range(0, len(metrics), 1000):
            self._client.log_batch(self._name, metrics=metrics[at : at + 1000])

    def end(self, finished: bool) -> None:
        self._client.set_terminated(self._name, "FINISHED" if finished else "KILLED")


class WandbTracker(Tracker):
    """Logs to Weights & Biases, or to a folder for later with WANDB_MODE=offline."""

    def __init__(self, folder: Path, settings: Mapping[str, str], known: str | None) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.name,
            id=known,
            resume="allow",
            config=dict(settings),
            dir=str(folder),
            # A run per process unless told otherwise; comparisons have many.
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )
        self.number = str(self._run.id)

    def log(self, t: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=t)

    def end(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


_TRACKERS: dict[str, tuple[str, Callable[[Path, Mapping[str, str], str | None], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoardTracker),
    "mlflow": ("mlflow", MLflowTracker),
    "wandb": ("wandb", WandbTracker),
}
"""Name → the package that it needs, and what makes it from folder, settings and its own number of the run."""


def chosen_trackers(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of trackers, each once; refuse unknown ones."""
    listed = names.split(",") if isinstance(names, str) else list(names or ())
    found = tuple(dict.fromkeys(name.strip() for name in listed if name.strip()))
    for name in found:
        require(name in _TRACKERS, f"There is no tracker '{name}'. Trackers: {', '.join(_TRACKERS)}.")
        package = _TRACKERS[name][0]
        require(
            find_spec(package) is not None,
            f"The tracker '{name}' needs the package {package}: {install('track')}.",
        )
    return found


@contextmanager
def tracking(names: Sequence[str], config: Config, folder: Path) -> "Iterator[OnRound | None]":
    """Have trackers follow a run, whose folder exists; they are told how it ended."""
    if not names:
        yield None
        return
    known = _known(folder)
    trackers: dict[str, Tracker] = {}
    try:
        for name in names:
            trackers[name] = _begin(name, folder, config, known.get(name))
    except Refusal:
        for name, one in trackers.items():
            _went_well(name, partial(one.end, False))
        raise
    write_json(folder / _FILE, {**known, **{name: one.number for name, one in trackers.items() if one.number}})
    last = 0

    def on_round(record: dict[str, Any]) -> None:
        nonlocal last
        last = int(record["round"])
        values = scalars(record)
        for name, one in list(trackers.items()):
            if not _went_well(name, partial(one.log, last, values)):
                del trackers[name]

    try:
        yield on_round
    finally:
        for name, one in trackers.items():
            _went_well(name, partial(one.end, last >= config.rounds))


def _begin(name: str, folder: Path, config: Config, known: str | None) -> Tracker:
    try:
        return _TRACKERS[name][1](folder, _flat(config.as_mapping()), known)
    except Exception as error:
        # A server that is away, a key that is missing: libraries of others fail in their own ways.
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise Refusal(f"The tracker '{name}' did not start: {reason}.") from error


def _went_well(name: str, act: Callable[[], None]) -> bool:
    """Call a tracker; warn if it fails, since a run is worth more than its curve elsewhere."""
    try:
        act()
    except Exception as error:
        sentence = f"The tracker '{name}' failed and is left out: {type(error).__name__}: {error}."
        warnings.warn(sentence, stacklevel=2)
        return False
    return True


def _known(folder: Path) -> dict[str, str]:
    """Return the trackers' own numbers of a run that was begun before."""
    try:
        stored = read_json((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = stored.items() if isinstance(stored, Mapping) else ()
    return {str(name): value for name, value in known if isinstance(value, str) and re.fullmatch(r"[\w-]{1,64}", value)}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings by dotted names, as text."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return every number of a round's record by its path, such as `seconds/clients`."""
    values: dict[str, float] = {"dropped": float(len(record["dropped"])), "cohort": float(len(record["clients"]))}
    for name, value in record.items():
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
