"""Environments: how a data set's training samples are split among clients.

An environment is a pure function of the labels, the number of classes and clients, a generator and its own options. It
returns each client's samples, and each client's skew if it controls that. It may form groups in order: clients are then
numbered by the seed (`client_order`), so that a client's number says nothing about it.
"""

from covey.config.sections import Alterations
from covey.environment.alterations import Altered, alter_images, alter_labels, assign
from covey.environment.clusters import clustered_equal, clustered_unequal
from covey.environment.dirichlet import dirichlet, dirichlet_layers
from covey.environment.dominance import few_class, inverse_pareto, uniform, uniform_observed
from covey.environment.iid import iid
from covey.environment.natural import natural
from covey.environment.pareto import pareto
from covey.environment.partition import Deal, Environment, client_order, split_regardless_of_class, split_samples
from covey.environment.shards import shards_equal, shards_unequal

__all__ = [
    "Alterations",
    "Altered",
    "Deal",
    "Environment",
    "alter_images",
    "alter_labels",
    "assign",
    "client_order",
    "clustered_equal",
    "clustered_unequal",
    "dirichlet",
    "dirichlet_layers",
    "few_class",
    "iid",
    "inverse_pareto",
    "natural",
    "pareto",
    "shards_equal",
    "shards_unequal",
    "split_regardless_of_class",
    "split_samples",
    "uniform",
    "uniform_observed",
]
