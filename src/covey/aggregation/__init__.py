"""Aggregators: how replies become the next model, and how much each reply counts."""

from covey.aggregation.average import Average, weighted_sum
from covey.aggregation.cmfl import CMFL, ServerCMFL
from covey.aggregation.coordinate_rules import Median, TrimmedMean
from covey.aggregation.dp_fedavg import DPFedAvg
from covey.aggregation.feddrl import FedDRL
from covey.aggregation.feddrl_set import FedDRLSet
from covey.aggregation.fixed_weights import Ratios
from covey.aggregation.geometric_median import GeometricMedian
from covey.aggregation.krum import Bulyan, Krum, MultiKrum
from covey.aggregation.loss_softmax import LossSoftmax
from covey.aggregation.norm_bound import NormBound
from covey.aggregation.qffl import QFFL
from covey.aggregation.share_predictor import WithPredictor
from covey.aggregation.wrapper import AroundAggregator
from covey.core.interfaces import Aggregator

__all__ = [
    "CMFL",
    "QFFL",
    "Aggregator",
    "AroundAggregator",
    "Average",
    "Bulyan",
    "DPFedAvg",
    "FedDRL",
    "FedDRLSet",
    "GeometricMedian",
    "Krum",
    "LossSoftmax",
    "Median",
    "MultiKrum",
    "NormBound",
    "Ratios",
    "ServerCMFL",
    "TrimmedMean",
    "WithPredictor",
    "weighted_sum",
]
