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
    from covey.core.trainer import MODEL, Batch, LocalClient, Net, Output, Trainer, Values, answers
    from covey.data.dataset import Dataset, Samples
    from covey.data.inspection import inspect
    from covey.environment.federated_data import Federation
    from covey.environment.from_arrays import federation
    from covey.environment.partition import Deal
    from covey.errors import Refusal
    from covey.job.analysis import Analysis, analyze
    from covey.job.comparison.compared_runs import Comparison
    from covey.job.comparison.execution import compare
    from covey.job.experiment import Experiment
    from covey.job.federation_summary import describe
    from covey.job.on_demand import OnDemand, ondemand
    from covey.job.runs import Run, resume, run
    from covey.model.layout import Layout
    from covey.model.trees import Tree, map_tree
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
        trainers,
    )
    from covey.serve.service_client import Client

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
    "covey.core.trainer": ("MODEL", "Batch", "LocalClient", "Net", "Output", "Trainer", "Values", "answers"),
    "covey.data.dataset": ("Dataset", "Samples"),
    "covey.data.inspection": ("inspect",),
    "covey.environment.federated_data": ("Federation",),
    "covey.environment.from_arrays": ("federation",),
    "covey.environment.partition": ("Deal",),
    "covey.errors": ("Refusal",),
    "covey.job.analysis": ("Analysis", "analyze"),
    "covey.job.comparison.execution": ("compare",),
    "covey.job.comparison.compared_runs": ("Comparison",),
    "covey.job.experiment": ("Experiment",),
    "covey.job.federation_summary": ("describe",),
    "covey.job.on_demand": ("OnDemand", "ondemand"),
    "covey.job.runs": ("Run", "resume", "run"),
    "covey.model.layout": ("Layout",),
    "covey.model.trees": ("Tree", "map_tree"),
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
        "trainers",
    ),
    "covey.serve.service_client": ("Client",),
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
    "MODEL",
    "Aggregator",
    "Analysis",
    "Batch",
    "Client",
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
    "LocalClient",
    "Method",
    "Net",
    "OnDemand",
    "Order",
    "Output",
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
    "Trainer",
    "Tree",
    "Values",
    "aggregators",
    "analyze",
    "answers",
    "compare",
    "datasets",
    "describe",
    "environments",
    "federation",
    "inspect",
    "manymodels",
    "map_tree",
    "methods",
    "models",
    "ondemand",
    "probes",
    "report",
    "resume",
    "run",
    "runtimes",
    "selectors",
    "trainers",
]
