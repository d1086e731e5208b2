"""The registries: every part that a configuration chooses by name.

They are declared here and filled by the packages that hold the parts, so that lower layers can check a configuration
without importing algorithms. A registry imports its packages when it is first read.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from covey.registry import Registry

if TYPE_CHECKING:
    from covey.config.recipe import Recipe
    from covey.core.interfaces import Aggregator, Method, Runtime, Selector
    from covey.core.trainer import Trainer
    from covey.data.dataset import DatasetLoader
    from covey.environment.partition import Environment
    from covey.model.factory import ModelBuilder

datasets: "Registry[DatasetLoader]" = Registry("dataset", "datasets", parts_of_users=True, homes=("covey.data",))
environments: "Registry[Environment]" = Registry(
    "environment", "environments", parts_of_users=True, homes=("covey.environment",)
)
models: "Registry[ModelBuilder]" = Registry("model", "models", parts_of_users=True, homes=("covey.model",))
selectors: "Registry[Callable[..., Selector]]" = Registry(
    "selector", "selectors", parts_of_users=True, homes=("covey.selection",)
)
aggregators: "Registry[Callable[..., Aggregator]]" = Registry(
    "aggregator", "aggregators", parts_of_users=True, homes=("covey.aggregation",)
)
trainers: "Registry[Callable[..., Trainer]]" = Registry(
    "trainer", "trainers", parts_of_users=True, homes=("covey.training",)
)
manymodels: "Registry[Callable[..., Method]]" = Registry(
    "many-model method", "manymodels", parts_of_users=True, section="many", homes=("covey.personalization",)
)
"""`build(setting, model, *, option=default, ...) -> Method`, where `model` `[d]` is the initial one."""
methods: "Registry[Recipe]" = Registry("method", "methods", homes=("covey.recipes",))
runtimes: "Registry[Callable[..., Runtime]]" = Registry("runtime", "runtimes", homes=("covey.runtime",))
"""`build(federation, module, config) -> Runtime`"""
tasks: "Registry[Callable[..., Any]]" = Registry("task", "tasks", homes=("covey.task",))
probes: "Registry[type[Any]]" = Registry(
    "probe", "probes", homes=("covey.probe", "covey.aggregation", "covey.personalization")
)
"""Dataclasses. Covey's own travel to clients by name, others as package.module:Name; both with their options."""
