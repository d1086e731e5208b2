"""Runtimes: where orders are executed."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from covey.config.schema import Config
from covey.core.interfaces import Runtime
from covey.core.runtime_traits import RuntimeTraits, declare_traits
from covey.environment.federated_data import Federation
from covey.errors import Refusal, install
from covey.registries import runtimes
from covey.runtime.local import LocalRuntime
from covey.runtime.stacked.stacked_runtime import StackedRuntime

runtimes.add("local")(LocalRuntime.of)
runtimes.add("stacked")(StackedRuntime.of)
declare_traits("stacked", RuntimeTraits(lockstep=True, uses_device=True))
declare_traits("flower", RuntimeTraits(elsewhere=True))
declare_traits("fleet", RuntimeTraits(live=True, takes_fleet=True, elsewhere=True))


@runtimes.add("flower")
def flower(federation: Federation, module: nn.Module, config: Config) -> Runtime:
    """Flower's simulation engine (Ray): each client is a node of its own; needs the extra `flower`."""
    build: Callable[..., Runtime] = _late("flower", "covey.flower.flower_runtime").FlowerRuntime.of
    return build(federation, module, config)


@runtimes.add("fleet")
def fleet(federation: Federation, module: nn.Module, config: Config, folder: Path | str | None = None) -> Runtime:
    """The sites of a live fleet (`covey fleet`), over TLS; COVEY_FLEET names its folder."""
    build: Callable[..., Runtime] = _late("fleet", "covey.fleet.fleet_runtime").FleetRuntime.of
    return build(federation, module, config, folder)


def _late(name: str, module: str) -> Any:
    """Import a transport on demand: it needs Flower, and is in a layer above this one."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Refusal(f"The runtime '{name}' needs Flower: {install('flower')} ({error}).") from error


__all__ = ["LocalRuntime", "StackedRuntime"]
