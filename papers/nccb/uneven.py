"""Federations in which selection has something to win: clients differ much, and the test set is not their average.

They were fixed before any run. Digits: a Dirichlet split at 0.1 leaves most clients with one or two classes. Topics:
made-up texts in six topics, the rarer the harder, and as many test users of each. Values are those of the tables where
they fit (5 clients a round, 5 epochs, batches of 10); 10 clusters and a threshold of 3 leave 52 of 60 rounds for the
estimates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class UnevenFederation:
    """One federation of clients that differ, with the settings of its runs."""

    name: str
    title: str
    about: str
    """Description for sentences."""
    dataset: Mapping[str, Any]
    environment: Mapping[str, Any]
    model: Mapping[str, Any]
    local: Mapping[str, Any]
    clients: int
    samples: int
    """Mean number of samples of a client."""
    cohort: int
    rounds: int
    clusters: int
    threshold: int


DIGITS = UnevenFederation(
    name="digits",
    title="digits",
    about="scikit-learn's digits over 100 clients by a Dirichlet split at 0.1",
    dataset={"name": "digits"},
    environment={"name": "dirichlet", "alpha": 0.1},
    model={"name": "mlp"},
    local={"epochs": 5, "batch": 10, "rate": 0.1},
    clients=100,
    samples=14,
    cohort=5,
    rounds=60,
    clusters=10,
    threshold=3,
)

TOPICS = UnevenFederation(
    name="topics",
    title="made-up topics",
    about="made-up texts of 100 users in six topics, the rarer the harder",
    dataset={"name": "papers.nccb:topics"},
    environment={"name": "natural"},
    model={"name": "lstm", "embedding": 32, "hidden": 32, "layers": 1},
    local={"epochs": 5, "batch": 10, "rate": 2.0},
    clients=100,
    samples=100,
    cohort=5,
    rounds=60,
    clusters=10,
    threshold=3,
)

UNEVEN = (DIGITS, TOPICS)

SMALL_UNEVEN = (replace(DIGITS, clients=12, samples=100, cohort=3, rounds=4, clusters=3, threshold=0),)
"""For trials."""
