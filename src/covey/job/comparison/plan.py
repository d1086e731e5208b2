"""The plan of a comparison: its variants, their settings, and the folders of their runs."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from covey.config.recipe import recipe_of
from covey.config.runtime_choice import AUTO, STORED, runtime_here
from covey.config.schema import Config
from covey.config.values import nested, own_names
from covey.core.checkpoint import FORMAT
from covey.errors import require
from covey.job.comparison.whose_settings import given_to
from covey.job.job_folder import read_job_file
from covey.job.settings import as_config, expand
from covey.registries import aggregators


class _PlanFile(TypedDict):
    """What `compare.json` holds."""

    format: int
    methods: list[str]
    seeds: list[int]
    vary: dict[str, list[Any]]
    given: dict[str, Any]
    target: float | None
    agents: NotRequired[dict[str, str]]
    fairness: NotRequired[bool]
    unvaried: NotRequired[dict[str, list[str]]]
    """Method → varied settings that it has no use for."""


@dataclass(frozen=True)
class Variant:
    """A method with its varied settings: a row of the comparison, with a configuration per seed."""

    label: str
    method: str
    configs: tuple[Config, ...]
    varied: Mapping[str, Any] = field(default_factory=dict)
    """The settings of this row that the comparison varies."""


def variants_of(plan: Mapping[str, Any]) -> tuple[Variant, ...]:
    """Return the variants of a comparison: methods times the values of every varied setting."""
    require(len(plan["methods"]) >= 1, "There is no method to compare; name at least one.")
    base = _with_runtime(plan["given"])
    given = dict(zip(plan["methods"], given_to(plan["methods"], base, plan["vary"]), strict=True))
    variants = []
    for label, method, varied in lines_of(plan):
        aggregator = recipe_of(method).aggregator
        agent = plan.get("agents", {}).get(aggregator)
        own = {**varied, "method": method, **({"aggregator.agent": agent} if agent else {})}
        if plan.get("fairness") and aggregator and "fairness" in aggregators[aggregator].options:
            own["aggregator.fairness"] = True
        earlier = int(plan["format"]) < FORMAT
        configs = tuple(as_config(given[method], {**own, "seed": seed}, earlier=earlier) for seed in plan["seeds"])
        require(
            configs[0].method == method,
            f"The method '{method}' cannot be compared with the parts of '{configs[0].method}', which are given "
            "beside it; leave either out.",
        )
        variants.append(Variant(label, method, configs, varied))
    labels = [variant.label for variant in variants]
    require(len(set(labels)) == len(labels), f"The same variant is asked for twice: {', '.join(labels)}.")
    return tuple(variants)


def runtime_settled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a comparison with the runtime that this machine chooses, which its resume uses too.

    The local one is not written: a plan without a runtime means it, as all did before there was a choice.
    """
    if given.get("runtime") not in (None, AUTO):
        return dict(given)
    settled = {**given, "runtime": runtime_here(AUTO, str(given.get("device") or "auto"))}
    if settled["runtime"] == STORED:
        del settled["runtime"]
    return settled


def _with_runtime(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's settings with its runtime; in plans that name none, a GPU that was asked for had no effect."""
    if given.get("runtime") is not None:
        return dict(given)
    unheard = given.get("device") == "cuda"
    return {"runtime": STORED, **given, **({"device": "auto"} if unheard else {})}


def own_names_of(plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of code of somebody's own in a plan, by their places."""
    found = own_names(expand(plan["given"]))
    for key, values in plan["vary"].items():
        for number, value in enumerate(values):
            varied = own_names(nested(key, value))
            found |= {f"{where} (value {number + 1})": name for where, name in varied.items()}
    for method in plan["methods"]:
        found |= {f"{where} of {method}": name for where, name in own_names({"method": method}).items()}
    return found


def lines_of(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield label, method and varied settings of every variant."""
    for method in plan["methods"]:
        keys = [key for key in plan["vary"] if key not in plan.get("unvaried", {}).get(method, ())]
        for values in itertools.product(*(plan["vary"][key] for key in keys)):
            varied = dict(zip(keys, values, strict=True))
            yield " ".join([method, *(f"{key}={value}" for key, value in varied.items())]), method, varied


def places_of(folder: Path, plan: Mapping[str, Any]) -> list[tuple[str, int, Path]]:
    """Return label, seed and run folder of all runs of a comparison. Their parts need not be installed."""
    return [(label, seed, place_of(folder, label, seed)) for label, _, _ in lines_of(plan) for seed in plan["seeds"]]


def place_of(folder: Path, label: str, seed: int) -> Path:
    """Return the run folder of one variant and seed."""
    return folder / file_name(label) / f"seed-{seed}"


def file_name(label: str) -> str:
    """Return a label as a name in the comparison's folder; `..` would lead out of it."""
    name = re.sub(r"[^A-Za-z0-9.=+-]+", "-", label)
    return name if name.strip(".") else "-"


def is_comparison(folder: Path) -> bool:
    """True if a folder holds a comparison."""
    return (folder / "compare.json").is_file()


def read_plan(folder: Path) -> dict[str, Any]:
    """Read the plan of a comparison from its folder."""
    plan = read_job_file(folder / "compare.json", "a comparison", _PlanFile)
    require(bool(plan["methods"] and plan["seeds"]), f"{folder} is not a comparison: it has no methods, or no seeds.")
    require(
        all(plan["vary"].values()) and all(name for name in plan["methods"]),
        f"{folder} is not a comparison: a method without a name, or a setting that varies over nothing.",
    )
    return plan
