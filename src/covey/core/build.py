"""Builds the federation, the model and the method of a configuration."""

import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.config.recipe import recipe_of
from covey.config.schema import NATURAL, Config
from covey.core.interfaces import Method, Setting
from covey.core.one_model import OneModel
from covey.core.runtime_traits import traits_of
from covey.core.trainer_state import TrainerChoice
from covey.data.dataset import Dataset, for_task, load_dataset
from covey.data.sample_store import keep_within
from covey.environment.alterations import assign
from covey.environment.client_parts import ClientParts
from covey.environment.federated_data import Federation
from covey.environment.natural import natural, natural_clients, own_tests
from covey.environment.partition import client_order, split_samples
from covey.errors import Refusal, require
from covey.model.factory import are_words, build_model
from covey.model.layout import Layout
from covey.randomness import generator
from covey.registries import aggregators, manymodels, selectors

PLAIN = "sgd"
"""The trainer that every runtime has built in."""


def dataset_of(config: Config) -> Dataset:
    """Load the data set of a configuration."""
    config.require_trusted("dataset", "task")
    folder = Path(config.data_dir) if config.data_dir else None
    found = load_dataset(config.dataset.name, folder, dict(config.dataset.options))
    if found.note and config.task.name == "auto":
        warnings.warn(found.note, stacklevel=2)
    return for_task(found, config.task.as_mapping())


def build_federation(config: Config) -> Federation:
    """Build the federation that a configuration describes."""
    config.require_trusted("dataset", "environment")
    dataset = dataset_of(config)
    tests = None
    if config.environment.name == NATURAL:
        natural_clients(dataset)
        assert dataset.groups is not None
        split, names = natural(dataset.groups.numpy(), config.clients), dataset.group_names[: config.clients]
        tests = own_tests(dataset) if config.environment.options.get("tests") == "own" else None
    else:
        rng = generator(config.seed, "environment")
        options = dict(config.environment.options)
        bins, count, keyed = dataset.bins, dataset.bin_count, config.dealing == "keyed"
        split = split_samples(config.environment.name, options, bins, count, config.clients, rng, keyed=keyed)
        names = ()
    # Blank samples stand in for those of a fleet's sites, which answer under their own numbers.
    order = client_order(config.clients, config.seed, "environment" if dataset.blank else config.numbering)
    parts = ClientParts.of(split.parts, order)
    skew = None if split.skew is None else split.skew[order]
    names = tuple(names[place] for place in order) if names else ()
    own = None if tests is None else [tests[place] for place in order]
    return altered_federation(Federation(dataset, parts, split.shared, skew, names, test_parts=own), config)


def altered_federation(federation: Federation, config: Config) -> Federation:
    """Return the federation with a configuration's alterations, its samples in memory where they fit."""
    keep_within((federation.dataset.x, federation.dataset.test_x), config.host_memory_bytes)
    if not config.altered:
        return federation
    if config.altered.poison or config.altered.noise:
        task = federation.dataset.learns
        # A task that knows no wrong labels refuses here, before any client needs them.
        _ = None if task.has_classes else task.wrong(federation.dataset.y[:1])
    drawn = assign(config.altered, federation.clients, generator(config.seed, "alterations"))
    return replace(federation, alterations=config.altered, altered=drawn, seed=config.seed)


def method_of(config: Config, setting: Setting, model: Tensor) -> Method:
    """Build the method of a configuration; it may refuse the setting."""
    config.require_trusted("method", "selector", "aggregator", "trainer", "many")
    if config.many is not None:
        return _many_models(config.many.name, dict(config.many.options), setting, model)
    assert config.selector is not None
    assert config.aggregator is not None
    selector = selectors.make(config.selector.name, config.selector.options)
    aggregator = aggregators.make(config.aggregator.name, config.aggregator.options)
    resident = recipe_of(config.method).resident
    return OneModel(
        setting,
        model,
        selector,
        aggregator,
        trainer=trainer_of(config),
        resident=resident,
        limits=config.guard,
        optimizer=config.server,
        averaging=config.averaging,
    )


def _many_models(name: str, options: dict[str, Any], setting: Setting, model: Tensor) -> Method:
    """Make a method that keeps its own models; one of somebody's own has to be a method."""
    build = manymodels[name].part
    try:
        inspect.signature(build).bind(setting, model, **options)
    except (TypeError, ValueError) as error:
        raise Refusal(
            f"The method '{name}' is not called as name(setting, model, *, option=default, ...): {error}. A selector, "
            "an aggregator or a trainer is given as selector=, aggregator= or trainer=."
        ) from error
    if isinstance(build, type):
        _require_method(build, f"The method '{name}'")
    made: Method = build(setting, model, **options)
    _require_method(type(made), f"The method '{name}' made a {type(made).__name__}, which")
    return made


def _require_method(kind: type, what: str) -> None:
    """Refuse a class that lacks what the round loop calls, or has it as `Method` describes it, without content."""
    needed = [name for name in vars(Method) if not name.startswith("_")]
    lacking = [name for name in needed if getattr(kind, name, None) in (None, getattr(Method, name))]
    require(
        not lacking,
        f"{what} has no {' and no '.join(lacking)}: a whole method has what covey.Method lists. A model, a selector, "
        "an aggregator or a trainer is given as model=, selector=, aggregator= or trainer=.",
    )


def trainer_of(config: Config) -> TrainerChoice | None:
    """Return the trainer of a configuration; None where clients train plainly."""
    if config.trainer is None or config.trainer.name == PLAIN:
        return None
    trainer = TrainerChoice(config.trainer.name, config.trainer.options, config.host_memory_bytes)
    require(
        not trainer.part.own_models,
        f"With the trainer '{config.trainer.name}' clients use models of their own, so it goes with no selector and "
        f"aggregator: run the method '{config.trainer.name}'.",
    )
    assert config.aggregator is not None
    needed, given = trainer.part.aggregators, config.aggregator.name
    require(
        not needed or given in needed,
        f"The trainer '{config.trainer.name}' needs the aggregator {' or '.join(map(repr, needed))} for the server's "
        f"step, not '{given}'.",
    )
    return trainer


def build_module(config: Config, dataset: Dataset) -> nn.Module:
    """Build the model of a configuration for a data set."""
    config.require_trusted("model")
    require(
        len(dataset.shape) == 3 or not (config.local.crop or config.local.flip),
        f"local.crop and local.flip are for images, and samples of '{dataset.name}' have the shape "
        f"{' x '.join(map(str, dataset.shape))}.",
    )
    return build_model(
        config.model.name,
        dict(config.model.options),
        dataset.shape,
        dataset.outputs,
        config.seed,
        tokens=are_words(dataset.x),
    )


def initial_model(config: Config, module: nn.Module) -> Tensor:
    """Return the state `[d]` that a run begins with, in the run's precision."""
    return Layout.of(module).read(module).to(torch.float64 if config.precision == "fp64" else torch.float32)


def build_method(
    config: Config,
    module: nn.Module,
    clients: int,
    classes: int,
    *,
    resumed: bool = False,
    task: str = "classification",
) -> Method:
    """Build the method of a configuration for a module; `resumed` says that its state will be loaded."""
    setting = setting_of(config, clients, classes, Layout.of(module), resumed=resumed, task=task)
    return method_of(config, setting, initial_model(config, module))


def setting_of(
    config: Config,
    clients: int,
    classes: int,
    layout: Layout,
    *,
    resumed: bool = False,
    live: bool | None = None,
    task: str = "classification",
) -> Setting:
    """Return the facts about a run that its method may know; `classes` is 0 for a task without.

    `live` says whether clients are real, where the configuration's runtime does not.
    """
    live = traits_of(config.runtime).live if live is None else live
    # Real clients may be away, and a bound on invitations leaves some out: fewer are drawn from.
    all_reachable = not live and config.devices.availability == 1 and not config.guard.invitations
    uniform = config.selector is not None and config.selector.name == "uniform"
    return Setting(
        clients=clients,
        cohort=min(config.cohort, clients),
        rounds=config.rounds,
        classes=classes,
        seed=config.seed,
        shuffled=config.numbering == "shuffled",
        layout=layout,
        work=config.local,
        resumed=resumed,
        uniform_sampling=uniform and all_reachable,
        uniform_selection=uniform,
        live=live,
        task=task,
        limits=config.guard,
    )
