"""Work that pages ask for beside the commands of `covey`: true class mixes, and estimated ones of a base run."""

from pathlib import Path
from typing import Any

from covey.config.recipe import recipe_of
from covey.core.build import build_federation
from covey.core.runtime_traits import traits_of
from covey.errors import require
from covey.job.on_demand.nearest_mix import BaseShares
from covey.job.runs import Run

_MOST = 300_000
"""Most numbers, clients times classes, that are sent to a page."""


def federation(run: str) -> dict[str, Any]:
    """Return the true class mixes and sizes of a simulated run's clients; none of a federation that is too large."""
    config = Run.open(Path(run)).config
    require(not traits_of(config.runtime).live, "Real clients keep to themselves what they hold.")
    config.require_trusted("dataset", "environment")
    split, reshape = build_federation(config), recipe_of(config.method).reshape
    found = reshape(split, config.seed) if reshape else split
    shares = found.truth.shares
    small = shares.size <= _MOST
    return {
        "class_names": list(found.dataset.class_names),
        "sizes": found.sizes.tolist() if small else [],
        "shares": [[float(f"{share:.4g}") for share in row] for row in shares.tolist()] if small else [],
    }


def shares(base: str, out: str, fleet: str | None = None) -> dict[str, Any]:
    """Estimate the class shares of a base run's clients, and write them to a file."""
    found = BaseShares.of(Path(base), fleet=None if fleet is None else Path(fleet))
    found.write(Path(out))
    return {"clients": len(found.shares), "classes": len(found.class_names), "base_round": found.base_round}
