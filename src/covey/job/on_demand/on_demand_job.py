"""On-demand jobs: begun, gone on with, and read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.config.schema import GIVEN, Config
from covey.core.checkpoint import read_checkpoint
from covey.core.loop import OnRound
from covey.core.one_model import OneModel
from covey.data.class_mix import Target, parse_targets
from covey.environment.federated_data import Federation
from covey.errors import Interrupted, Refusal, require
from covey.job.comparison.execution import OnRun
from covey.job.experiment import Experiment
from covey.job.on_demand.class_shares import Estimator, check_estimator, estimated
from covey.job.on_demand.composition import Pairing, compose, sizes_note
from covey.job.on_demand.fine_tune import begin_all, continued_config
from covey.job.on_demand.mix_scores import evaluated
from covey.job.on_demand.on_demand_folder import (
    OnDemandPlan,
    claim,
    default_folder,
    is_complete,
    is_ondemand,
    read_composed,
    read_job,
    require_free,
    run_folders,
)
from covey.job.on_demand.on_demand_result import ComposedTargets, OnDemand
from covey.job.runs import Run, resume, run_together
from covey.job.settings import as_config, expand
from covey.registries import methods

ROUNDS = 50
"""Rounds of fine-tuning by default."""

_FIXED = ("method", "selector", "aggregator", "many", "dataset", "environment", "altered", "model", "clients", "seed")
"""Settings that are the base run's and cannot be given."""


def ondemand(
    base: Run | Path | str,
    target: Target | Sequence[Target],
    *,
    estimator: Estimator = "learned",
    rounds: int = ROUNDS,
    pairing: Pairing = "unscaled",
    survey: bool = False,
    insight_dp: str | None = None,
    continued: bool = False,
    federation: Federation | None = None,
    out: Path | str | None = None,
    fleet: Path | str | None = None,
    on_composed: Callable[[ComposedTargets], None] | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> OnDemand:
    """Fine-tune the model of a base run for a class mix, or for each of several, on clients that make that mix.

    target: one or a list: text such as "cat=0.5,dog=0.5", class → share, a share for each class, a `Path` to a file of
        labels, or the paper's "td1", "td2", "td3" and "local:7", the mix of client 7 as that client would state it (not
        of sites with data of their own: they have to state it).
    estimator: where the clients' class shares come from: learned, analytic, or ground-truth (see `Estimator`).
    rounds: rounds of fine-tuning.
    pairing: what weighs a client in the composition: unscaled, scaled_rn, or the authors' scaled_r.
    survey: ask all clients for a fresh estimate first, by the base run's predictor as it is now (learned).
    insight_dp: epsilon and delta, such as "1,1e-5", of the gradient that clients are asked for (analytic).
    continued: also go on with the base run for as many rounds, to compare with.
    federation: the one that the base run was made with, where that was passed in from Python.
    out: folder to write; one that holds part of the same job is gone on with.
    fleet: folder of a live fleet, for the runtime "fleet"; by default COVEY_FLEET names it.

    Other settings are laid over the base run's: `local`, `cohort`, `evaluate_every`, `runtime`, `workers`, and so on.
    They hold from the first round after branching. The learning rate goes on from where the base run is, unless one is
    given.
    """
    run = _opened(base, federation)
    require(rounds >= 1, f"rounds must be at least 1, not {rounds}.")
    check_estimator(estimator, survey=survey, insight_dp=insight_dp)
    given = expand(settings)
    for key in given:
        require(key not in _FIXED, f"The {key} is that of the base run: another one cannot be given.")
    config = as_config(run.config, given)
    experiment, done = _trained(run, config, fleet)
    try:
        experiment.federation.dataset.require_tests()
        wishes = parse_targets(target, experiment.federation.dataset.class_names, experiment.known_shares)
        plan = OnDemandPlan(
            base=str(run.folder.resolve()),
            base_round=done,
            targets=tuple(wish.as_mapping() for wish in wishes),
            estimator=estimator,
            rounds=rounds,
            pairing=pairing,
            survey=survey,
            insight_dp=insight_dp,
            continued=continued,
            settings=given,
        )
        folder = Path(out) if out is not None else default_folder()
        if is_ondemand(folder):
            require(
                read_job(folder)["plan"] == plan.as_mapping(),
                f"The folder {folder} holds another job; choose another --out.",
            )
        else:
            require_free(folder)
            if continued:
                continued_config(run.config, plan.as_mapping())
            found, notes, sent = estimated(experiment, done, estimator, survey=survey, insight_dp=insight_dp)
            compositions = []
            for wish in wishes:
                try:
                    one = compose(found.shares, wish.mix, at_least=config.cohort, sizes=found.sizes, pairing=pairing)
                except Refusal as refusal:
                    raise Refusal(f"The target {wish.name}: {refusal}") from refusal
                compositions.append(one)
            asked = survey or estimator != "learned"
            notes = [*_unfinished(run, done), *notes, *sizes_note(found.sizes, pairing, asked=asked)]
            claim(folder, plan, experiment.method.models()[0], found, compositions, notes, sent)
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
) -> OnDemand:
    """Go on with a job that was stopped; one that is complete is read."""
    folder = Path(folder)
    plan = read_job(folder)["plan"]
    if is_complete(folder, plan):
        return _kept(folder, federation, on_composed, fleet)
    require(
        (Path(plan["base"]) / "config.json").is_file(),
        f"The job {folder} is not complete, and its base run is no longer at {plan['base']}; move it back there to go "
        "on with the job.",
    )
    run = _opened(str(plan["base"]), federation)
    experiment = Experiment.of(as_config(run.config, plan["settings"]), run.given, resumed=True, fleet=fleet)
    try:
        return _advance(folder, run, experiment, on_composed, on_run, on_round, fleet)
    finally:
        experiment.runtime.close()


def read_ondemand(folder: Path | str, *, federation: Federation | None = None) -> OnDemand:
    """What a complete job came to; nothing is trained, and one that is not complete is refused.

    The base run is not needed for it.
    """
    folder = Path(folder)
    require(
        is_complete(folder, read_job(folder)["plan"]),
        f"The job {folder} is not complete; go on with: covey resume {folder}",
    )
    return _kept(folder, federation)


def _opened(base: Run | Path | str, federation: Federation | None) -> Run:
    run = base if isinstance(base, Run) else Run.open(base)
    if federation is not None and run.given is None and run.config.dataset.name == GIVEN:
        run = Run(run.folder, run.config, federation)
    return run


def _kept(
    folder: Path,
    federation: Federation | None,
    on_composed: Callable[[ComposedTargets], None] | None = None,
    fleet: Path | str | None = None,
) -> OnDemand:
    """What a complete job came to. Clients, data and model are those of its first run, as of all of them."""
    data = read_job(folder)
    first = _opened(folder / "target-1", federation)
    experiment = Experiment.of(first.config, first.given, resumed=True, fleet=fleet)
    try:
        composed, model = read_composed(folder, data, experiment)
        if on_composed is not None:
            on_composed(composed)
        runs = [Run.open(place, first.given) for place in run_folders(folder, data["plan"])]
        return evaluated(composed, model, experiment, runs, with_base=data["plan"]["continued"])
    finally:
        experiment.runtime.close()


def _unfinished(run: Run, done: int) -> list[str]:
    if done >= run.config.rounds:
        return []
    return [
        f"The base run is not finished: its model is that after {done} of {run.config.rounds} rounds. To finish it "
        f"first: covey resume {run.folder}"
    ]


def _trained(run: Run, config: Config, fleet: Path | str | None) -> tuple[Experiment, int]:
    """The base run as it stands, and how many rounds it has behind it; `config` may have it executed elsewhere."""
    done, state = read_checkpoint(run.folder)
    if state is None:
        raise Refusal(f"{run.folder} has no finished round yet; go on with: covey resume {run.folder}")
    recipe = methods[run.config.method].part if run.config.method in methods.names() else None
    require(
        recipe is None or recipe.reshape is None,
        f"The method '{run.config.method}' trains on other clients than those of the federation, so there is nobody "
        "to compose its model from; choose another base run.",
    )
    require(run.config.many is None, f"The method '{run.config.method}' has many models, and a base run has one.")
    experiment = Experiment.of(config, run.given, resumed=True, fleet=fleet)
    experiment.method.load_state_dict(state)
    return experiment, done


def _advance(
    folder: Path,
    run: Run,
    experiment: Experiment,
    on_composed: Callable[[ComposedTargets], None] | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    fleet: Path | str | None,
) -> OnDemand:
    """Train what is not trained yet, then evaluate everything."""
    data = read_job(folder)
    composed, model = read_composed(folder, data, experiment)
    assert isinstance(experiment.method, OneModel)
    begin_all(folder, data["plan"], composed, run, model, experiment.method)
    if on_composed is not None:
        on_composed(composed)
    places, with_base = run_folders(folder, data["plan"]), data["plan"]["continued"]
    labels = [wish.name for wish, _, _ in composed.targets]
    mixes: list[FloatArray | None] = [wish.mix for wish, _, _ in composed.targets]
    if with_base:
        labels, mixes = [*labels, "the base run gone on with"], [*mixes, None]
    _train(places, labels, mixes, run.given, on_run, on_round, fleet)
    runs = [Run.open(place, run.given) for place in places]
    if not all(one.finished for one in runs):
        raise Interrupted(folder)
    return evaluated(composed, model, experiment, runs, with_base=with_base)


def _train(
    places: Sequence[Path],
    labels: Sequence[str],
    mixes: Sequence[FloatArray | None],
    given: Federation | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    fleet: Path | str | None,
) -> None:
    """Run what is missing: in lockstep on the stacked runtime, else one after another."""
    missing = [place for place in range(len(places)) if not Run.open(places[place]).finished]
    pending = [(Run.open(places[place]).config, places[place]) for place in missing]
    if len(pending) > 1 and given is None and all(config.runtime == "stacked" for config, _ in pending):
        left = sum(config.rounds - len(Run.open(place).metrics) for config, place in pending)
        if on_run:
            on_run(f"{len(pending)} runs in lockstep", None, left)
        counted = 0

        def on_any(number: int, record: dict[str, object]) -> None:
            nonlocal counted
            counted += 1
            if on_round:
                on_round({**_on_target(record, mixes[missing[number]]), "round": counted})

        run_together(pending, on_any)
        return
    for place, (config, folder) in zip(missing, pending, strict=True):
        if on_run:
            on_run(labels[place], None, config.rounds)
        mix = mixes[place]
        told = None if on_round is None else _told(on_round, mix)
        if not resume(folder, federation=given, on_round=told, fleet=fleet).finished:
            return


def _told(on_round: OnRound, mix: FloatArray | None) -> OnRound:
    return lambda record: on_round(_on_target(record, mix))


def _on_target(record: dict[str, object], mix: FloatArray | None) -> dict[str, object]:
    """A round's record with the accuracy on the target in the place of that on the whole test set."""
    if mix is None or "class_accuracy" not in record:
        return record
    return {**record, "accuracy": float(np.asarray(record["class_accuracy"]) @ mix)}
