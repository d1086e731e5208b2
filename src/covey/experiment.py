"""Runs as people ask for them: run, resume, and what a finished run holds."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from covey.aggregation import aggregators
from covey.config import Choice, Config, nested, overlay
from covey.errors import Refusal, require
from covey.evaluation import on_mix, summary, untested_notes
from covey.federations import GIVEN, Federation, Truth, altered_federation, build_federation
from covey.interrupt import finishing_the_round
from covey.layout import Layout
from covey.loop import Game, OnRound, one_by_one, play
from covey.manymodel import manymodels
from covey.methods import OneModel, methods, recipe_of
from covey.mixes import Target, wanted
from covey.models import build_model
from covey.noticing import noticing
from covey.records import Records, checkpoint_round, has_checkpoint, read_checkpoint, read_config, read_metrics
from covey.registry import coerce
from covey.roles import Method, Runtime, Setting
from covey.runtimes import runtimes
from covey.runtimes.devices import OnDevices
from covey.runtimes.lockstep import execute_in_lockstep
from covey.selection import selectors

if TYPE_CHECKING:
    import pandas

LOCKSTEP_CHECKPOINT = 20.0
"""Seconds between two checkpoints of a run in a sweep, as long as they are small."""

LOCKSTEP_CHECKPOINT_SHARE = 0.05
"""Most of a sweep's time that its checkpoints may take: where they are large, it keeps them less often."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """A configuration brought to life: federation, method and runtime, ready to play."""

    config: Config
    federation: Federation
    truth: Truth
    method: Method
    runtime: Runtime
    module: nn.Module

    @classmethod
    def of(cls, config: Config, given: Federation | None = None, *, resumed: bool = False) -> "Experiment":
        """Build everything; whatever is impossible is refused here, before anything is written.

        `resumed` says that the method's state will be loaded.
        """
        recipe = recipe_of(config.method)
        dealt = build_federation(config) if given is None else as_configured(given, config)
        federation = recipe.reshape(dealt, config.seed) if recipe.reshape else dealt
        dataset = federation.dataset
        require(
            len(dataset.shape) == 3 or not (config.local.crop or config.local.flip),
            f"local.crop and local.flip are for images, and samples of '{dataset.name}' have the shape "
            f"{' x '.join(map(str, dataset.shape))}.",
        )
        module = build_model(config.model.name, dict(config.model.options), dataset.shape, dataset.classes, config.seed)
        layout = Layout.of(module)
        model = layout.read(module).to(torch.float64 if config.precision == "fp64" else torch.float32)
        executor = runtimes[config.runtime].part(federation, module, config)
        runtime = OnDevices(executor, config.devices, federation.sizes, config.seed)
        setting = Setting(
            clients=federation.clients,
            cohort=min(config.cohort, federation.clients),
            rounds=config.rounds,
            classes=dataset.classes,
            seed=config.seed,
            layout=layout,
            work=config.local,
            resumed=resumed,
        )
        try:
            method = method_of(config, setting, model)
        except BaseException:
            runtime.close()
            raise
        # Where clients score models themselves, each scores the one that it uses.
        if (serve := getattr(executor, "serve", None)) is not None:
            serve(method)
        # Own-mix accuracy is about the clients as they are; a cohort's skew about those that took part.
        truth = Truth(dealt.truth.shares, federation.truth.skew)
        return cls(config, federation, truth, method, runtime, module)

    @property
    def known(self) -> bool:
        """Whether it is known here what clients hold; sites of a fleet may have data of their own."""
        return self.federation.known and holdings_known(self.runtime)


def method_of(config: Config, setting: Setting, model: Tensor) -> Method:
    """The method of a configuration, which may refuse the setting."""
    if config.many is not None:
        made: Method = manymodels[config.many.name].part(setting, model, **config.many.options)
        return made
    assert config.selector is not None
    assert config.aggregator is not None
    selector = selectors.make(config.selector.name, config.selector.options)
    aggregator = aggregators.make(config.aggregator.name, config.aggregator.options)
    return OneModel(setting, model, selector, aggregator, resident=recipe_of(config.method).resident)


def holdings_known(runtime: Runtime) -> bool:
    """Whether the clients of a runtime hold what the federation says; of live ones nobody but themselves may know."""
    return bool(getattr(getattr(runtime, "runtime", runtime), "known", True))


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, read."""

    folder: Path
    config: Config
    given: Federation | None = None
    """The federation, where it was passed in rather than described."""

    @classmethod
    def open(cls, folder: Path | str, federation: Federation | None = None) -> "Run":
        return cls(Path(folder), read_config(Path(folder)), federation)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping per round; `pandas.DataFrame(run.metrics)` is a table."""
        return read_metrics(self.folder)

    @property
    def recorded(self) -> bool:
        """Whether there is a line of the last round. On Flower, rounds that reach nobody have none."""
        return bool(self.metrics) and int(self.metrics[-1]["round"]) >= self.config.rounds

    @property
    def finished(self) -> bool:
        """Whether every round is recorded, and the model after the last one kept."""
        return self.recorded and checkpoint_round(self.folder) >= self.config.rounds

    def frame(self) -> "pandas.DataFrame":
        """The metrics as a pandas data frame."""
        return data_frame(self.metrics)

    def model(self, client: int | None = None) -> nn.Module:
        """The trained model; where every client has its own, that of `client`."""
        experiment, _ = self._trained()
        module = experiment.module
        layout = Layout.of(module)
        layout.bind(module, experiment.method.models()[self._row(experiment.method, client)].clone())
        experiment.runtime.close()
        return module.eval()

    def evaluate(self, targets: Sequence[Target] = ()) -> dict[str, object]:
        """Score the trained model (or models) on the test set again, and on class mixes such as `"0=0.7,3=0.3"`.

        Where there are many models, every figure is the mean over clients.
        """
        experiment, done = self._trained()
        names = experiment.federation.dataset.class_names
        shares = experiment.truth.shares if experiment.known else None
        try:
            mixes = [wanted(target, names, shares) for target in targets]
            experiment.federation.dataset.require_tests()
            scores = experiment.runtime.evaluate(experiment.method.models())
        finally:
            experiment.runtime.close()
        serves = experiment.method.model_of_client
        found = summary(scores, experiment.truth, serves)
        judged = [(mix, *on_mix(scores, serves, mix.mix)) for mix in mixes]
        return {
            "round": done,
            **(found if experiment.known else {**found, "own_accuracy": None}),
            "class_names": list(names),
            "targets": [
                {**mix.as_mapping(), "accuracy": accuracy, "notes": [*mix.notes, *untested_notes(untested)]}
                for mix, accuracy, untested in judged
            ],
        }

    def export(self, path: Path, client: int | None = None) -> dict[str, object]:
        """Write the trained model's tensors by name (safetensors); says what was written."""
        experiment, done = self._trained()
        experiment.runtime.close()
        layout = Layout.of(experiment.module)
        tensors = layout.named(experiment.method.models()[self._row(experiment.method, client)])
        dataset = experiment.federation.dataset
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
            save_file(tensors, str(path), about)
        except (OSError, SafetensorError) as error:
            raise Refusal(f"The file {path} cannot be written: {error}.") from error
        return {"file": str(path), "parameters": layout.trainable, "bytes": path.stat().st_size}

    def _trained(self) -> tuple[Experiment, int]:
        """The experiment with the model that is kept, and after how many rounds that is."""
        done, state = read_checkpoint(self.folder)
        if state is None:
            raise Refusal(f"{self.folder} has no finished round yet; go on with: covey resume {self.folder}")
        # What a live fleet trained is looked at here, whether the fleet is there or not.
        config = replace(self.config, runtime="local") if self.config.runtime == "fleet" else self.config
        if config.many is None:
            # Nobody is invited any more: whose parts decided that, and where they are, does not matter.
            config = replace(config, selector=Choice("uniform"), aggregator=Choice("average"))
            if config.method not in methods.names():
                config = replace(config, method="uniform+average")
            state = {"model": state["model"], "selector": {}, "aggregator": {}}
        experiment = Experiment.of(config, self.given, resumed=True)
        require(
            self.config.runtime != "fleet" or not experiment.method.resident,
            f"With '{self.config.method}' on a fleet, models stay at the sites: there are none here.",
        )
        experiment.method.load_state_dict(state)
        return experiment, done

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
    on_round: OnRound | None = None,
    **settings: Any,
) -> Run:
    """Run an experiment and return its records.

    `federation` is your own data (see `covey.federation`), instead of a data set and an environment by name.

    Settings are those of `Config`, sections as mappings or dotted keys:
    `covey.run(method="fedprox", rounds=20, local={"rate": 0.05}, **{"environment.alpha": 0.1})`.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
    config = given if isinstance(given, Config) and not settings else as_config(given, settings)
    folder = Path(out) if out is not None else default_folder(config)
    experiment = Experiment.of(config, federation)
    try:
        return _play(experiment, Records.create(folder, config), on_round, federation)
    finally:
        experiment.runtime.close()


def resume(
    folder: Path | str,
    *,
    federation: Federation | None = None,
    on_round: OnRound | None = None,
    workers: int | None = None,
) -> Run:
    """Go on with a run that was stopped, from its last finished round.

    A run on a federation that was passed in needs the same one again.
    """
    folder = Path(folder)
    config = read_config(folder)
    if workers is not None:
        config = Config.of({**config.as_mapping(), "workers": workers})
    experiment = Experiment.of(config, federation, resumed=has_checkpoint(folder))
    try:
        return _play(experiment, _reopened(experiment, folder), on_round, federation)
    finally:
        experiment.runtime.close()


def _reopened(experiment: Experiment, folder: Path) -> Records:
    """The records of a run to go on with, from what method and runtime were at its last finished round."""
    records, state = Records.reopen(folder)
    if state is not None:
        experiment.method.load_state_dict(state)
    # A live runtime has seen clients fail, which decides whom it rests.
    executor = getattr(experiment.runtime, "runtime", None)
    if (recall := getattr(executor, "recall", None)) is not None:
        recall(read_metrics(folder))
    return records


def _play(experiment: Experiment, records: Records, on_round: OnRound | None, given: Federation | None) -> Run:
    try:
        with finishing_the_round() as stop:
            play([_game(experiment, records, on_round)], one_by_one, stop)
    finally:
        records.close()
    return Run(records.folder, experiment.config, given)


def _game(experiment: Experiment, records: Records, on_round: OnRound | None) -> Game:
    return Game(
        experiment.method,
        experiment.runtime,
        records,
        experiment.truth,
        experiment.config.rounds,
        experiment.config.evaluate_every,
        noticing(records.folder, on_round),
    )


def run_together(
    pending: Sequence[tuple[Config, Path]],
    on_round: Callable[[int, dict[str, object]], None] | None = None,
    stop: Callable[[], bool] | None = None,
    given: Federation | None = None,
) -> list[Run]:
    """Run (or go on with) many runs in lockstep: each round, the clients of all of them are trained together.

    `on_round(number, record)` is told whose round ended. Each run is kept about once in `LOCKSTEP_CHECKPOINT`
    seconds rather than every round, and less often where that would take more than `LOCKSTEP_CHECKPOINT_SHARE` of the
    time. Once `stop` says so, every run ends after its round, and is kept. `given` is the federation of all of them,
    where it was passed in.
    """
    games, opened = [], []
    try:
        for number, (config, folder) in enumerate(pending):
            experiment = Experiment.of(config, given, resumed=has_checkpoint(folder))
            if (folder / "config.json").is_file():
                records = _reopened(experiment, folder)
            else:
                records = Records.create(folder, config)
            records.checkpoint_seconds = LOCKSTEP_CHECKPOINT
            records.checkpoint_share = LOCKSTEP_CHECKPOINT_SHARE / len(pending)
            opened.append((experiment, records))
            games.append(_game(experiment, records, _numbered(on_round, number)))
        with finishing_the_round() as asked:
            play(games, execute_in_lockstep, lambda: asked() or (stop is not None and stop()))
    finally:
        for experiment, records in opened:
            records.close()
            experiment.runtime.close()
    return [Run(folder, config, given) for config, folder in pending]


def _numbered(on_round: Callable[[int, dict[str, object]], None] | None, number: int) -> OnRound | None:
    return (lambda record: on_round(number, record)) if on_round else None


def describing(federation: Federation) -> dict[str, Any]:
    """Settings that stand for a federation that was passed in."""
    return {
        "dataset": {"name": GIVEN, "fingerprint": federation.fingerprint},
        "environment": GIVEN,
        "clients": federation.clients,
    }


def with_federation(
    given: Mapping[str, Any] | Config | None, settings: Mapping[str, Any], federation: Federation
) -> dict[str, Any]:
    """Settings with those for a federation that was passed in, which has as many clients as it has."""
    for asked in (given, settings):
        if isinstance(asked, Mapping) and asked.get("clients") is not None:
            clients = coerce(asked["clients"], int, "clients")
            require(
                clients == federation.clients,
                f"The federation passed in has {federation.clients} clients, and clients asks for {clients}: leave "
                "clients out, or pass in another federation.",
            )
    return {**settings, **describing(federation)}


def as_configured(given: Federation, config: Config) -> Federation:
    """The federation that was passed in, made sure to be the one that the configuration speaks of."""
    expected = config.dataset.options.get("fingerprint")
    require(
        config.dataset.name == GIVEN and expected == given.fingerprint,
        "The federation passed in is not the one that this run was made with "
        f"(fingerprint {given.fingerprint}, expected {expected}).",
    )
    return altered_federation(given, config)


def as_config(given: Mapping[str, Any] | Config | None, settings: Mapping[str, Any]) -> Config:
    """A configuration from a mapping with more settings laid over it; dotted keys reach into sections."""
    mapping: dict[str, Any] = given.as_mapping() if isinstance(given, Config) else {}
    if isinstance(given, Mapping):
        mapping = expand(given)
    return Config.of(overlay(mapping, expand(settings)))


def expand(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted keys nested into their sections."""
    mapping: dict[str, Any] = {}
    for key, value in settings.items():
        mapping = overlay(mapping, nested(key, value))
    return mapping


def default_folder(config: Config) -> Path:
    """`runs/<time>-<method>-<environment>-s<seed>`, not yet taken."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    words = re.sub(r"[^A-Za-z0-9.+-]+", "-", f"{config.method}-{config.environment.name}-s{config.seed}")
    folder = Path("runs") / f"{stamp}-{words}"
    number = 2
    while folder.exists():
        folder = folder.with_name(f"{stamp}-{words}-{number}")
        number += 1
    return folder


def data_frame(rows: list[dict[str, Any]]) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise Refusal("A data frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)
