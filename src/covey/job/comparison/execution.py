"""Comparisons: methods x settings x seeds over the same federations, run and resumed."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from operator import index
from pathlib import Path
from typing import Any, cast

import numpy as np

from covey.config.recipe import Recipe
from covey.config.schema import Config
from covey.config.values import PARTS, overlay, part_name
from covey.core.checkpoint import FORMAT
from covey.core.given_parts import role_of
from covey.core.interfaces import Part
from covey.core.loop import OnRound
from covey.core.runtime_traits import traits_of
from covey.environment.federated_data import Federation
from covey.errors import Interrupted, Refusal, require
from covey.job.comparison.compared_runs import Comparison
from covey.job.comparison.plan import (
    Variant,
    own_names_of,
    place_of,
    read_plan,
    runtime_settled,
    variants_of,
)
from covey.job.comparison.plan_folder import claim, default_folder
from covey.job.comparison.typed_plan import with_types
from covey.job.comparison.whose_settings import require_different, without_use
from covey.job.experiment import dry_run
from covey.job.pending_runs import OnRun, PendingRun, run_missing
from covey.job.progress_display import bars_wanted, both, comparison_progress
from covey.job.settings import expand, with_federation
from covey.job.trackers import chosen_trackers
from covey.storage import FolderLock
from covey.task.learning_task import ACCURACY, Metric
from covey.trust import Trust, refused_names, require_trusted

MethodChoice = str | Recipe | Part | Callable[..., Any]
"""A method by name, or one of somebody's own: a recipe, a class or a function, or a part of FedAvg."""

ONE_SEED = "A comparison takes seeds (a number, or a list such as 3,7), not one seed."


def compare(
    methods: MethodChoice | Sequence[MethodChoice] = ("fedavg", "iid"),
    seeds: int | Sequence[int] = 3,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    given: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    target: float | None = None,
    agents: Mapping[str, str] | None = None,
    fairness: bool = False,
    out: Path | str | None = None,
    fleet: Path | str | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    **settings: Any,
) -> Comparison:
    """Run every method with every varied setting on every seed, and compare them.

    A method is a name, or `"selector+aggregator"` or `"selector+aggregator+trainer"` for any other combination, such as
    `"fedacs+feddrl+moon"`. One of your own is a recipe, a class of methods, or a selector, an aggregator or a trainer:
    FedAvg with that part. An option of a part (`trainer={"mu": 0.1}`) goes to the methods that have it, and one of the
    server's optimiser (`server={"rate": 0.1}`) to those that have one; other settings go to all. Lines that come out
    as the same run are refused.

    seeds: a number (0, 1, …) or a list.
    vary: settings to sweep, such as `{"local.rate": [0.1, 0.01]}`; a method without the option has one line.
    federation: your own data (see `covey.federation`), instead of a data set and an environment by name.
    target: accuracy, or main metric of another task, to which rounds and bytes are counted; by default the best that
        every run reached.
    agents: files of trained agents by the aggregator that they are for, `{"feddrl": "agent.safetensors"}`.
    fairness: clients of all methods measure the loss of the model that they receive, for records and reports.
    out: folder to write; one that holds part of the same comparison is resumed, and extended by more seeds, methods or
        rounds. By default the first of
        `runs/compare-<methods>`, `…-2`, … that holds no other comparison.
    fleet: folder of a live fleet, for the runtime "fleet"; by default COVEY_FLEET names it.
    progress: show bars everywhere (True) or nowhere (False); by default on a terminal and in a notebook.
    track: trackers that follow every run: tensorboard, mlflow, wandb.

    Other settings are those of `Config`, for all methods; `given` is a mapping of more of them.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
    require("seed" not in settings, ONE_SEED)
    base = runtime_settled(overlay(expand(given or {}), expand(settings)))
    trackers = chosen_trackers(track)
    names = list(methods) if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    named = [isinstance(name, Recipe) or callable(name) or role_of(name) is not None for name in names]
    names = [part_name("method", name) if own else name for name, own in zip(names, named, strict=True)]
    for name in names:
        require(
            isinstance(name, str),
            "A method to compare is a name such as 'fedavg', or 'selector+aggregator' such as 'fedacs+feddrl', with a "
            "trainer after another + if wanted, "
            f"not {name!r}; options are settings of the comparison, such as aggregator={{...}}.",
        )
    numbers = _numbers(seeds)
    plan: dict[str, Any] = {
        "methods": names,
        "seeds": numbers,
        "vary": {key: _values(key, values) for key, values in (vary or {}).items()},
    }
    plan |= {"agents": dict(agents)} if agents else {}
    require(len(numbers) >= 1, f"seeds must be at least 1, not {seeds}.")
    require(len(set(numbers)) == len(numbers), f"The seeds {numbers} are not all different.")
    require(target is None or math.isfinite(target), f"target is a number, not {target}.")
    for key in ("seed", "method"):
        require(key not in plan["vary"], f"A comparison does not vary {key}; give {key}s instead (--{key}s A,B).")
    plan |= {"fairness": True} if fairness else {}
    # As it will be read from its file: a tuple becomes a list.
    plan = json.loads(json.dumps({"format": FORMAT, **plan, "given": base, "target": target}, default=_plain))
    unvaried = without_use(plan["methods"], plan["given"], plan["vary"])
    plan = with_types({**plan, "unvaried": unvaried} if unvaried else plan)
    variants = variants_of(plan)
    require_different([(one.label, one.method, one.configs[0]) for one in variants])
    metrics = {_possible(variant.configs[0], federation, target).name for variant in variants}
    require(
        len(metrics) == 1,
        f"These runs are measured by {' and by '.join(sorted(metrics))}: compare runs of one task.",
    )
    folder = Path(out) if out is not None else default_folder(plan)
    begun = claim(folder, plan, federation)
    with _shown(progress, on_run, on_round) as (run_begins, round_ends):
        trusted = own_names_of(begun).values()
        return _advance(folder, variants_of(begun), federation, run_begins, round_ends, fleet, trusted, trackers)


@contextmanager
def _shown(
    progress: bool | None, on_run: OnRun | None, on_round: OnRound | None
) -> Iterator[tuple[OnRun | None, OnRound | None]]:
    """Show bars if they are wanted, beside the listeners given."""
    if not bars_wanted(progress):
        yield on_run, on_round
        return
    with comparison_progress() as (bar, advance):

        def run_begins(label: str, seed: int | None, rounds: int) -> None:
            bar(label, seed, rounds)
            if on_run:
                on_run(label, seed, rounds)

        yield run_begins, both(advance, on_round)


def resume_comparison(
    folder: Path,
    *,
    federation: Federation | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    fleet: Path | str | None = None,
    trust: Trust = False,
    track: str | Sequence[str] = (),
    rounds: int | None = None,
) -> Comparison:
    """Resume a comparison that was stopped; `trust` lets it name code of somebody's own to import.

    `rounds` extends all of its runs.
    """
    plan = read_plan(folder)
    named = own_names_of(plan)
    require_trusted(refused_names(named, trust, folder))
    if rounds is not None:
        require("rounds" not in plan["vary"], f"The comparison {folder} varies rounds, and is not extended by more.")
        plan = claim(folder, {**plan, "given": {**plan["given"], "rounds": rounds}}, federation)
    return _advance(
        folder, variants_of(plan), federation, on_run, on_round, fleet, named.values(), chosen_trackers(track)
    )


def _plain(value: Any) -> Any:
    """Return a path as text, and a NumPy number as a Python number."""
    return value.item() if isinstance(value, np.generic) else str(value)


_MOST_SEEDS = 10_000
"""Most seeds of a comparison."""


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    try:
        count = None if isinstance(seeds, Iterable) else index(seeds)
        require(count is None or count <= _MOST_SEEDS, f"seeds must be at most {_MOST_SEEDS:,}, not {seeds}.")
        return list(range(count)) if count is not None else [index(seed) for seed in cast(Sequence[int], seeds)]
    except TypeError:
        raise Refusal(f"seeds must be a whole number such as 3, or a list such as [0, 4, 7], not {seeds!r}.") from None


def _values(key: str, values: Sequence[Any]) -> list[Any]:
    listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if key in PARTS:
        # Parts that are given as objects get names.
        listed = [overlay({}, {key: value})[key] if not isinstance(value, str) else value for value in listed]
    require(len(listed) > 0, f"vary takes a list of values for {key}, such as [0.1, 0.01], not {values!r}.")
    return listed


def _possible(config: Config, given: Federation | None, target: float | None) -> Metric:
    """Return the main metric of runs; refuse impossible ones (an agent for other clients, an option out of its range)
    before any run begins.
    """
    metric = ACCURACY
    if not traits_of(config.runtime).live:
        metric = dry_run(config, given).dataset.learns.main
    require(
        target is None or not metric.share or 0 < target <= 1,
        f"target is a fraction in (0, 1], as the {metric.label} is, not {target}.",
    )
    return metric


def _advance(
    folder: Path,
    variants: tuple[Variant, ...],
    given: Federation | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    fleet: Path | str | None,
    trust: Trust,
    track: Sequence[str] = (),
) -> Comparison:
    """Make the runs that are missing, and open the comparison."""
    runs = [
        PendingRun(variant.label, config.seed, config, place_of(folder, variant.label, config.seed))
        for variant in variants
        for config in variant.configs
    ]
    with nullcontext() if all(one.finished for one in runs) else FolderLock(folder, "comparison"):
        if not run_missing(runs, given, on_run, on_round, fleet, track):
            raise Interrupted(folder)
    return Comparison.open(folder, given, trust=trust)
