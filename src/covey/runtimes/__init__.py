"""Runtimes: what executes orders."""

from collections.abc import Callable

from torch import nn

from covey.config import Config
from covey.errors import Refusal
from covey.federations import Federation
from covey.registry import Registry
from covey.roles import Runtime
from covey.runtimes.local import LocalRuntime
from covey.runtimes.stacked import StackedRuntime

runtimes: Registry[Callable[..., Runtime]] = Registry("runtime", "runtimes")
"""`build(federation, module, config) -> Runtime`"""
runtimes.add("local")(LocalRuntime.of)
runtimes.add("stacked")(StackedRuntime.of)


@runtimes.add("flower")
def flower(federation: Federation, module: nn.Module, config: Config) -> Runtime:
    """Flower's simulation engine (Ray): each client is a node of its own; needs `pip install covey[flower]`."""
    try:
        from covey.runtimes.flower import FlowerRuntime
    except ImportError as error:
        raise Refusal(f"The runtime 'flower' needs Flower: pip install 'covey[flower]' ({error}).") from error
    return FlowerRuntime.of(federation, module, config)


@runtimes.add("fleet")
def fleet(federation: Federation, module: nn.Module, config: Config) -> Runtime:
    """The sites of a live fleet (`covey fleet`), over TLS; COVEY_FLEET names its folder."""
    try:
        from covey.fleet.runtime import FleetRuntime
    except ImportError as error:
        raise Refusal(f"The runtime 'fleet' needs Flower: pip install 'covey[flower]' ({error}).") from error
    return FleetRuntime.of(federation, module, config)


__all__ = ["LocalRuntime", "Runtime", "StackedRuntime", "runtimes"]
