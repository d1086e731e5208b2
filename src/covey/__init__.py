"""Covey: federated learning for clients whose data differ."""

from covey.analytics import Analysis, analyze
from covey.comparing import compare
from covey.comparison import Comparison
from covey.config import Config, Local
from covey.data import Dataset, datasets
from covey.environments import Deal, environments
from covey.errors import Refusal
from covey.experiment import Experiment, Run, resume, run
from covey.federations import Federation
from covey.manymodel import manymodels
from covey.messages import Replies
from covey.methods import Recipe, methods
from covey.models import models
from covey.own import federation
from covey.roles import Aggregator, Selector, Setting, State, aggregators, selectors
from covey.tailoring import OnDemand, ondemand

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Analysis",
    "Comparison",
    "Config",
    "Dataset",
    "Deal",
    "Experiment",
    "Federation",
    "Local",
    "OnDemand",
    "Recipe",
    "Refusal",
    "Replies",
    "Run",
    "Selector",
    "Setting",
    "State",
    "aggregators",
    "analyze",
    "compare",
    "datasets",
    "environments",
    "federation",
    "manymodels",
    "methods",
    "models",
    "ondemand",
    "resume",
    "run",
    "selectors",
]
