"""Runs: start them, resume them, and read their folders."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from covey.arrays import State
from covey.config.choice import Choice
from covey.config.schema import Config
from covey.core.build import build_method, build_module, dataset_of
from covey.core.checkpoint import checkpoint_round, has_checkpoint, read_checkpoint
from covey.core.interfaces import Method
from covey.core.interrupt import finishing_the_round
from covey.core.loaded_state import load_state
from covey.core.loop import OnRound, run_in_lockstep
from covey.core.model_constants import read_constants
from covey.core.progress import announce_note
from covey.core.records import Records, read_config, read_metrics, require_unused, with_parts_again
from covey.core.runtime_traits import traits_of
from covey.core.scores import on_mix, summary, untested_notes
from covey.data.class_mix import Target, parse_target
from covey.data.dataset import Dataset, require_class_shares
from covey.environment.federated_data import Federation
from covey.errors import Refusal, require
from covey.job.experiment import Experiment, gpu_sentence
from covey.job.extension import require_alone, require_extensible, with_rounds
from covey.job.loop_run import loop_run, reopened
from covey.job.model_card import card
from covey.job.model_export import about_model, format_of, write_model
from covey.job.notebook_table import notebook_table
from covey.job.pandas_frame import data_frame
from covey.job.prediction import answers_for, labels_in, new_samples
from covey.job.progress_display import both, shown
from covey.job.settings import as_config, as_configured, default_folder, with_federation
from covey.job.trackers import chosen_trackers, tracking
from covey.model.frozen import constants
from covey.model.layout import Layout
from covey.model.outputs import restore_output
from covey.registries import methods
from covey.storage import FolderLock, replace_file
from covey.task.run_metric import main_score, metric_of
from covey.trust import Trust

if TYPE_CHECKING:
    import pandas

_NOT_READ = ("method", "selector", "aggregator", "trainer")
"""Sections of a run's configuration that its models do not depend on."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run folder."""

    folder: Path
    config: Config
    given: Federation | None = None
    """The federation, if it was passed in rather than described by settings."""

    @classmethod
    def open(
        cls, folder: Path | str, federation: Federation | None = None, *, trust: Trust = False, **parts: Any
    ) -> "Run":
        """Open a run folder.

        Code of somebody's own that it names (`package.module:name`) is imported only with `trust`: True, or the names
        that are allowed. Records, reports and models of Covey's own kinds need none. `parts` are those that the run
        was given as Python objects (`model=Net`), which its folder does not hold: to evaluate and export, the model.
        """
        _require_parts(parts)
        trust = with_parts_again(Path(folder), parts, trust)
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

    def __repr__(self) -> str:
        return f"Run({self._line()}; {self.folder})"

    def _line(self) -> str:
        """Say in a line what was run and how far it came."""
        done, scored = 0, None
        with suppress(Refusal):
            done = len(self.metrics)
            scored = next((row for row in reversed(self.metrics) if main_score(row) is not None), None)
        metric = metric_of([scored or {}])
        score = "" if scored is None else f", {metric.label} {metric.text(main_score(scored))}"
        return f"{self.config.method} on {self.config.dataset.name}, round {done} of {self.config.rounds}{score}"

    def _repr_html_(self) -> str:
        last = [row for row in self.metrics if main_score(row) is not None][-5:]
        metric = metric_of(last)
        rows = [(row["round"], metric.text(main_score(row)), len(row["clients"])) for row in last]
        return notebook_table(f"{self._line()} — {self.folder}", ("round", metric.label, "clients"), rows)

    def frame(self) -> "pandas.DataFrame":
        """Return the metrics as a pandas data frame."""
        return data_frame(self.metrics)

    def model(self, client: int | None = None) -> nn.Module:
        """Return the trained model, frozen parts and all; where every client has its own, that of `client`.

        It takes normalised samples. Of a regression, it returns standardised targets, which
        `federation.dataset.learns.original` turns back. `export` to ONNX or TorchScript does both by itself.
        """
        _, module, method, _ = self._trained()
        Layout.of(module).bind(module, method.models()[self._row(method, client)].clone())
        return restore_output(module.eval())

    def evaluate(self, targets: Sequence[Target] = ()) -> dict[str, object]:
        """Score the trained model (or models) on the test set again, and on class mixes such as `"0=0.7,3=0.3"`.

        Where there are many models, every figure is the mean over clients.
        """
        config, done, state = self._checkpoint()
        experiment = Experiment.of(config, self.given, resumed=True, folder=self.folder)
        names, method = experiment.federation.dataset.class_names, experiment.method
        try:
            self._restore(method, state)
            require_class_shares(experiment.federation.dataset, "Targets", bool(targets))
            mixes = [parse_target(one, names, experiment.known_shares, experiment.federation.names) for one in targets]
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

    def features(self, data: Path | str) -> Tensor:
        """Return new rows of a table, in a CSV or Parquet file, as the samples `[n, features]` that the run trained on.

        Medians, words and first days are those of its training rows. Programs (ONNX, TorchScript) take them as they
        are; other models take them normalised.
        """
        return new_samples(self._trained()[0], Path(data), self.config.dataset.options)

    def predict(self, data: Path | str, client: int | None = None) -> dict[str, list[Any]]:
        """Return the model's answers for new rows of a table, in a CSV or Parquet file: name → a value for each row."""
        dataset, module, method, _ = self._trained()
        Layout.of(module).bind(module, method.models()[self._row(method, client)].clone())
        options = self.config.dataset.options
        return answers_for(module.eval(), dataset, new_samples(dataset, Path(data), options), labels_in(options))

    def export(self, path: Path, client: int | None = None, format: str | None = None) -> dict[str, object]:
        """Write the trained model, and a card about it beside it; return file, format, parameters, bytes and card.

        The format is safetensors, onnx, torchscript or state-dict; by default the ending of the file says which. ONNX
        and TorchScript take samples as they are stored, and return targets of a regression in their own unit. Other
        formats hold the tensors by name.
        """
        path = Path(path)
        kind = format_of(path, format)
        dataset, module, method, done = self._trained()
        layout = Layout.of(module)
        state = method.models()[self._row(method, client)].clone()
        layout.bind(module, state)
        tensors = layout.named(state)
        tensors |= {name: one.clone().contiguous() for name, one in constants(module).items()}
        write_model(path, kind, module, tensors, dataset, about_model(self.config.model.as_mapping(), dataset, done))
        parameters = sum(one.numel() for one in module.parameters())
        found = {"file": str(path), "format": kind, "parameters": parameters, "bytes": path.stat().st_size}
        text = card(self, {**found, "round": done}, dataset)
        beside = path.with_name(f"{path.name}.md")
        replace_file(beside, text.encode())
        return {**found, "round": done, "card": str(beside)}

    def _trained(self) -> tuple[Dataset, nn.Module, Method, int]:
        """Return data set, module, method with its models, and rounds done, without clients and without a runtime."""
        config, done, state = self._checkpoint()
        if self.given is not None:
            as_configured(self.given, config)
        dataset = dataset_of(config) if self.given is None else self.given.dataset
        clients = config.clients if self.given is None else self.given.clients
        module = build_module(config, dataset)
        read_constants(self.folder, config.model.name, module)
        method = build_method(config, module, clients, dataset.class_count, resumed=True, task=dataset.learns.name)
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
            plain = Choice("uniform"), Choice("average"), Choice("sgd")
            config = replace(config, selector=plain[0], aggregator=plain[1], trainer=plain[2], refused=needed)
            if config.method not in methods.names():
                config = replace(config, method="uniform+average")
            averages = {"server": state["server"]} if "server" in state else {}
            state = {"model": state["model"], "selector": {}, "aggregator": {}, **averages}
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
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Run an experiment and return its run folder.

    A bar shows how far it is on a terminal and in a notebook; `progress=True` shows it elsewhere too, as a line now
    and then, and `progress=False` nowhere. `track` names trackers that follow the run: tensorboard, mlflow, wandb.

    `federation` is your own data (see `covey.federation`), instead of a data set and an environment by name. `fleet` is
    the folder of a live fleet, for the runtime "fleet"; by default COVEY_FLEET names it.

    Settings are those of `Config`, sections as mappings or dotted keys:
    `covey.run(method="fedprox", rounds=20, local={"rate": 0.05}, **{"environment.alpha": 0.1})`.

    Parts go by name, or as classes, functions or instances: `covey.run(model=Net, selector=MySelector(step=2))`. A
    model is called as Net(shape, classes) or without arguments; an instance is copied, and its weights are the initial
    model. What cannot be imported as module:Name, the folder does not hold: `covey.resume(folder, model=Net)`.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
    config = given if isinstance(given, Config) and not settings else as_config(given, settings)
    folder = Path(out) if out is not None else default_folder(config)
    require_unused(folder)
    trackers = chosen_trackers(track)
    with ExitStack() as stack:
        experiment = Experiment.of(config, federation, fleet=fleet)
        stack.enter_context(closing(experiment.runtime))
        records = stack.enter_context(closing(Records.create(folder, experiment.config, experiment.module)))
        return _shown_and_tracked(experiment, records, on_round, federation, stack, progress, trackers)


def resume(
    folder: Path | str,
    *,
    federation: Federation | None = None,
    on_round: OnRound | None = None,
    workers: int | None = None,
    fleet: Path | str | None = None,
    trust: Trust = False,
    rounds: int | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    **parts: Any,
) -> Run:
    """Resume a run that was stopped, from its last finished round.

    `rounds` extends it: it ends as a run that was planned for that many rounds. A run on a federation that was passed
    in needs the same one again. `fleet` is the folder of the live fleet that a run with the runtime "fleet" resumes
    on; by default COVEY_FLEET names it. `trust` lets the folder name code of somebody's own to import
    (`package.module:name`): True, or the names that are allowed. `parts` are those that the run was given as Python
    objects, again: `covey.resume(folder, model=Net, selector=MySelector(step=2))`.
    """
    if rounds is not None:
        require_alone(Path(folder), rounds)
    return resume_any(
        folder,
        federation=federation,
        on_round=on_round,
        workers=workers,
        fleet=fleet,
        trust=trust,
        rounds=rounds,
        progress=progress,
        track=track,
        **parts,
    )


def resume_any(
    folder: Path | str,
    *,
    federation: Federation | None = None,
    on_round: OnRound | None = None,
    workers: int | None = None,
    fleet: Path | str | None = None,
    trust: Trust = False,
    rounds: int | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    **parts: Any,
) -> Run:
    """Resume a run as `resume` does; one of a comparison may be extended, with the others."""
    folder, trackers = Path(folder), chosen_trackers(track)
    _require_parts(parts)
    trust = with_parts_again(folder, parts, trust)
    config = read_config(folder, trust=trust)
    config.require_trusted()
    # Refused here, before anything is built; the records take the lock.
    FolderLock(folder).release()
    longer = None if rounds in (None, config.rounds) else with_rounds(config, rounds, folder)
    config = longer or config
    if workers is not None:
        config = as_config(config, {"workers": workers})
    with ExitStack() as stack:
        experiment = Experiment.of(config, federation, resumed=has_checkpoint(folder), fleet=fleet, folder=folder)
        stack.enter_context(closing(experiment.runtime))
        if longer is not None:
            require_extensible(experiment.method, longer)
        records = reopened(experiment, folder, stack, longer)
        return _shown_and_tracked(experiment, records, on_round, federation, stack, progress, trackers)


def _shown_and_tracked(
    experiment: Experiment,
    records: Records,
    on_round: OnRound | None,
    given: Federation | None,
    stack: ExitStack,
    progress: bool | None,
    trackers: Sequence[str],
) -> Run:
    """Run what is left of a run, with its bar and its trackers; the stack ends them."""
    config = experiment.config
    bar = stack.enter_context(shown(progress, config.method, config.rounds, records.rounds_done))
    announce_note(gpu_sentence(config))
    followed = stack.enter_context(tracking(trackers, config, records.folder))
    return _run(experiment, records, both(followed, both(bar, on_round)), given)


_GIVEN = ("method", "model", "selector", "aggregator", "trainer", "dataset", "environment")
"""Parts that a run may have been given as Python objects."""


def _require_parts(parts: Mapping[str, Any]) -> None:
    for name in parts:
        require(name in _GIVEN, f"There is no part '{name}' to give again; parts are: {', '.join(_GIVEN)}.")


def _run(experiment: Experiment, records: Records, on_round: OnRound | None, given: Federation | None) -> Run:
    with finishing_the_round(records.folder) as stop:
        run_in_lockstep([loop_run(experiment, records, on_round)], stop)
    return Run(records.folder, experiment.config, given)
