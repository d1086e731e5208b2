"""Facts about a runtime that are known by its name, before it is built and without its packages."""

from dataclasses import dataclass

from covey.errors import Refusal
from covey.registries import runtimes


@dataclass(frozen=True, kw_only=True)
class RuntimeTraits:
    """Facts about a runtime; the defaults suit a simulation that executes one run at a time."""

    live: bool = False
    """True if clients are real: their time is real time, and models that stay with them are not here."""
    takes_fleet: bool = False
    """True if its builder takes the folder of a live fleet as well."""
    elsewhere: bool = False
    """True if clients run in programs of their own, which have no Python objects of this one."""
    lockstep: bool = False
    """True if several runs are faster in lockstep than one after another."""
    uses_device: bool = False
    """True if it computes on the configuration's `device`; others use the CPU."""


_declared: dict[str, RuntimeTraits] = {}


def declare_traits(name: str, traits: RuntimeTraits) -> None:
    """Declare the traits of the runtime registered as `name`."""
    _declared[name] = traits


def traits_of(name: str) -> RuntimeTraits:
    """Return the traits declared for a runtime; the defaults if there are none, or if it is not installed."""
    try:
        entry = runtimes[name]
    except Refusal:
        # A run made elsewhere can be read without its runtime.
        return RuntimeTraits()
    return _declared.get(entry.name, RuntimeTraits())
