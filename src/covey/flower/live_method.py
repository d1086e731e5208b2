"""Refusal of references that rearrange clients' data, which live clients cannot run."""

from covey.config.recipe import recipe_of
from covey.errors import require


def require_live(method: str) -> None:
    """Refuse a method that splits the clients' data anew."""
    require(
        recipe_of(method).reshape is None,
        f"The method '{method}' rearranges clients' data, which only a simulation can: "
        f"covey run --runtime flower --method {method}.",
    )
