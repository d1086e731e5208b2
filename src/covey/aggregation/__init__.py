"""Aggregators: how replies become the next model, and how much each reply counts."""

from covey.aggregation.average import Average, weighted_sum
from covey.aggregation.cmfl import CMFL, ServerCMFL
from covey.aggregation.feddrl import FedDRL
from covey.aggregation.feddrl_set import FedDRLSet
from covey.aggregation.fixed_weights import Ratios
from covey.aggregation.loss_softmax import LossSoftmax
from covey.aggregation.share_predictor import WithPredictor
from covey.core.interfaces import Aggregator

__all__ = [
    "CMFL",
    "Aggregator",
    "Average",
    "FedDRL",
    "FedDRLSet",
    "LossSoftmax",
    "Ratios",
    "ServerCMFL",
    "WithPredictor",
    "weighted_sum",
]
