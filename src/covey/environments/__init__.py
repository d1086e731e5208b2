"""Environments: who holds what. Each deals a data set's training samples to clients.

An environment is a pure function of (labels, classes, number of clients, generator) and its own
parameters; it returns the samples of each client, and what it knows about each client's skew.
"""

from covey.environments.dealing import (
    Deal,
    Environment,
    FloatArray,
    IntArray,
    deal,
    deal_regardless_of_class,
    environments,
)
from covey.environments.dirichlet import dirichlet
from covey.environments.dominance import uniform
from covey.environments.iid import iid

__all__ = [
    "Deal",
    "Environment",
    "FloatArray",
    "IntArray",
    "deal",
    "deal_regardless_of_class",
    "dirichlet",
    "environments",
    "iid",
    "uniform",
]
