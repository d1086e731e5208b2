"""Environments: who holds what. Each deals a data set's training samples to clients.

An environment is a pure function of (labels, classes, number of clients, generator) and its own
parameters; it returns the samples of each client, and what it knows about each client's skew.
"""

from covey.environments.alterations import Alterations, Altered, alter_images, alter_labels, assign
from covey.environments.clusters import clustered_equal, clustered_unequal
from covey.environments.dealing import (
    Deal,
    Environment,
    FloatArray,
    IntArray,
    deal,
    deal_regardless_of_class,
    environments,
)
from covey.environments.dirichlet import dirichlet, dirichlet_layers
from covey.environments.dominance import few_class, inverse_pareto, uniform, uniform_observed
from covey.environments.iid import iid
from covey.environments.natural import natural
from covey.environments.pareto import pareto
from covey.environments.shards import shards_equal, shards_unequal

__all__ = [
    "Alterations",
    "Altered",
    "Deal",
    "Environment",
    "FloatArray",
    "IntArray",
    "alter_images",
    "alter_labels",
    "assign",
    "clustered_equal",
    "clustered_unequal",
    "deal",
    "deal_regardless_of_class",
    "dirichlet",
    "dirichlet_layers",
    "environments",
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
