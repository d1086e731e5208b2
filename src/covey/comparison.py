"""Comparisons: methods x settings x seeds over the same federations, and what can be said of them.

Methods of one seed share the federation and the initialisation, so differences are taken seed by
seed before they are averaged.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from covey.config import Config, chosen, overlay
from covey.environments import FloatArray
from covey.errors import Refusal, require
from covey.experiment import (
    Experiment,
    Run,
    as_config,
    data_frame,
    expand,
    resume,
    run,
    run_together,
    with_federation,
)
from covey.federations import Federation
from covey.loop import OnRound
from covey.manymodel import manymodels
from covey.methods import recipe_of
from covey.records import FORMAT, write_json
from covey.registry import Registry
from covey.roles import aggregators, selectors

if TYPE_CHECKING:
    import pandas

TERMINAL_SHARE = 0.05
"""Terminal accuracy is the mean over this last share of the rounds."""

OnRun = Callable[[str, int | None, int], None]
"""Told of each run that begins: label, seed (None for many in lockstep), rounds."""

REFERENCE = "iid"
"""The method whose accuracy is what a federation without skew would reach."""

_PARTS: Mapping[str, Registry[Any]] = {"selector": selectors, "aggregator": aggregators, "many": manymodels}
"""Parts that methods of a comparison differ in."""


@dataclass(frozen=True)
class Contender:
    """One line of a comparison: a method with the varied settings, and a configuration per seed."""

    label: str
    method: str
    configs: tuple[Config, ...]


@dataclass(frozen=True)
class Estimate:
    """Mean, median and 95 % interval (Student's t) of one figure over seeds."""

    mean: float
    median: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        sample = np.asarray(values, dtype=np.float64)
        mean, median = float(sample.mean()), float(np.median(sample))
        if len(sample) < 2:
            return cls(mean, median, None, None)
        half = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
        return cls(mean, median, mean - half, mean + half)


@dataclass(frozen=True, eq=False)
class Curve:
    """What one run's evaluations say: rounds, accuracy, and bytes and simulated seconds so far."""

    rounds: FloatArray
    accuracy: FloatArray
    bytes: FloatArray
    clock: FloatArray

    @classmethod
    def of(cls, metrics: Sequence[Mapping[str, Any]]) -> "Curve":
        sent = np.cumsum([row["bytes_up"] + row["bytes_down"] for row in metrics], dtype=np.float64)
        scored = [place for place, row in enumerate(metrics) if "accuracy" in row]
        return cls(
            np.array([metrics[place]["round"] for place in scored], dtype=np.float64),
            np.array([metrics[place]["accuracy"] for place in scored], dtype=np.float64),
            sent[scored],
            np.array([metrics[place].get("clock", 0.0) for place in scored], dtype=np.float64),
        )

    @property
    def terminal(self) -> float:
        """Mean accuracy over the last 5 % of the rounds (at least the last evaluation)."""
        return float(self.accuracy[self.rounds > _before_the_end(self.rounds[-1])].mean())

    @property
    def best(self) -> float:
        return float(self.accuracy.max())

    def first_at(self, target: float) -> int | None:
        """Position of the first evaluation that reaches `target`."""
        reached = np.flatnonzero(self.accuracy >= target)
        return int(reached[0]) if len(reached) else None


def _before_the_end(last: float) -> float:
    """The round after which the last 5 % of `last` rounds begin, at least one."""
    return last - max(1.0, TERMINAL_SHARE * last)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of a comparison, read."""

    folder: Path
    contenders: tuple[Contender, ...]
    runs: dict[str, tuple[Run, ...]]
    """Label → one run per seed."""
    wanted_target: float | None = None

    @classmethod
    def open(cls, folder: Path | str, federation: Federation | None = None) -> "Comparison":
        """A comparison that is complete, from its folder."""
        folder = Path(folder)
        plan = read_plan(folder)
        complete = all(_finished(place) for _, _, place in places_of(folder, plan))
        require(complete, f"{folder} is not complete yet; go on with: covey resume {folder}")
        runs: dict[str, tuple[Run, ...]] = {}
        for label, _, place in places_of(folder, plan):
            runs[label] = (*runs.get(label, ()), Run.open(place, federation))
        contenders = tuple(
            Contender(label, method, tuple(one.config for one in runs[label])) for label, method, _ in _lines(plan)
        )
        return cls(folder, contenders, runs, plan.get("target"))

    @cached_property
    def curves(self) -> dict[str, list[Curve]]:
        return {label: [Curve.of(one.metrics) for one in runs] for label, runs in self.runs.items()}

    @cached_property
    def target(self) -> float:
        """The accuracy that rounds and bytes are counted to: as asked, or the highest that every run reached."""
        if self.wanted_target is not None:
            return self.wanted_target
        return min(curve.best for curves in self.curves.values() for curve in curves)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One mapping per contender; `pandas.DataFrame(comparison.rows)` is a table."""
        return [self._row(contender) for contender in self.contenders]

    def frame(self) -> "pandas.DataFrame":
        """The table as a pandas data frame."""
        return data_frame(self.rows)

    def _row(self, contender: Contender) -> dict[str, Any]:
        curves = self.curves[contender.label]
        first = self.curves[self.contenders[0].label]
        terminal = np.array([curve.terminal for curve in curves])
        difference = terminal - np.array([curve.terminal for curve in first])
        own_terminal, own_rounds = Estimate.of(terminal.tolist()), self._to_target(curves, "rounds")
        first_rounds = self._to_target(first, "rounds")
        paired = Estimate.of(difference.tolist())
        is_first = contender is self.contenders[0]
        return {
            "name": contender.label,
            "method": contender.method,
            "seeds": len(curves),
            "terminal_accuracy": own_terminal.mean,
            "terminal_median": own_terminal.median,
            "terminal_low": None if own_terminal.low is None else max(0.0, own_terminal.low),
            "terminal_high": None if own_terminal.high is None else min(1.0, own_terminal.high),
            "best_accuracy": float(np.mean([curve.best for curve in curves])),
            "difference": None if is_first else paired.mean,
            "difference_low": None if is_first else paired.low,
            "difference_high": None if is_first else paired.high,
            "target": self.target,
            "reached": sum(curve.first_at(self.target) is not None for curve in curves),
            "rounds_to_target": own_rounds,
            "bytes_to_target": self._to_target(curves, "bytes"),
            "seconds_to_target": self._to_target(curves, "clock"),
            "speed_up": first_rounds / own_rounds if own_rounds and first_rounds else None,
            "gap_recovered": self._recovered(contender, terminal),
            **{f"client_loss_{figure}": self._served(contender, figure) for figure in ("mean", "variance", "gap")},
        }

    def _served(self, contender: Contender, figure: str) -> float | None:
        """Mean, variance or gap of clients' losses, mean over the last 5 % of the rounds and seeds, where all say."""
        ends = []
        for one in self.runs[contender.label]:
            begin = _before_the_end(one.metrics[-1]["round"])
            last = [row for row in one.metrics if row["round"] > begin and "client_loss" in row]
            if not last:
                return None
            ends.append(np.mean([row["client_loss"][figure] for row in last]))
        return float(np.mean(ends))

    def _to_target(self, curves: Sequence[Curve], figure: str) -> float | None:
        """Mean rounds, bytes or simulated seconds to the target over seeds, where all seeds reached it."""
        places = [curve.first_at(self.target) for curve in curves]
        if any(place is None for place in places):
            return None
        return float(np.mean([getattr(curve, figure)[place] for curve, place in zip(curves, places, strict=True)]))

    def _recovered(self, contender: Contender, terminal: FloatArray) -> float | None:
        """Share of the gap between the first method and the IID reference that this one closes, means over seeds."""
        reference = next((other for other in self.contenders if other.method == REFERENCE), None)
        first = self.contenders[0]
        if reference is None or contender is first or contender is reference:
            return None
        base = np.array([curve.terminal for curve in self.curves[first.label]])
        ceiling = np.array([curve.terminal for curve in self.curves[reference.label]])
        gap = Estimate.of((ceiling - base).tolist())
        # A gap that may be none at all has no shares.
        if gap.mean <= 0 or (gap.low is not None and gap.low <= 0):
            return None
        return float((terminal - base).mean()) / gap.mean


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
    `covey.federation`), instead of a data set and an environment by name.
    A folder that holds part of the same comparison is gone on with; without `out` it is the first of
    `runs/compare-<methods>`, `…-2`, … that holds no other.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
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
    contenders = contenders_of(plan, plan["given"])
    for contender in contenders:
        _possible(contender.configs[0], federation)
    folder = Path(out) if out is not None else _default_folder(plan)
    _claim(folder, plan)
    return _advance(folder, contenders, federation, on_run, on_round)


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


def resume_comparison(
    folder: Path,
    *,
    federation: Federation | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
) -> Comparison:
    """Go on with a comparison that was stopped."""
    plan = read_plan(folder)
    return _advance(folder, contenders_of(plan, plan["given"]), federation, on_run, on_round)


def contenders_of(plan: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Contender, ...]:
    """The lines of a comparison: methods times the values of every varied setting."""
    require(len(plan["methods"]) >= 1, "There is no method to compare; name at least one.")
    given_to = dict(zip(plan["methods"], _given_to(plan["methods"], base), strict=True))
    contenders = []
    for label, method, varied in _lines(plan):
        aggregator = recipe_of(method).aggregator
        agent = plan.get("agents", {}).get(aggregator)
        own = {**varied, "method": method, **({"aggregator.agent": agent} if agent else {})}
        if plan.get("fairness") and aggregator and "fairness" in aggregators[aggregator].options:
            own["aggregator.fairness"] = True
        configs = tuple(as_config(given_to[method], {**own, "seed": seed}) for seed in plan["seeds"])
        require(
            configs[0].method == method,
            f"The method '{method}' cannot be compared with the parts of '{configs[0].method}', which are given "
            "beside it; leave either out.",
        )
        contenders.append(Contender(label, method, configs))
    labels = [contender.label for contender in contenders]
    require(len(set(labels)) == len(labels), f"The same line is asked for twice: {', '.join(labels)}.")
    return tuple(contenders)


def _lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Label, method and varied settings of every line."""
    keys = list(plan["vary"])
    for method in plan["methods"]:
        for values in itertools.product(*(plan["vary"][key] for key in keys)):
            varied = dict(zip(keys, values, strict=True))
            yield " ".join([method, *(f"{key}={value}" for key, value in varied.items())]), method, varied


def places_of(folder: Path, plan: Mapping[str, Any]) -> list[tuple[str, int, Path]]:
    """Label, seed and run folder of all runs of a comparison; nothing of what they are made of is needed for that."""
    return [(label, seed, place_of(folder, label, seed)) for label, _, _ in _lines(plan) for seed in plan["seeds"]]


def _given_to(methods: Sequence[str], base: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of each method: options of a part that is not named go to the methods whose part has them."""
    given = [dict(base) for _ in methods]
    for section, registry in _PARTS.items():
        name, options = chosen(section, base.get(section))
        parts = [getattr(recipe_of(method), section) for method in methods]
        takes = {part: registry[part].options for part in parts if part is not None}
        # One part for all, or none at all, is refused by itself where it lacks an option.
        if name is not None or not takes or len(set(parts)) == 1:
            continue
        for option in options:
            if not any(option in known for known in takes.values()):
                raise Refusal(" ".join(registry.unknown_option(part, option) for part in takes))
        for own, part in zip(given, parts, strict=True):
            own.pop(section, None)
            kept = {option: value for option, value in options.items() if option in takes.get(part, ())}
            own |= {section: kept} if kept else {}
    return given


def _possible(config: Config, given: Federation | None) -> None:
    """Refuse what no run could be made of (an agent for other clients, an option out of its range) before any is."""
    if config.runtime != "fleet":
        Experiment.of(replace(config, runtime="local", workers=1), given).runtime.close()


def place_of(folder: Path, label: str, seed: int) -> Path:
    """The run folder of one line and seed of a comparison."""
    return folder / _file_name(label) / f"seed-{seed}"


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=+-]+", "-", label)


def _default_folder(plan: dict[str, Any]) -> Path:
    """The first of `runs/compare-<methods>`, `…-2`, `…-3`, … that is free or holds this very comparison."""
    folder = first = Path("runs") / _file_name("-".join(["compare", *plan["methods"]]))
    number = 2
    while folder.exists() and not (is_comparison(folder) and read_plan(folder) == plan):
        folder = first.with_name(f"{first.name}-{number}")
        number += 1
    return folder


def is_comparison(folder: Path) -> bool:
    return (folder / "compare.json").is_file()


def read_plan(folder: Path) -> dict[str, Any]:
    try:
        plan: dict[str, Any] = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
        found = int(plan["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{folder} is not a comparison: its compare.json cannot be read ({error}).") from error
    if found > FORMAT:
        raise Refusal(f"{folder} was made by a newer version of Covey (format {found}; this one reads up to {FORMAT}).")
    return plan


def _claim(folder: Path, plan: dict[str, Any]) -> None:
    """Make the folder of a comparison, or make sure that it holds the same one."""
    if is_comparison(folder):
        if read_plan(folder) != plan:
            raise Refusal(f"The folder {folder} holds another comparison; choose another --out.")
        return
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refusal(f"The output folder {folder} is not empty and holds no comparison; choose another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "compare.json", plan)
    except OSError as error:
        raise Refusal(f"The output folder {folder} cannot be written: {error.strerror or error}.") from error


def _advance(
    folder: Path,
    contenders: tuple[Contender, ...],
    given: Federation | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
) -> Comparison:
    """Run what is missing: in lockstep on the stacked runtime, else one after another."""
    places = [
        (contender.label, config, place_of(folder, contender.label, config.seed))
        for contender in contenders
        for config in contender.configs
    ]
    missing = [(label, config, place) for label, config, place in places if not _finished(place)]
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
                one = resume(place, federation=given, on_round=on_round)
            else:
                one = run(config, federation=given, out=place, on_round=on_round)
            if not one.finished:
                break
    if not all(_finished(place) for _, _, place in places):
        raise Interrupted(folder)
    return Comparison.open(folder, given)


def _finished(place: Path) -> bool:
    return (place / "config.json").is_file() and Run.open(place).finished


def _counted(on_round: OnRound | None) -> Callable[[int, dict[str, object]], None] | None:
    """Progress over the rounds of all runs of a lockstep."""
    done = itertools.count(1)
    return (lambda number, record: on_round({**record, "round": next(done)})) if on_round else None


class Interrupted(Exception):
    """A comparison was stopped before it was complete."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"Stopped. Go on with: covey resume {folder}")
        self.folder = folder
