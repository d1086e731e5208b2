"""The runs of an on-demand job: one per target that starts at the base model, and the continued base run."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from torch import Tensor

from covey.aggregation.fixed_weights import Ratios
from covey.arrays import State
from covey.config.schema import Config
from covey.config.sections import Local
from covey.config.values import overlay
from covey.core.build import trainer_of
from covey.core.checkpoint import checkpoint_round, read_checkpoint, write_checkpoint
from covey.core.kept_segments import copy_segments
from covey.core.model_constants import copy_constants
from covey.core.one_model import OneModel
from covey.core.records import Records
from covey.errors import Refusal, require
from covey.job.on_demand.composition import Composition
from covey.job.on_demand.on_demand_result import ComposedTargets
from covey.job.runs import Run
from covey.job.settings import as_config
from covey.registries import aggregators
from covey.selection.composed import ComposedSelector


def begin_runs(
    folder: Path, plan: Mapping[str, Any], composed: ComposedTargets, run: Run, model: Tensor, method: OneModel
) -> None:
    """Make a run folder per target that starts at the base model, and one that continues the base run if asked for."""
    for number, (_, composition, _) in enumerate(composed.targets, start=1):
        config = _fine_tune_config(run.config, plan, composition)
        assert config.selector is not None
        assert config.aggregator is not None
        parts = ComposedSelector(**config.selector.options), Ratios(**config.aggregator.options)
        setting = replace(method.setting, cohort=config.cohort, rounds=config.rounds, work=config.local)
        trainer = trainer_of(config)
        begun = OneModel(setting, model, *parts, trainer=trainer)
        if trainer is not None and trainer.part.private and (last := read_checkpoint(run.folder)[1]) is not None:
            # What clients have told of their samples counts.
            trainer.part.load_state_dict(last["trainer"]["part"])
        _begin(folder / f"target-{number}", config, 0, begun.state_dict(), run.folder)
    if plan["continued"] and not (folder / "continued" / "checkpoint.safetensors").is_file():
        done, state = read_checkpoint(run.folder)
        require(
            state is not None and done == plan["base_round"],
            f"The base run {run.folder} is no longer at round {plan['base_round']}, where this job began.",
        )
        assert state is not None
        longer = continued_config(run.config, plan)
        _begin(folder / "continued", longer, done, state, run.folder, run.folder)


def _begin(folder: Path, config: Config, done: int, state: State, run_folder: Path, base: Path | None = None) -> None:
    """Make a run folder that resumes from a state after `done` rounds; `base` is the folder that these were run in.

    `run_folder` is that of the base run, whose model is trained on.

    The checkpoint is written last: a folder that has one is complete.
    """
    if (folder / "checkpoint.safetensors").is_file():
        return
    try:
        if not (folder / "config.json").is_file():
            Records.create(folder, config).close()
            copy_constants(run_folder, folder)
        if base is not None:
            shutil.copyfile(base / "metrics.jsonl", folder / "metrics.jsonl")
            copy_segments(base, folder)
            # Segments that a checkpoint refers to stay until the next one is there.
            require(checkpoint_round(base) == done, f"The base run {base} went on while it was copied; begin again.")
        write_checkpoint(folder, done, state)
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The folder {folder} cannot be written: {error}.") from error


def _first_rate(base: Config, plan: Mapping[str, Any]) -> float:
    """Return the learning rate of the first round after branching: as given, or the base run's next one."""
    if "rate" in plan["settings"].get("local", {}):
        return as_config(base, plan["settings"]).local.rate
    return base.local.rate_at(plan["base_round"] + 1, 0)


def _unscheduled(base: Config) -> Config:
    """Return the base run's configuration without the schedule of its learning rate, which ends where a job begins."""
    plain = Local()
    names = ("schedule", "schedule_rounds", "schedule_factor", "warmup")
    return replace(base, local=replace(base.local, **{name: getattr(plain, name) for name in names}))


def continued_config(base: Config, plan: Mapping[str, Any]) -> Config:
    """Return the base run's configuration for as many more rounds, at the learning rates of the fine-tuning runs.

    The rate decays from round 1, so it is set such that it has decayed to `_first_rate` at the first new round.
    """
    done, rate = plan["base_round"], _first_rate(base, plan)
    longer = as_config(_unscheduled(base), {**plan["settings"], "rounds": done + plan["rounds"]})
    require(
        longer.local.schedule == "constant" and not longer.local.warmup,
        "A schedule of the learning rate begins with a run's first round, which a continued run has behind it: leave "
        "local.schedule and local.warmup out, or leave out --continued.",
    )
    if longer.cohort != base.cohort and base.aggregator is not None:
        names = (base.aggregator.name, base.aggregator.options.get("inner"))
        require(
            not any("agent" in aggregators[name].options for name in names if name is not None),
            f"The agent of '{base.method}' has learned with {base.cohort} clients a round, so the base run cannot be "
            f"continued with {longer.cohort}; leave out the cohort, or --continued.",
        )
    if longer.local.rate_at(done + 1, 0) == rate:
        return longer
    decayed = longer.local.decay ** (done * longer.local.epochs)
    require(
        decayed > 0 and bool(np.isfinite(rate / decayed)),
        f"With local.decay={longer.local.decay:g} the rate would be zero after the {done} rounds of the base run, so "
        "it cannot be continued; choose a decay nearer to 1, or leave out --continued.",
    )
    return as_config(longer, {"local": {"rate": rate / decayed}})


def _fine_tune_config(base: Config, plan: Mapping[str, Any], composition: Composition) -> Config:
    """Return the base run's configuration with the composed clients and the settings that were given."""
    config = as_config(_unscheduled(base), {**plan["settings"], "rounds": plan["rounds"]})
    mapping = {key: value for key, value in config.as_mapping().items() if key not in ("method", "many")}
    clients = tuple(composition.clients.tolist())
    parts = {
        "selector": {"name": "composed", "clients": clients},
        "aggregator": {"name": "ratios", "clients": clients, "ratios": tuple(composition.ratios.tolist())},
    }
    first_rate = {"local": {"rate": _first_rate(base, plan)}}
    return as_config({**overlay(mapping, first_rate), **parts}, {"rounds": plan["rounds"]})
