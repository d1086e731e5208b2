"""Lines of FedACS's tables: those of IID are the same in all environments."""

from collections.abc import Sequence

from papers.fedacs import METHODS, POOL, REFERENCE, TITLES, Environment, FedACSScale
from papers.lines import Lines
from papers.plan import ANY
from papers.store import Result, Store


class ACSLines(Lines):
    """What every section needs to know. The paper's terminal accuracy is the mean over the last 50 of 1,000 rounds."""

    def __init__(self, scale: FedACSScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES)
        self.scale = scale

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        return super().line(ANY if method == REFERENCE else environment, method, variant)

    def selecting(self, environment: Environment) -> list[str]:
        """Methods of an environment's tables: the paper's, and whatever else was run; IID is the same in all."""
        return [method for method in self.shown(environment.name, METHODS) if method != REFERENCE]


def pool_variant(pool: float) -> str:
    """The variant of runs with this λ; that of the tables has none."""
    return "" if pool == POOL else f"pool{pool:g}"
