"""An experiment: everything that a configuration describes, built and ready to run."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.func import vmap

from covey.arrays import FloatArray
from covey.client.learner import Learner
from covey.config.recipe import recipe_of
from covey.config.runtime_choice import ON_GPU, gpu_here
from covey.config.schema import Config
from covey.core.build import build_federation, build_method, build_module
from covey.core.interfaces import Method, Runtime
from covey.core.model_constants import read_constants
from covey.core.one_model import OneModel
from covey.core.runtime_traits import traits_of
from covey.data.dataset import Dataset, Samples
from covey.environment.federated_data import Federation
from covey.environment.truth import Truth
from covey.errors import Refusal, require
from covey.job.settings import as_configured
from covey.model.factory import copied
from covey.model.layout import Layout
from covey.registries import runtimes
from covey.registry import is_held
from covey.runtime.attack import UnderAttack
from covey.runtime.devices import OnDevices
from covey.runtime.stacked.model_check import why_not_stacked
from covey.runtime.stacked.trainer_check import check_trainer


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


def _on_a_fitting_runtime(config: Config, module: nn.Module, dataset: Dataset) -> Config:
    """Return the configuration, on a runtime that can train the model.

    The local one takes the place of a GPU that was chosen by the machine, with a warning; one that was asked for is
    refused.
    """
    by_machine = config.device == "auto"
    if config.runtime != ON_GPU or (by_machine and not gpu_here()):
        return config
    reason = why_not_stacked(module, dataset).rstrip(".")
    require(
        not reason or by_machine,
        f"The runtime '{ON_GPU}', which trains many clients at once, cannot train this model ({reason}): use the "
        "runtime 'local'.",
    )
    if reason:
        warnings.warn(
            f"A GPU, which trains many clients at once, cannot train this model ({reason}): the local runtime trains "
            "it on the CPU.",
            stacklevel=2,
        )
        return replace(config, runtime="local")
    return config


def gpu_sentence(config: Config) -> str:
    """Return the sentence that a run on a GPU begins with; "" for one elsewhere."""
    if not traits_of(config.runtime).uses_device or config.device == "cpu" or not gpu_here():
        return ""
    return f"Trains on the GPU ({config.runtime} runtime); to use the CPU: --runtime local."


def _require_reachable(config: Config) -> None:
    """Refuse Python objects that clients would have to have, where clients run in other programs."""
    if traits_of(config.runtime).elsewhere:
        for section, choice in (("model", config.model), ("trainer", config.trainer)):
            require(
                choice is None or not is_held(choice.name),
                f"The {section} was given as a Python object, and clients of the runtime '{config.runtime}' run in "
                f"other programs: put it into a module that they can import, and name it as package.module:Name.",
            )


def _try_trainer(method: Method, module: nn.Module, federation: Federation) -> None:
    """Refuse a trainer that does not do what it must, whatever the runtime."""
    if isinstance(method, OneModel) and method.trainer is not None:
        dataset = federation.dataset
        learner = Learner(copied(module), dataset)
        check_trainer(method.trainer.ref, learner, Samples(dataset.x[:2], dataset.y[:2]))


def _try_loss(module: nn.Module, dataset: Dataset) -> None:
    """Refuse a model whose outputs do not fit the labels, and a loss that many clients at once cannot compute."""
    task = dataset.learns
    if task.has_classes:
        return
    learner = Learner(copied(module), dataset)
    x, y = learner.inputs(dataset.x[:2]), dataset.y[:2]
    with torch.no_grad():
        learner.module.eval()
        output = learner.module(x).to(learner.dtype)
        try:
            task.loss(output, y, "mean")
        except Refusal:
            raise
        except Exception as error:
            # Code of the user's own, which raises anything.
            reason, kind = str(error).strip().partition("\n")[0], str(y.dtype).removeprefix("torch.")
            raise Refusal(
                f"The loss of the task '{task.name}' fails on outputs {list(output.shape)} and labels {list(y.shape)} "
                f"({kind}): {type(error).__name__}: {reason:.200}."
            ) from error
    try:
        vmap(task.loss)(output.expand(2, *output.shape), y.expand(2, *y.shape))
    except RuntimeError as error:
        raise Refusal(
            f"The loss of the task '{task.name}' cannot be computed for many clients at once, as it branches on a "
            f"tensor's value or changes a tensor in place: use torch.where ({str(error).splitlines()[0]:.200})."
        ) from error


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
        folder: Path | None = None,
    ) -> "Experiment":
        """Build everything. What is impossible is refused here, before anything is written.

        `resumed` says that the method's state will be loaded. `fleet` is the folder of the live fleet that a
        configuration with the runtime "fleet" runs on; by default COVEY_FLEET names it. `folder` is the run's, if it
        has one already, which holds what its model has beside trained parameters.
        """
        config.require_trusted("method")
        _require_reachable(config)
        recipe = recipe_of(config.method)
        split = build_federation(config) if given is None else as_configured(given, config)
        federation = recipe.reshape(split, config.seed) if recipe.reshape else split
        module = build_module(config, federation.dataset)
        if folder is not None:
            read_constants(folder, config.model.name, module)
        _try_loss(module, federation.dataset)
        config = _on_a_fitting_runtime(config, module, federation.dataset)
        runtime = build_runtime(federation, module, config, fleet)
        try:
            dataset = federation.dataset
            facts = federation.clients, dataset.class_count
            method = build_method(config, module, *facts, resumed=resumed, task=dataset.learns.name)
            _try_trainer(method, module, federation)
            runtime.attach(method)
        except BaseException:
            runtime.close()
            raise
        # Accuracy on own mixes concerns the original clients; a cohort's skew concerns those that took part.
        truth = split.truth.with_skew(federation.truth.skew)
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
