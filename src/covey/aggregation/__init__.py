"""Aggregators: how much each update counts."""

from covey.aggregation.average import Average, weighted_sum
from covey.aggregation.cmfl import CMFL, ServerCMFL
from covey.aggregation.feddrl import FedDRL
from covey.aggregation.feddrl_set import FedDRLSet
from covey.aggregation.loss_softmax import LossSoftmax
from covey.aggregation.ondemand import WithPredictor
from covey.aggregation.ratios import Ratios
from covey.roles import Aggregator, aggregators

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
    "aggregators",
    "weighted_sum",
]
