"""On-demand jobs: begin, resume and read them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.config.runtime_choice import AUTO, runtime_here
from covey.config.schema import GIVEN, Config
from covey.config.values import own_names
from covey.core.build import trainer_of
from covey.core.checkpoint import read_checkpoint
from covey.core.loaded_state import load_state
from covey.core.loop import OnRound
from covey.core.one_model import OneModel
from covey.core.round_record import privacy_of
from covey.data.class_mix import Target, client_numbers, parse_targets
from covey.data.dataset import require_class_shares
from covey.environment.federated_data import Federation
from covey.errors import Interrupted, Refusal, require
from covey.job.experiment import Experiment
from covey.job.job_folder import free_folder, require_empty
from covey.job.on_demand.class_shares import Estimator, check_estimator, estimated, fitting_estimator
from covey.job.on_demand.composition import Pairing, compose, sizes_note
from covey.job.on_demand.fine_tune import begin_runs, continued_config
from covey.job.on_demand.mix_scores import evaluate_targets
from covey.job.on_demand.on_demand_folder import (
    OnDemandPlan,
    claim,
    is_complete,
    is_ondemand,
    read_composed,
    read_job,
    run_folders,
)
from covey.job.on_demand.on_demand_result import ComposedTargets, OnDemand
from covey.job.pending_runs import OnRun, PendingRun, run_missing
from covey.job.runs import Run
from covey.job.settings import as_config, expand
from covey.registries import methods
from covey.storage import FolderLock
from covey.trust import Trust

ROUNDS = 50
"""Rounds of fine-tuning by default."""

_FIXED = (
    *("method", "selector", "aggregator", "trainer", "many", "averaging"),
    *("dataset", "environment", "altered", "model", "clients", "seed"),
)
"""Settings that stay those of the base run."""


def ondemand(
    base: Run | Path | str,
    target: Target | Sequence[Target],
    *,
    estimator: Estimator | None = None,
    rounds: int = ROUNDS,
    pairing: Pairing = "unscaled",
    survey: bool = False,
    insight_dp: str | None = None,
    continued: bool = False,
    without: str | Sequence[str | int] = (),
    federation: Federation | None = None,
    out: Path | str | None = None,
    fleet: Path | str | None = None,
    trust: Trust = False,
    on_composed: Callable[[ComposedTargets], None] | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> OnDemand:
    """Fine-tune the model of a base run for one class mix or several, each on clients that together hold that mix.

    target: one or a list: text such as "cat=0.5,dog=0.5", class → share, a share for each class, a `Path` to a file of
        labels, or the paper's "td1", "td2", "td3" and "local:7", the mix of client 7, by number or name (in
        simulations only; sites with data of their own state their mix).
    estimator: where the clients' class shares come from: learned, analytic, or ground-truth (see `Estimator`); by
        default learned where the base run keeps estimates, else analytic.
    rounds: rounds of fine-tuning.
    pairing: how samples count in the composition and in the weights: unscaled, scaled_rn, or the authors' scaled_r.
    survey: first ask all clients for a fresh estimate by the base run's predictor (learned).
    insight_dp: epsilon and delta, such as "1,1e-5", of the gradient that clients are asked for (analytic).
    continued: also continue the base run for as many rounds, for comparison.
    without: names or numbers of clients that no mix is composed of, such as "hosp07,hosp12" or [6, 11].
    federation: that of the base run, if it was passed in from Python.
    out: folder to write; one that holds part of the same job is resumed.
    fleet: folder of a live fleet, for the runtime "fleet"; by default COVEY_FLEET names it.
    trust: let the base run's folder name code of somebody's own to import: True, or the names that are allowed.

    Other settings are laid over the base run's: `local`, `cohort`, `evaluate_every`, `runtime`, `workers`, and so on.
    They hold from the first round after branching. The learning rate starts at the base run's unless given.
    """
    run = _opened(base, federation, trust)
    require(rounds >= 1, f"rounds must be at least 1, not {rounds}.")
    check_estimator(estimator, survey=survey, insight_dp=insight_dp)
    given = expand(settings)
    _require_open(given)
    if given.get("runtime") == AUTO:
        # The plan holds the one chosen, for its resume.
        given["runtime"] = runtime_here(AUTO, str(given.get("device") or "auto"))
    config = as_config(run.config, given)
    experiment, done = _base_experiment(run, config, fleet)
    try:
        experiment.federation.dataset.require_tests()
        require_class_shares(experiment.federation.dataset, "Models on demand")
        estimator = estimator or fitting_estimator(experiment, survey=survey)
        check_estimator(estimator, survey=survey, insight_dp=insight_dp)
        names = experiment.federation.names
        mixes = parse_targets(target, experiment.federation.dataset.class_names, experiment.known_shares, names)
        left_out = client_numbers(without, experiment.federation.clients, names)
        plan = OnDemandPlan(
            base=str(run.folder.resolve()),
            base_round=done,
            targets=tuple(mix.as_mapping() for mix in mixes),
            estimator=estimator,
            rounds=rounds,
            pairing=pairing,
            survey=survey,
            insight_dp=insight_dp,
            continued=continued,
            settings=given,
            without=tuple(names[one] if names else str(one) for one in left_out),
        )
        folder = Path(out) if out is not None else free_folder("ondemand")
        if is_ondemand(folder):
            require(
                read_job(folder)["plan"] == plan.as_mapping(),
                f"The folder {folder} holds another job; choose another --out.",
            )
        else:
            require_empty(folder, "on-demand job")
            if continued:
                continued_config(run.config, plan.as_mapping())
            found, notes, sent = estimated(experiment, done, estimator, survey=survey, insight_dp=insight_dp)
            compositions = []
            for mix in mixes:
                try:
                    one = compose(
                        found.shares,
                        mix.mix,
                        at_least=config.cohort,
                        sizes=found.sizes,
                        pairing=pairing,
                        without=left_out,
                    )
                except Refusal as refusal:
                    raise Refusal(f"The target {mix.name}: {refusal}") from refusal
                compositions.append(one)
            asked = survey or estimator != "learned"
            notes = [*_unfinished(run, done), *notes, *sizes_note(found.sizes, pairing, asked=asked)]
            privacy = next((privacy_of(row) for row in run.metrics if row["round"] == done), {})
            claim(folder, plan, experiment.method.models()[0], found, compositions, notes, sent, privacy)
        return _advance(folder, run, experiment, on_composed, on_run, on_round, fleet)
    finally:
        experiment.runtime.close()


def resume_ondemand(
    folder: Path | str,
    *,
    federation: Federation | None = None,
    on_composed: Callable[[ComposedTargets], None] | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    fleet: Path | str | None = None,
    trust: Trust = False,
) -> OnDemand:
    """Resume a job that was stopped; one that is complete is read. `trust` lets folders name code to import."""
    folder = Path(folder)
    plan = read_job(folder)["plan"]
    if is_complete(folder, plan):
        return _read(folder, federation, trust, on_composed, fleet)
    require(
        (Path(plan["base"]) / "config.json").is_file(),
        f"The job {folder} is not complete, and its base run is no longer at {plan['base']}; move it back there to "
        "resume the job.",
    )
    _require_open(plan["settings"])
    run = _opened(str(plan["base"]), federation, trust)
    experiment = Experiment.of(
        as_config(run.config, plan["settings"]), run.given, resumed=True, fleet=fleet, folder=run.folder
    )
    try:
        return _advance(folder, run, experiment, on_composed, on_run, on_round, fleet)
    finally:
        experiment.runtime.close()


def read_ondemand(folder: Path | str, *, federation: Federation | None = None, trust: Trust = False) -> OnDemand:
    """Read the result of a complete job. Nothing is trained, and the base run is not needed.

    Its models are scored again, so a data set or model of somebody's own is needed and has to be allowed by `trust`.
    """
    folder = Path(folder)
    require(
        is_complete(folder, read_job(folder)["plan"]),
        f"The job {folder} is not complete; resume with: covey resume {folder}",
    )
    return _read(folder, federation, trust)


def _require_open(settings: Mapping[str, Any]) -> None:
    """Refuse settings that stay those of the base run."""
    for key in settings:
        require(key.partition(".")[0] not in _FIXED, f"The {key} is that of the base run: another one cannot be given.")


def _opened(base: Run | Path | str, federation: Federation | None, trust: Trust) -> Run:
    run = base if isinstance(base, Run) else Run.open(base, trust=trust)
    if federation is not None and run.given is None and run.config.dataset.name == GIVEN:
        run = Run(run.folder, run.config, federation)
    return run


def _read(
    folder: Path,
    federation: Federation | None,
    trust: Trust,
    on_composed: Callable[[ComposedTargets], None] | None = None,
    fleet: Path | str | None = None,
) -> OnDemand:
    """Return the result of a complete job. All its runs have the clients, data and model of the first."""
    data = read_job(folder)
    first = _opened(folder / "target-1", federation, trust)
    experiment = Experiment.of(first.config, first.given, resumed=True, fleet=fleet, folder=first.folder)
    try:
        composed, model = read_composed(folder, data, experiment)
        if on_composed is not None:
            on_composed(composed)
        runs = [Run.open(place, first.given, trust=trust) for place in run_folders(folder, data["plan"])]
        return evaluate_targets(composed, model, experiment, runs, data["plan"]["continued"])
    finally:
        experiment.runtime.close()


def _unfinished(run: Run, done: int) -> list[str]:
    if done >= run.config.rounds:
        return []
    return [
        f"The base run is not finished: its model is that after {done} of {run.config.rounds} rounds. To finish it "
        f"first: covey resume {run.folder}"
    ]


def opened_base(run: Run, fleet: Path | str | None = None) -> tuple[Experiment, int]:
    """Return a base run as it was configured, at its last checkpoint, and the rounds done; the caller closes it."""
    return _base_experiment(run, run.config, fleet)


def _base_experiment(run: Run, config: Config, fleet: Path | str | None) -> tuple[Experiment, int]:
    """Return the base run at its last checkpoint, and the rounds done; `config` may name another runtime."""
    done, state = read_checkpoint(run.folder)
    if state is None:
        raise Refusal(f"{run.folder} has no finished round yet; resume with: covey resume {run.folder}")
    recipe = methods[run.config.method].part if run.config.method in methods.names() else None
    require(
        recipe is None or recipe.reshape is None,
        f"The method '{run.config.method}' trains on other clients than those of the federation, so there are none to "
        "compose a mix from; choose another base run.",
    )
    require(run.config.many is None, f"The method '{run.config.method}' has many models, and a base run has one.")
    _require_weighable(run.config)
    experiment = Experiment.of(config, run.given, resumed=True, fleet=fleet, folder=run.folder)
    try:
        load_state(experiment.method, state, run.folder)
    except BaseException:
        experiment.runtime.close()
        raise
    return experiment, done


def _require_weighable(config: Config) -> None:
    """Refuse a base run whose trainer needs an aggregator of its own: fine-tuning weighs clients by a composition."""
    config.require_trusted("trainer")
    trainer = trainer_of(config)
    require(
        trainer is None or not trainer.part.aggregators,
        f"Fine-tuning weighs clients by the ratios of their composition, and the trainer of '{config.method}' works "
        "with its own aggregator alone; choose another base run.",
    )


def _advance(
    folder: Path,
    run: Run,
    experiment: Experiment,
    on_composed: Callable[[ComposedTargets], None] | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    fleet: Path | str | None,
) -> OnDemand:
    """Finish the runs that are not finished, then evaluate everything."""
    data = read_job(folder)
    composed, model = read_composed(folder, data, experiment)
    assert isinstance(experiment.method, OneModel)
    places, with_base = run_folders(folder, data["plan"]), data["plan"]["continued"]
    targets = [(mix.name, mix.mix) for mix, _, _ in composed.targets]
    labelled = [*targets, *([("the base run, continued", None)] if with_base else [])]
    named = own_names(run.config.as_mapping()).values()
    with nullcontext() if is_complete(folder, data["plan"]) else FolderLock(folder, "on-demand job"):
        begin_runs(folder, data["plan"], composed, run, model, experiment.method)
        if on_composed is not None:
            on_composed(composed)
        pending = [
            PendingRun(label, None, Run.open(place, trust=named).config, place, partial(_on_target, mix))
            for place, (label, mix) in zip(places, labelled, strict=True)
        ]
        if not run_missing(pending, run.given, on_run, on_round, fleet):
            raise Interrupted(folder)
    made = [Run.open(place, run.given, trust=named) for place in places]
    return evaluate_targets(composed, model, experiment, made, with_base)


def _on_target(mix: FloatArray | None, record: dict[str, Any]) -> dict[str, Any]:
    """Return a round's record with the accuracy on the target in place of that on the whole test set."""
    if mix is None or "class_accuracy" not in record:
        return record
    return {**record, "accuracy": float(np.asarray(record["class_accuracy"]) @ mix)}
