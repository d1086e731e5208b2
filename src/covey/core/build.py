"""Builds the federation, the model and the method of a configuration."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from covey.config.recipe import recipe_of
from covey.config.schema import NATURAL, Config
from covey.core.interfaces import Method, Setting
from covey.core.one_model import OneModel
from covey.core.runtime_traits import traits_of
from covey.data.dataset import Dataset, load_dataset
from covey.environment.alterations import assign
from covey.environment.federated_data import Federation
from covey.environment.natural import natural, natural_clients
from covey.environment.partition import client_order, split_samples
from covey.errors import require
from covey.model.factory import build_model
from covey.model.layout import Layout
from covey.randomness import generator
from covey.registries import aggregators, manymodels, selectors


def dataset_of(config: Config) -> Dataset:
    """Load the data set of a configuration."""
    config.require_trusted("dataset")
    folder = Path(config.data_dir) if config.data_dir else None
    return load_dataset(config.dataset.name, folder, dict(config.dataset.options))


def build_federation(config: Config) -> Federation:
    """Build the federation that a configuration describes."""
    config.require_trusted("dataset", "environment")
    dataset = dataset_of(config)
    if config.environment.name == NATURAL:
        natural_clients(dataset)
        assert dataset.groups is not None
        split, names = natural(dataset.groups.numpy(), config.clients), dataset.group_names[: config.clients]
    else:
        rng = generator(config.seed, "environment")
        options = dict(config.environment.options)
        split = split_samples(config.environment.name, options, dataset.y.numpy(), dataset.classes, config.clients, rng)
        names = ()
    order = client_order(config.clients, config.seed, config.numbering)
    parts = [torch.from_numpy(split.parts[place]) for place in order]
    skew = None if split.skew is None else split.skew[order]
    names = tuple(names[place] for place in order) if names else ()
    return altered_federation(Federation(dataset, parts, split.shared, skew, names), config)


def altered_federation(federation: Federation, config: Config) -> Federation:
    """Return the federation with a configuration's alterations."""
    if not config.altered:
        return federation
    drawn = assign(config.altered, federation.clients, generator(config.seed, "alterations"))
    return replace(federation, alterations=config.altered, altered=drawn, seed=config.seed)


def method_of(config: Config, setting: Setting, model: Tensor) -> Method:
    """Build the method of a configuration; it may refuse the setting."""
    config.require_trusted("selector", "aggregator", "many")
    if config.many is not None:
        made: Method = manymodels[config.many.name].part(setting, model, **config.many.options)
        return made
    assert config.selector is not None
    assert config.aggregator is not None
    selector = selectors.make(config.selector.name, config.selector.options)
    aggregator = aggregators.make(config.aggregator.name, config.aggregator.options)
    resident = recipe_of(config.method).resident
    return OneModel(setting, model, selector, aggregator, resident=resident, limits=config.guard)


def build_module(config: Config, dataset: Dataset) -> nn.Module:
    """Build the model of a configuration for a data set."""
    config.require_trusted("model")
    require(
        len(dataset.shape) == 3 or not (config.local.crop or config.local.flip),
        f"local.crop and local.flip are for images, and samples of '{dataset.name}' have the shape "
        f"{' x '.join(map(str, dataset.shape))}.",
    )
    return build_model(config.model.name, dict(config.model.options), dataset.shape, dataset.classes, config.seed)


def initial_model(config: Config, module: nn.Module) -> Tensor:
    """Return the state `[d]` that a run begins with, in the run's precision."""
    return Layout.of(module).read(module).to(torch.float64 if config.precision == "fp64" else torch.float32)


def build_method(config: Config, module: nn.Module, clients: int, classes: int, *, resumed: bool = False) -> Method:
    """Build the method of a configuration for a module; `resumed` says that its state will be loaded."""
    setting = setting_of(config, clients, classes, Layout.of(module), resumed=resumed)
    return method_of(config, setting, initial_model(config, module))


def setting_of(
    config: Config, clients: int, classes: int, layout: Layout, *, resumed: bool = False, live: bool | None = None
) -> Setting:
    """Return the facts about a run that its method may know.

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
        live=live,
    )
