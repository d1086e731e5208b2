"""Trainers: what a client does with the model that it receives. A file each."""

from covey.training import (
    ditto,
    dp_sgd,
    fedbn,
    fedcm,
    feddyn,
    fedlc,
    fednova,
    fedper,
    fedprox,
    fedrep,
    fedsam,
    moon,
    scaffold,
    sgd,
)

__all__ = [
    "ditto",
    "dp_sgd",
    "fedbn",
    "fedcm",
    "feddyn",
    "fedlc",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "fedsam",
    "moon",
    "scaffold",
    "sgd",
]
