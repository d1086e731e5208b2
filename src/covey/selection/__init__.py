"""Selectors: whom to invite."""

from covey.roles import Selector, selectors
from covey.selection.uniform import Uniform

__all__ = ["Selector", "Uniform", "selectors"]
