"""Covey: federated learning for clients whose data differ.

Names are imported when they are first used, so that `import covey` and `covey --help` cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.arrays import State
    from covey.client.learner import Learner
    from covey.config.recipe import Recipe
    from covey.config.schema import Config
    from covey.config.sections import Local
    from covey.core.interfaces import Aggregator, CohortProbe, JointWork, Method, Probe, Runtime, Selector, Setting
    from covey.core.messages import Fault, Gate, Order, Reply
    from covey.core.replies import Replies
    from covey.core.scores import Scores
    from covey.data.dataset import Dataset, Samples
    from covey.environment.federated_data import Federation
    from covey.environment.from_arrays import federation
    from covey.environment.partition import Deal
    from covey.errors import Refusal
    from covey.job.analysis import Analysis, analyze
    from covey.job.comparison.execution import compare
    from covey.job.comparison.statistics import Comparison
    from covey.job.experiment import Experiment
    from covey.job.federation_summary import describe
    from covey.job.on_demand import OnDemand, ondemand
    from covey.job.runs import Run, resume, run
    from covey.model.layout import Layout
    from covey.page.run_report import report
    from covey.registries import (
        aggregators,
        datasets,
        environments,
        manymodels,
        methods,
        models,
        probes,
        runtimes,
        selectors,
    )

__version__ = "0.1.0"

_HOMES = {
    "covey.arrays": ("State",),
    "covey.config.recipe": ("Recipe",),
    "covey.config.schema": ("Config",),
    "covey.config.sections": ("Local",),
    "covey.core.interfaces": (
        "Aggregator",
        "CohortProbe",
        "JointWork",
        "Method",
        "Probe",
        "Runtime",
        "Selector",
        "Setting",
    ),
    "covey.client.learner": ("Learner",),
    "covey.core.messages": ("Fault", "Gate", "Order", "Reply"),
    "covey.core.replies": ("Replies",),
    "covey.core.scores": ("Scores",),
    "covey.data.dataset": ("Dataset", "Samples"),
    "covey.environment.federated_data": ("Federation",),
    "covey.environment.from_arrays": ("federation",),
    "covey.environment.partition": ("Deal",),
    "covey.errors": ("Refusal",),
    "covey.job.analysis": ("Analysis", "analyze"),
    "covey.job.comparison.execution": ("compare",),
    "covey.job.comparison.statistics": ("Comparison",),
    "covey.job.experiment": ("Experiment",),
    "covey.job.federation_summary": ("describe",),
    "covey.job.on_demand": ("OnDemand", "ondemand"),
    "covey.job.runs": ("Run", "resume", "run"),
    "covey.model.layout": ("Layout",),
    "covey.page.run_report": ("report",),
    "covey.registries": (
        "aggregators",
        "datasets",
        "environments",
        "manymodels",
        "methods",
        "models",
        "probes",
        "runtimes",
        "selectors",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'covey' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


__all__ = [
    "Aggregator",
    "Analysis",
    "CohortProbe",
    "Comparison",
    "Config",
    "Dataset",
    "Deal",
    "Experiment",
    "Fault",
    "Federation",
    "Gate",
    "JointWork",
    "Layout",
    "Learner",
    "Local",
    "Method",
    "OnDemand",
    "Order",
    "Probe",
    "Recipe",
    "Refusal",
    "Replies",
    "Reply",
    "Run",
    "Runtime",
    "Samples",
    "Scores",
    "Selector",
    "Setting",
    "State",
    "aggregators",
    "analyze",
    "compare",
    "datasets",
    "describe",
    "environments",
    "federation",
    "manymodels",
    "methods",
    "models",
    "ondemand",
    "probes",
    "report",
    "resume",
    "run",
    "runtimes",
    "selectors",
]
