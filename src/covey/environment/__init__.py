"""Environments: who holds what. Each deals a data set's training samples to clients.

An environment is a pure function of (labels, classes, number of clients, generator) and its own
parameters; it returns the samples of each client, and what it knows about each client's skew.
"""

from covey.config.sections import Alterations
from covey.environment.alterations import Altered, alter_images, alter_labels, assign
from covey.environment.clusters import clustered_equal, clustered_unequal
from covey.environment.dirichlet import dirichlet, dirichlet_layers
from covey.environment.dominance import few_class, inverse_pareto, uniform, uniform_observed
from covey.environment.iid import iid
from covey.environment.natural import natural
from covey.environment.pareto import pareto
from covey.environment.partition import Deal, Environment, deal, deal_regardless_of_class
from covey.environment.shards import shards_equal, shards_unequal

__all__ = [
    "Alterations",
    "Altered",
    "Deal",
    "Environment",
    "alter_images",
    "alter_labels",
    "assign",
    "clustered_equal",
    "clustered_unequal",
    "deal",
    "deal_regardless_of_class",
    "dirichlet",
    "dirichlet_layers",
    "few_class",
    "iid",
    "inverse_pareto",
    "natural",
    "pareto",
    "shards_equal",
    "shards_unequal",
    "uniform",
    "uniform_observed",
]
