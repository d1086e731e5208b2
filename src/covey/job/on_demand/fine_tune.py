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
from covey.config.values import overlay
from covey.core.checkpoint import read_checkpoint, write_checkpoint
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
        _begin(folder / f"target-{number}", config, 0, OneModel(setting, model, *parts).state_dict())
    if plan["continued"] and not (folder / "continued" / "checkpoint.safetensors").is_file():
        done, state = read_checkpoint(run.folder)
        require(
            state is not None and done == plan["base_round"],
            f"The base run {run.folder} is no longer at round {plan['base_round']}, where this job began.",
        )
        assert state is not None
        longer = continued_config(run.config, plan)
        _begin(folder / "continued", longer, done, state, run.folder / "metrics.jsonl")


def _begin(folder: Path, config: Config, done: int, state: State, metrics: Path | None = None) -> None:
    """Make a run folder that resumes from a state after `done` rounds.

    The checkpoint is written last: a folder that has one is complete.
    """
    if (folder / "checkpoint.safetensors").is_file():
        return
    try:
        if not (folder / "config.json").is_file():
            Records.create(folder, config).close()
        if metrics is not None:
            shutil.copyfile(metrics, folder / "metrics.jsonl")
        write_checkpoint(folder, done, state)
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The folder {folder} cannot be written: {error}.") from error


def _first_rate(base: Config, plan: Mapping[str, Any]) -> float:
    """Return the learning rate of the first round after branching: as given, or the base run's next one."""
    if "rate" in plan["settings"].get("local", {}):
        return as_config(base, plan["settings"]).local.rate
    return base.local.rate_at(plan["base_round"] + 1, 0)


def continued_config(base: Config, plan: Mapping[str, Any]) -> Config:
    """Return the base run's configuration for as many more rounds, at the learning rates of the fine-tuning runs.

    The rate decays from round 1, so it is set such that it has decayed to `_first_rate` at the first new round.
    """
    done, rate = plan["base_round"], _first_rate(base, plan)
    longer = as_config(base, {**plan["settings"], "rounds": done + plan["rounds"]})
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
    config = as_config(base, plan["settings"])
    mapping = {key: value for key, value in config.as_mapping().items() if key not in ("method", "many")}
    clients = tuple(composition.clients.tolist())
    parts = {
        "selector": {"name": "composed", "clients": clients},
        "aggregator": {"name": "ratios", "clients": clients, "ratios": tuple(composition.ratios.tolist())},
    }
    first_rate = {"local": {"rate": _first_rate(base, plan)}}
    return as_config({**overlay(mapping, first_rate), **parts}, {"rounds": plan["rounds"]})
