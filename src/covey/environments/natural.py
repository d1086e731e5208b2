"""Clients that come with the data."""

import numpy as np

from covey.environments.dealing import Deal, IntArray, environments
from covey.errors import Refusal, require


@environments.add("given")
def given(*asked: object) -> Deal:
    """Clients as they were passed in from Python with covey.run(federation=...)."""
    raise Refusal("The environment 'given' stands for a federation passed in from Python: covey.run(federation=...).")


@environments.add("natural")
def natural(groups: IntArray, clients: int) -> Deal:
    """Clients that come with the data (users, sites), for data sets that name them; disjoint."""
    count = int(groups.max()) + 1
    require(clients <= count, f"The data has {count} natural clients; {clients} were asked for.")
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(clients + 1))
    return Deal([order[bounds[client] : bounds[client + 1]] for client in range(clients)], shared=False)
