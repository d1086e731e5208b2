"""An experiment: everything that a configuration describes, built and ready to run."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from covey.arrays import FloatArray
from covey.config.recipe import recipe_of
from covey.config.schema import Config
from covey.core.build import build_federation, build_method, build_module
from covey.core.interfaces import Method, Runtime
from covey.core.runtime_traits import traits_of
from covey.environment.federated_data import Federation, Truth
from covey.job.settings import as_configured
from covey.model.layout import Layout
from covey.registries import runtimes
from covey.runtime.attack import UnderAttack
from covey.runtime.devices import OnDevices


def build_runtime(
    federation: Federation, module: nn.Module, config: Config, fleet: Path | str | None = None
) -> Runtime:
    """Return the runtime of a configuration, with its devices; `fleet` is the folder of a live fleet."""
    build = runtimes[config.runtime].part
    more = (fleet,) if fleet is not None and traits_of(config.runtime).takes_fleet else ()
    runtime = build(federation, module, config, *more)
    if config.attack:
        runtime = UnderAttack(runtime, config.attack, federation.clients, config.seed)
    return OnDevices(runtime, config.devices, federation.sizes, config.seed)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A configuration built: federation, model, method and runtime, ready to run."""

    config: Config
    federation: Federation
    truth: Truth
    method: Method
    runtime: Runtime
    module: nn.Module

    @classmethod
    def of(
        cls,
        config: Config,
        given: Federation | None = None,
        *,
        resumed: bool = False,
        fleet: Path | str | None = None,
    ) -> "Experiment":
        """Build everything. What is impossible is refused here, before anything is written.

        `resumed` says that the method's state will be loaded. `fleet` is the folder of the live fleet that a
        configuration with the runtime "fleet" runs on; by default COVEY_FLEET names it.
        """
        recipe = recipe_of(config.method)
        split = build_federation(config) if given is None else as_configured(given, config)
        federation = recipe.reshape(split, config.seed) if recipe.reshape else split
        module = build_module(config, federation.dataset)
        runtime = build_runtime(federation, module, config, fleet)
        try:
            method = build_method(config, module, federation.clients, federation.dataset.classes, resumed=resumed)
            runtime.attach(method)
        except BaseException:
            runtime.close()
            raise
        # Accuracy on own mixes concerns the original clients; a cohort's skew concerns those that took part.
        truth = Truth(split.truth.shares, federation.truth.skew)
        return cls(config, federation, truth, method, runtime, module)

    @property
    def module_size(self) -> int:
        """Number of values in the model's state."""
        return Layout.of(self.module).size

    @property
    def known(self) -> bool:
        """True if the clients' data is known here; sites of a fleet may have data of their own."""
        return self.federation.known and self.runtime.holdings_known

    @property
    def known_shares(self) -> FloatArray | None:
        """The clients' true class shares `[clients, classes]` where they are known, else None. For evaluation only."""
        return self.truth.shares if self.known else None


def dry_run(config: Config, given: Federation | None = None) -> Federation:
    """Build a run without starting it, on the local runtime, so that errors show early; return its federation."""
    experiment = Experiment.of(replace(config, runtime="local", workers=1), given)
    experiment.runtime.close()
    return experiment.federation
