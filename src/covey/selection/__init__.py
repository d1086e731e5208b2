"""Selectors: whom to invite."""

from covey.roles import Selector, selectors
from covey.selection.fedacs import FedACS
from covey.selection.uniform import Uniform

__all__ = ["FedACS", "Selector", "Uniform", "selectors"]
