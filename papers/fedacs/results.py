"""FedACS's results as cells; the lines of IID are the same in all environments."""

from collections.abc import Sequence

import numpy as np

from covey.config.sections import Alterations
from covey.environment.alterations import assign
from covey.job.comparison.statistics import Estimate
from covey.randomness import generator
from papers.curves import Line, numbers
from papers.fedacs.scales import CLUSTERED, METHODS, POOL, REFERENCE, TITLES, Environment, FedACSScale
from papers.grid import ANY
from papers.results import Results
from papers.store import Result, Store


class FedACSResults(Results):
    """Stored results of FedACS. The paper's terminal accuracy is the mean over the last 50 of 1,000 rounds."""

    def __init__(self, scale: FedACSScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES)
        self.scale = scale

    def planned_rounds(self, environment: str, method: str) -> int:
        return min(self.rounds, self.scale.cluster_rounds) if environment == CLUSTERED else self.rounds

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Return the shown runs of a line; IID has one line for all environments."""
        return super().line(ANY if method == REFERENCE else environment, method, variant)

    def selecting(self, environment: Environment) -> list[str]:
        """Return the methods of an environment's tables: the paper's and any others that were run, without IID."""
        return [method for method in self.shown(environment.name, METHODS) if method != REFERENCE]


def pool_variant(pool: float) -> str:
    """Return the variant of runs with this λ; that of the tables has none."""
    return "" if pool == POOL else f"pool{pool:g}"


def poisoned_invitations(line: Line) -> Estimate | None:
    """Return how often a client with wrong labels is invited, as a multiple of the mean over all clients."""
    shares = []
    for run in line.values():
        hits = numbers(run.hits)
        drawn = assign(Alterations(**run.config["altered"]), len(hits), generator(run.seed, "alterations"))
        shares.append(float(hits[np.array(drawn.poisoned)].mean() / hits.mean()))
    return Estimate.of(shares) if shares else None


def minority_share(run: Result) -> float:
    """Return the share of invitations that went to clients outside the main group of cluster skew."""
    clients, hits = int(run.config["clients"]), numbers(run.hits)
    main = int(float(run.config["environment"]["delta"]) * clients + 0.5)
    return float(hits[run.client_order >= main].sum() / hits.sum())
