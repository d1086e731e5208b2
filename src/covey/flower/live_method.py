"""Refusals before live clients are met: references that rearrange clients' data, and selectors that do not fit."""

from covey.config.recipe import recipe_of
from covey.config.schema import Config
from covey.errors import require
from covey.registries import selectors


def require_live(method: str) -> None:
    """Refuse a method that splits the clients' data anew."""
    require(
        recipe_of(method).reshape is None,
        f"The method '{method}' rearranges clients' data, which only a simulation can: "
        f"covey run --runtime flower --method {method}.",
    )


def require_fitting_selector(config: Config) -> None:
    """Refuse a selector that does not go with the numbers of clients and of a cohort, before clients are waited for."""
    if config.selector is not None:
        config.require_trusted("selector")
        selector = selectors.make(config.selector.name, config.selector.options)
        selector.require_fits(config.clients, min(config.cohort, config.clients))
