"""Selectors: which clients to invite to a round."""

from covey.core.interfaces import Selector
from covey.selection.balanced import Balanced
from covey.selection.composed import ComposedSelector
from covey.selection.fed_cbs import FedCBS
from covey.selection.fedacs import FedACS
from covey.selection.fedcor import FedCor
from covey.selection.fedentopt import FedEntOpt
from covey.selection.hics_fl import HiCSFL
from covey.selection.k_linucb import KLinUCB
from covey.selection.nccb import NCCB
from covey.selection.oort import Oort
from covey.selection.oort_simple import OortSimple
from covey.selection.power_of_choice import PowerOfChoice
from covey.selection.rexp3 import Rexp3
from covey.selection.uniform import Uniform

__all__ = [
    "NCCB",
    "Balanced",
    "ComposedSelector",
    "FedACS",
    "FedCBS",
    "FedCor",
    "FedEntOpt",
    "HiCSFL",
    "KLinUCB",
    "Oort",
    "OortSimple",
    "PowerOfChoice",
    "Rexp3",
    "Selector",
    "Uniform",
]
