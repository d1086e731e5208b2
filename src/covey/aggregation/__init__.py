"""Aggregators: how much each update counts."""

from covey.aggregation.average import Average, weighted_sum
from covey.roles import Aggregator, aggregators

__all__ = ["Aggregator", "Average", "aggregators", "weighted_sum"]
