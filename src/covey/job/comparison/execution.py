"""Comparisons: methods x settings x seeds over the same federations, run and gone on with."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from covey.config.schema import Config
from covey.config.values import overlay
from covey.core.checkpoint import FORMAT
from covey.core.loop import OnRound
from covey.environment.federated_data import Federation
from covey.errors import Interrupted, Refusal, require
from covey.job.comparison.plan import Variant, claim, default_folder, finished, place_of, read_plan, variants_of
from covey.job.comparison.statistics import Comparison
from covey.job.experiment import dry_run
from covey.job.runs import resume, run, run_together
from covey.job.settings import expand, with_federation

OnRun = Callable[[str, int | None, int], None]
"""Told of each run that begins: label, seed (None for many in lockstep), rounds."""

ONE_SEED = "A comparison takes seeds (a number, or a list such as 3,7), not one seed."


def compare(
    methods: str | Sequence[str] = ("fedavg", "iid"),
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
    **settings: Any,
) -> Comparison:
    """Run every method with every varied setting on every seed, and compare.

    A method is a name, or `"selector+aggregator"` for any other mix, such as `"fedacs+feddrl"`; an option of a selector
    or aggregator (`aggregator={"learn": False}`) goes to the methods that have it. `seeds` is a number (0, 1, …) or a
    list; `vary` sweeps settings: `{"local.rate": [0.1, 0.01]}`. `agents` are files of trained agents by the aggregator
    that they are for, `{"feddrl": "agent.safetensors"}`. With `fairness`, clients of all methods measure the loss of
    the model that they receive, which records and reports then compare. `federation` is your own data (see
    `covey.federation`), instead of a data set and an environment by name. `fleet` is the folder of a live fleet, for
    the runtime "fleet"; by default COVEY_FLEET names it.
    A folder that holds part of the same comparison is gone on with; without `out` it is the first of
    `runs/compare-<methods>`, `…-2`, … that holds no other.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
    require("seed" not in settings, ONE_SEED)
    base = overlay(expand(given or {}), expand(settings))
    names = [methods] if isinstance(methods, str) else list(methods)
    for name in names:
        require(
            isinstance(name, str),
            "A method to compare is a name such as 'fedavg', or 'selector+aggregator' such as 'fedacs+feddrl', "
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
    require(target is None or 0 < target <= 1, f"target is a fraction in (0, 1], not {target}.")
    for key in ("seed", "method"):
        require(key not in plan["vary"], f"A comparison does not vary {key}; give {key}s instead (--{key}s A,B).")
    plan |= {"fairness": True} if fairness else {}
    # As it will be read again: a list may have been a tuple.
    plan = json.loads(json.dumps({"format": FORMAT, **plan, "given": base, "target": target}, default=_plain))
    variants = variants_of(plan)
    for variant in variants:
        _possible(variant.configs[0], federation)
    folder = Path(out) if out is not None else default_folder(plan)
    claim(folder, plan)
    return _advance(folder, variants, federation, on_run, on_round, fleet)


def resume_comparison(
    folder: Path,
    *,
    federation: Federation | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    fleet: Path | str | None = None,
) -> Comparison:
    """Go on with a comparison that was stopped."""
    plan = read_plan(folder)
    return _advance(folder, variants_of(plan), federation, on_run, on_round, fleet)


def _plain(value: Any) -> Any:
    """A path as text, and a number of NumPy's as one of Python's."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    try:
        return [index(seed) for seed in seeds] if isinstance(seeds, Iterable) else list(range(index(seeds)))
    except TypeError:
        raise Refusal(f"seeds must be a whole number such as 3, or a list such as [0, 4, 7], not {seeds!r}.") from None


def _values(key: str, values: Sequence[Any]) -> list[Any]:
    listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    require(len(listed) > 0, f"vary takes a list of values for {key}, such as [0.1, 0.01], not {values!r}.")
    return listed


def _possible(config: Config, given: Federation | None) -> None:
    """Refuse what no run could be made of (an agent for other clients, an option out of its range) before any is."""
    if config.runtime != "fleet":
        dry_run(config, given)


def _advance(
    folder: Path,
    variants: tuple[Variant, ...],
    given: Federation | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    fleet: Path | str | None,
) -> Comparison:
    """Run what is missing: in lockstep on the stacked runtime, else one after another."""
    places = [
        (variant.label, config, place_of(folder, variant.label, config.seed))
        for variant in variants
        for config in variant.configs
    ]
    missing = [(label, config, place) for label, config, place in places if not finished(place)]
    lockstep = [(config, place) for _, config, place in missing if config.runtime == "stacked"]
    if lockstep:
        if on_run:
            on_run(f"{len(lockstep)} runs in lockstep", None, sum(config.rounds for config, _ in lockstep))
        run_together(lockstep, _counted(on_round), given=given)
    for label, config, place in missing:
        if config.runtime != "stacked":
            if on_run:
                on_run(label, config.seed, config.rounds)
            if (place / "config.json").is_file():
                one = resume(place, federation=given, on_round=on_round, fleet=fleet)
            else:
                one = run(config, federation=given, out=place, on_round=on_round, fleet=fleet)
            if not one.finished:
                break
    if not all(finished(place) for _, _, place in places):
        raise Interrupted(folder)
    return Comparison.open(folder, given)


def _counted(on_round: OnRound | None) -> Callable[[int, dict[str, Any]], None] | None:
    """Progress over the rounds of all runs of a lockstep."""
    done = itertools.count(1)
    return (lambda number, record: on_round({**record, "round": next(done)})) if on_round else None
