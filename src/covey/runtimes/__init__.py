"""Runtimes: what executes orders."""

from collections.abc import Callable

from covey.registry import Registry
from covey.roles import Runtime
from covey.runtimes.local import LocalRuntime
from covey.runtimes.stacked import StackedRuntime

runtimes: Registry[Callable[..., Runtime]] = Registry("runtime", "runtimes")
"""`build(federation, module, config) -> Runtime`"""
runtimes.add("local")(LocalRuntime.of)
runtimes.add("stacked")(StackedRuntime.of)

__all__ = ["LocalRuntime", "Runtime", "StackedRuntime", "runtimes"]
