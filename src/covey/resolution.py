"""From what a user gave to a complete configuration, or to the sentence that says what is wrong with it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.aggregation import aggregators
from covey.config import (
    Choice,
    Config,
    Devices,
    Local,
    chosen,
    known_keys,
    plain_fields,
    section_values,
    unknown_key,
)
from covey.data import datasets
from covey.data.dataset import load_dataset
from covey.environments import environments
from covey.environments.alterations import Alterations
from covey.errors import Refusal, require
from covey.federations import NATURAL, natural_clients
from covey.manymodel import manymodels
from covey.methods import Recipe, methods, recipe_of
from covey.models import models
from covey.registry import Registry, coerce
from covey.runtimes import runtimes
from covey.selection import selectors


def resolve(given: Mapping[str, Any], *, stored: bool = False) -> Config:
    """Check every key, name, option and bound of `given`, and fill in what it leaves open.

    What was `stored` is complete, and may name selectors, aggregators and methods of somebody's own that are not here.
    """
    for key in given:
        if key not in known_keys():
            raise Refusal(unknown_key(key, known_keys()))
    method, recipe = _recipe(given, stored)
    dataset = _choice(datasets, given.get("dataset"), "digits")
    environment = _choice(environments, given.get("environment"), "uniform")
    plain = {
        name: coerce(given[name], hint, name) for name, hint in plain_fields().items() if given.get(name) is not None
    }
    if "data_dir" not in plain and os.environ.get("COVEY_DATA"):
        plain["data_dir"] = os.environ["COVEY_DATA"]
    if environment.name == NATURAL and "clients" not in plain:
        folder = Path(plain["data_dir"]) if "data_dir" in plain else None
        plain["clients"] = natural_clients(load_dataset(dataset.name, folder, dict(dataset.options)))
    config = Config(
        method=method,
        dataset=dataset,
        environment=environment,
        model=_choice(models, given.get("model"), "mlp"),
        selector=_choice(selectors, given.get("selector"), recipe.selector, stored),
        aggregator=_choice(aggregators, given.get("aggregator"), recipe.aggregator, stored, recipe.weighing),
        many=_many(method, recipe, given.get("many")),
        local=Local(**{**recipe.local, **section_values("local", given.get("local") or {})}),
        altered=Alterations(**section_values("altered", given.get("altered") or {})),
        devices=Devices(**section_values("devices", given.get("devices") or {})),
        **{**plain, "cohort": _cohort(plain)},
    )
    require(config.clients >= 1, f"clients must be at least 1, not {config.clients}.")
    require(config.rounds >= 1, f"rounds must be at least 1, not {config.rounds}.")
    require(0 <= config.seed < 2**63, f"seed must be a whole number from 0 to 2^63 - 1, not {config.seed}.")
    require(config.evaluate_every >= 1, f"evaluate_every must be at least 1, not {config.evaluate_every}.")
    require(config.workers >= 0, f"workers must be at least 1, or 0 for one per core, not {config.workers}.")
    runtimes[config.runtime]
    _ = config.memory_bytes
    return config


def _recipe(given: Mapping[str, Any], stored: bool) -> tuple[str, Recipe]:
    """The method's name and recipe; a selector or aggregator named without a method makes one of its own."""
    selector, _ = chosen("selector", given.get("selector"))
    aggregator, _ = chosen("aggregator", given.get("aggregator"))
    name = given.get("method")
    if name is None:
        name = f"{selector or 'uniform'}+{aggregator or 'average'}" if selector or aggregator else "fedavg"
    if not isinstance(name, str):
        raise Refusal(f"method must be a name, not {name!r}.")
    if name not in methods.names() and "+" in name and selector and aggregator:
        name = f"{selector}+{aggregator}"
    if stored and name not in methods.names() and selector and aggregator:
        return name, Recipe("A method that is not here.", selector=selector, aggregator=aggregator)
    recipe = recipe_of(name)
    for section, given_name, own in (
        ("selector", selector, recipe.selector),
        ("aggregator", aggregator, recipe.aggregator),
    ):
        if given.get(section) is not None and own is None:
            raise Refusal(f"The method '{name}' has no {section} to choose or to set options of.")
        if given_name is not None and given_name != own:
            raise Refusal(
                f"The method '{name}' has the {section} '{own}'; to combine other parts, "
                "give --selector and --aggregator and leave --method out."
            )
    return name, recipe


def _many(method: str, recipe: Recipe, given: Any) -> Choice | None:
    """The method with many models that the recipe stands for, with its options."""
    name, _ = chosen(manymodels.section, given)
    if given is not None and recipe.many is None:
        raise Refusal(f"The method '{method}' keeps one model; there is nothing to set under many.")
    if name is not None and name != recipe.many:
        raise Refusal(f"The method '{method}' stands for '{recipe.many}' under many, not for '{name}'.")
    choice: Choice | None = _choice(manymodels, given, recipe.many)
    return choice


def _choice(
    registry: Registry[Any],
    given: Any,
    default: str | None,
    stored: bool = False,
    prescribed: Mapping[str, Any] | None = None,
) -> Any:
    """The part that was chosen, or the default one, with all of its options; None where there is no such part.

    `prescribed` are the default part's options where they differ from what its author has set.
    """
    name, options = chosen(registry.section, given)
    name = name or default
    if name is None:
        return None
    options = {**(prescribed or {}), **options} if name == default else options
    try:
        return Choice(name, registry.options(name, options))
    except Refusal:
        # It is gone, or has other options by now; whoever goes on with the run is told so.
        if stored:
            return Choice(name, options)
        raise


def _cohort(plain: Mapping[str, Any]) -> int:
    """The cohort as a count: given so, or as a fraction of the clients, or a tenth of them."""
    clients: int = plain.get("clients", Config.clients)
    cohort: int | float = plain.get("cohort", 0.1)
    if isinstance(cohort, float):
        require(
            0 < cohort <= 1,
            f"cohort {cohort:g} is neither a whole number of clients nor a fraction in (0, 1].",
        )
        return max(1, round(cohort * clients))
    require(
        1 <= cohort <= clients,
        f"cohort must be from 1 to the number of clients, {clients}, not {cohort}.",
    )
    return cohort
