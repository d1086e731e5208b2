"""Selectors: which clients to invite to a round."""

from covey.core.interfaces import Selector
from covey.selection.composed import ComposedSelector
from covey.selection.fedacs import FedACS
from covey.selection.k_linucb import KLinUCB
from covey.selection.nccb import NCCB
from covey.selection.oort import Oort
from covey.selection.oort_simple import OortSimple
from covey.selection.power_of_choice import PowerOfChoice
from covey.selection.rexp3 import Rexp3
from covey.selection.uniform import Uniform

__all__ = [
    "NCCB",
    "ComposedSelector",
    "FedACS",
    "KLinUCB",
    "Oort",
    "OortSimple",
    "PowerOfChoice",
    "Rexp3",
    "Selector",
    "Uniform",
]
