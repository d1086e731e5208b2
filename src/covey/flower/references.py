"""References that rearrange clients' data, which live clients cannot run."""

from covey.errors import require
from covey.methods import methods


def require_live(method: str) -> None:
    """Refuse a method that needs clients' data to be dealt anew."""
    reshapes = method in methods.names() and methods[method].part.reshape is not None
    require(
        not reshapes,
        f"The method '{method}' rearranges clients' data, which only a simulation can: "
        f"covey run --runtime flower --method {method}.",
    )
