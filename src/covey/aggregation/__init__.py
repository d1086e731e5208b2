"""Aggregators: how much each update counts."""

from covey.aggregation.average import Average, weighted_sum
from covey.aggregation.cmfl import CMFL, ServerCMFL
from covey.roles import Aggregator, aggregators

__all__ = ["CMFL", "Aggregator", "Average", "ServerCMFL", "aggregators", "weighted_sum"]
