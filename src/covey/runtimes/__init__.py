"""Runtimes: what executes orders."""

from collections.abc import Callable

from covey.registry import Registry
from covey.roles import Runtime
from covey.runtimes.local import LocalRuntime

runtimes: Registry[Callable[..., Runtime]] = Registry("runtime", "runtimes")
"""`build(federation, module, seed=..., workers=..., precision=...) -> Runtime`"""
runtimes.add("local")(LocalRuntime)

__all__ = ["LocalRuntime", "Runtime", "runtimes"]
