"""Probes: measurements that clients send in addition to their model."""

from covey.probe.class_query import ClassQuery, Privacy
from covey.probe.insight import Insight
from covey.probe.losses import Losses, Utility
from covey.probe.predictor import PredictorProbe, PrivatePredictorProbe
from covey.probe.simhash import SimHash

__all__ = [
    "ClassQuery",
    "Insight",
    "Losses",
    "PredictorProbe",
    "Privacy",
    "PrivatePredictorProbe",
    "SimHash",
    "Utility",
]
