"""Runs: start them, resume them, and read their folders."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from covey.arrays import State
from covey.config.schema import Choice, Config
from covey.core.build import build_method, build_module, dataset_of
from covey.core.checkpoint import checkpoint_round, has_checkpoint, read_checkpoint
from covey.core.interfaces import Method
from covey.core.interrupt import finishing_the_round
from covey.core.loop import LoopRun, OnRound, run_in_lockstep
from covey.core.records import Records, read_config, read_metrics, require_unused
from covey.core.runtime_traits import traits_of
from covey.core.scores import on_mix, summary, untested_notes
from covey.core.stall_warning import warn_of_stall
from covey.data.class_mix import Target, parse_target
from covey.data.dataset import Dataset
from covey.environment.federated_data import Federation
from covey.errors import Refusal, require
from covey.job.experiment import Experiment
from covey.job.settings import as_config, as_configured, default_folder, with_federation
from covey.model.layout import Layout
from covey.registries import methods
from covey.storage import FolderLock, replacing
from covey.trust import Trust

if TYPE_CHECKING:
    import pandas

LOCKSTEP_CHECKPOINT = 20.0
"""Seconds between two checkpoints of a run in lockstep, if they are small."""

LOCKSTEP_CHECKPOINT_SHARE = 0.05
"""Largest share of the time that checkpoints in lockstep may take; large ones are written less often."""

_NOT_READ = ("selector", "aggregator")
"""Sections of a run's configuration that its models do not depend on."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder."""

    folder: Path
    config: Config
    given: Federation | None = None
    """The federation, if it was passed in rather than described by settings."""

    @classmethod
    def open(cls, folder: Path | str, federation: Federation | None = None, *, trust: Trust = False) -> "Run":
        """Open a run folder.

        Code of somebody's own that it names (`package.module:name`) is imported only with `trust`: True, or the names
        that are allowed. Records, reports and models of Covey's own kinds need none.
        """
        return cls(Path(folder), read_config(Path(folder), trust=trust), federation)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping per round; `pandas.DataFrame(run.metrics)` is a table."""
        rows = read_metrics(self.folder)
        invited = [client for row in rows for client in row["clients"]]
        require(
            not invited or (min(invited) >= 0 and max(invited) < self.config.clients),
            f"The records in {self.folder} are damaged: they name clients that its {self.config.clients} are not.",
        )
        return rows

    @property
    def recorded(self) -> bool:
        """True if the last round is recorded. Earlier ones may be missing: on Flower, rounds that reach no client."""
        return bool(self.metrics) and int(self.metrics[-1]["round"]) >= self.config.rounds

    @property
    def finished(self) -> bool:
        """True if the last round is recorded and the model after it is saved."""
        return self.recorded and checkpoint_round(self.folder) >= self.config.rounds

    def frame(self) -> "pandas.DataFrame":
        """Return the metrics as a pandas data frame."""
        return data_frame(self.metrics)

    def model(self, client: int | None = None) -> nn.Module:
        """Return the trained model; where every client has its own, that of `client`."""
        _, module, method, _ = self._trained()
        Layout.of(module).bind(module, method.models()[self._row(method, client)].clone())
        return module.eval()

    def evaluate(self, targets: Sequence[Target] = ()) -> dict[str, object]:
        """Score the trained model (or models) on the test set again, and on class mixes such as `"0=0.7,3=0.3"`.

        Where there are many models, every figure is the mean over clients.
        """
        config, done, state = self._checkpoint()
        experiment = Experiment.of(config, self.given, resumed=True)
        names, method = experiment.federation.dataset.class_names, experiment.method
        try:
            self._restore(method, state)
            mixes = [parse_target(target, names, experiment.known_shares) for target in targets]
            experiment.federation.dataset.require_tests()
            scores = experiment.runtime.evaluate(method.models())
        finally:
            experiment.runtime.close()
        found = summary(scores, experiment.truth, method.model_of_client)
        scored = [(mix, *on_mix(scores, method.model_of_client, mix.mix)) for mix in mixes]
        return {
            "round": done,
            **(found if experiment.known else {**found, "own_accuracy": None}),
            "class_names": list(names),
            "targets": [
                {**mix.as_mapping(), "accuracy": accuracy, "notes": [*mix.notes, *untested_notes(untested)]}
                for mix, accuracy, untested in scored
            ],
        }

    def export(self, path: Path, client: int | None = None) -> dict[str, object]:
        """Write the trained model's tensors by name (safetensors), and return file, parameters and bytes."""
        dataset, module, method, done = self._trained()
        layout = Layout.of(module)
        tensors = layout.named(method.models()[self._row(method, client)])
        about = {
            "model": json.dumps(self.config.model.as_mapping()),
            "shape": json.dumps(dataset.shape),
            "class_names": json.dumps(dataset.class_names),
            "mean": json.dumps(dataset.mean),
            "deviation": json.dumps(dataset.deviation),
            "round": str(done),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as beside:
                save_file(tensors, str(beside), about)
        except (OSError, SafetensorError) as error:
            raise Refusal(f"The file {path} cannot be written: {error}.") from error
        return {"file": str(path), "parameters": layout.trainable, "bytes": path.stat().st_size}

    def _trained(self) -> tuple[Dataset, nn.Module, Method, int]:
        """Return data set, module, method with its models, and rounds done, without clients and without a runtime."""
        config, done, state = self._checkpoint()
        if self.given is not None:
            as_configured(self.given, config)
        dataset = dataset_of(config) if self.given is None else self.given.dataset
        clients = config.clients if self.given is None else self.given.clients
        module = build_module(config, dataset)
        method = build_method(config, module, clients, dataset.classes, resumed=True)
        self._restore(method, state)
        return dataset, module, method, done

    def _checkpoint(self) -> tuple[Config, int, State]:
        """Return the configuration that reads the checkpoint's models, the rounds done, and the state of its method."""
        done, state = read_checkpoint(self.folder)
        if state is None:
            raise Refusal(f"{self.folder} has no finished round yet; resume with: covey resume {self.folder}")
        # A fleet's model is read here, whether the fleet is there or not.
        config = replace(self.config, runtime="local") if traits_of(self.config.runtime).live else self.config
        if config.many is None:
            # No client is invited any more, so the parts that selected and aggregated need not be installed.
            needed = {where: name for where, name in config.refused.items() if not where.startswith(_NOT_READ)}
            config = replace(config, selector=Choice("uniform"), aggregator=Choice("average"), refused=needed)
            if config.method not in methods.names():
                config = replace(config, method="uniform+average")
            state = {"model": state["model"], "selector": {}, "aggregator": {}}
        return config, done, state

    def _restore(self, method: Method, state: State) -> None:
        require(
            not (traits_of(self.config.runtime).live and method.resident),
            f"With '{self.config.method}' on a fleet, models stay at the sites: there are none here.",
        )
        load_state(method, state, self.folder)

    def _row(self, method: Method, client: int | None) -> int:
        if len(method.models()) == 1:
            return 0
        clients = len(method.model_of_client)
        if client is None:
            raise Refusal(
                f"The method '{self.config.method}' has a model for each client: say which, 0 to {clients - 1}."
            )
        require(0 <= client < clients, f"There is no client {client}; clients are 0 to {clients - 1}.")
        return int(method.model_of_client[client])


def run(
    given: Mapping[str, Any] | Config | None = None,
    /,
    *,
    federation: Federation | None = None,
    out: Path | str | None = None,
    fleet: Path | str | None = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment and return its run folder.

    `federation` is your own data (see `covey.federation`), instead of a data set and an environment by name. `fleet` is
    the folder of a live fleet, for the runtime "fleet"; by default COVEY_FLEET names it.

    Settings are those of `Config`, sections as mappings or dotted keys:
    `covey.run(method="fedprox", rounds=20, local={"rate": 0.05}, **{"environment.alpha": 0.1})`.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
    config = given if isinstance(given, Config) and not settings else as_config(given, settings)
    folder = Path(out) if out is not None else default_folder(config)
    require_unused(folder)
    with ExitStack() as stack:
        experiment = Experiment.of(config, federation, fleet=fleet)
        stack.enter_context(closing(experiment.runtime))
        records = stack.enter_context(closing(Records.create(folder, config)))
        return _run(experiment, records, on_round, federation)


def resume(
    folder: Path | str,
    *,
    federation: Federation | None = None,
    on_round: OnRound | None = None,
    workers: int | None = None,
    fleet: Path | str | None = None,
    trust: Trust = False,
) -> Run:
    """Resume a run that was stopped, from its last finished round.

    A run on a federation that was passed in needs the same one again. `fleet` is the folder of the live fleet that a
    run with the runtime "fleet" resumes on; by default COVEY_FLEET names it. `trust` lets the folder name code of
    somebody's own to import (`package.module:name`): True, or the names that are allowed.
    """
    folder = Path(folder)
    config = read_config(folder, trust=trust)
    config.require_trusted()
    # Refused here, before anything is built; the records take the lock.
    FolderLock(folder).release()
    if workers is not None:
        config = as_config(config, {"workers": workers})
    with ExitStack() as stack:
        experiment = Experiment.of(config, federation, resumed=has_checkpoint(folder), fleet=fleet)
        stack.enter_context(closing(experiment.runtime))
        return _run(experiment, _reopened(experiment, folder, stack), on_round, federation)


def _reopened(experiment: Experiment, folder: Path, stack: ExitStack) -> Records:
    """Reopen the records of a run, and restore method and runtime as of its last finished round.

    The stack closes the records.
    """
    records, state = Records.reopen(folder)
    stack.enter_context(closing(records))
    if state is not None:
        load_state(experiment.method, state, folder)
    experiment.runtime.restore(read_metrics(folder))
    return records


def load_state(method: Method, state: State, folder: Path) -> None:
    """Load a checkpoint's state into a method; refuse one that is not of its kind."""
    size = method.models().shape[-1]
    try:
        method.load_state_dict(state)
        found = tuple(method.models().shape)
        require(len(found) == 2 and found[0] >= 1 and found[1] == size, f"models of the shape {found}")
        require(max(method.model_of_client, default=0) < found[0], "a client's model is missing")
    except Exception as error:
        # A state of another kind fails in every way: a key, a shape, a type.
        reason = str(error) if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
        raise Refusal(f"The checkpoint in {folder} does not fit its settings ({reason}).") from error


def _run(experiment: Experiment, records: Records, on_round: OnRound | None, given: Federation | None) -> Run:
    with finishing_the_round() as stop:
        run_in_lockstep([_loop_run(experiment, records, on_round)], stop)
    return Run(records.folder, experiment.config, given)


def _loop_run(experiment: Experiment, records: Records, on_round: OnRound | None) -> LoopRun:
    return LoopRun(
        experiment.method,
        experiment.runtime,
        records,
        experiment.truth,
        experiment.config.rounds,
        experiment.config.evaluate_every,
        warn_of_stall(records.folder, on_round),
    )


def run_together(
    pending: Sequence[tuple[Config, Path]],
    on_round: Callable[[int, dict[str, Any]], None] | None = None,
    stop: Callable[[], bool] | None = None,
    given: Federation | None = None,
) -> list[Run]:
    """Run or resume many runs in lockstep: each round, the clients of all runs are trained together.

    `on_round(number, record)` receives the run's position and its record. A checkpoint of each run is written about
    every `LOCKSTEP_CHECKPOINT` seconds instead of every round, and less often if that would take more than
    `LOCKSTEP_CHECKPOINT_SHARE` of the time. Once `stop` returns True, every run ends after its round with a checkpoint.
    `given` is the federation of all runs, if it was passed in.
    """
    runs = []
    with ExitStack() as stack:
        for number, (config, folder) in enumerate(pending):
            experiment = Experiment.of(config, given, resumed=has_checkpoint(folder))
            stack.enter_context(closing(experiment.runtime))
            if (folder / "config.json").is_file():
                records = _reopened(experiment, folder, stack)
            else:
                records = stack.enter_context(closing(Records.create(folder, config)))
            records.checkpoint_seconds = LOCKSTEP_CHECKPOINT
            records.checkpoint_share = LOCKSTEP_CHECKPOINT_SHARE / len(pending)
            runs.append(_loop_run(experiment, records, _numbered(on_round, number)))
        with finishing_the_round() as interrupted:
            run_in_lockstep(runs, lambda: interrupted() or (stop is not None and stop()))
    return [Run(folder, config, given) for config, folder in pending]


def _numbered(on_round: Callable[[int, dict[str, Any]], None] | None, number: int) -> OnRound | None:
    return (lambda record: on_round(number, record)) if on_round else None


def data_frame(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    """Return rows as a pandas data frame; refused if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise Refusal("A data frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)
