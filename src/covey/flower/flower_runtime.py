"""The flower runtime: clients are nodes on Flower's grid, in its simulation (Ray) or anywhere else."""

import numpy as np
from flwr.serverapp import Grid
from torch import Tensor, nn

from covey.arrays import IntArray
from covey.config.schema import Config
from covey.core.interfaces import Runtime
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.core.scores import Scores
from covey.environment.federated_data import Federation
from covey.flower import simulation
from covey.flower.exchange import Exchange
from covey.flower.roster import Roster
from covey.flower.simulated_client import SimulationFolder
from covey.model.frozen import constants_digest
from covey.runtime.local import LocalRuntime, usable_cores

TIMEOUT = 3600.0
"""Seconds to wait for a client's answer."""


class FlowerRuntime(Runtime):
    """Runs a federation on Flower's engine: node i is client i, and reads its samples from a file of its own.

    Clients compute the same bits as on the local runtime. Here the server also receives what stays on clients (see
    `docs/privacy.md`), for checkpoints and for evaluation on its test set.
    """

    def __init__(self, federation: Federation, module: nn.Module, config: Config, grid: Grid | None = None) -> None:
        self.federation = federation
        self._grid = grid
        self._folder = SimulationFolder(federation, config)
        self._evaluator = LocalRuntime(federation, module, seed=config.seed, workers=1, precision=config.precision)
        self._exchange = Exchange(
            Roster(federation.clients),
            seed=config.seed,
            job=self._folder.place,
            simulated=True,
            timeout=TIMEOUT,
            constants=constants_digest(module),
        )
        if grid is None:
            simulation.enter(self, federation.clients, config.workers or usable_cores())

    @classmethod
    def of(cls, federation: Federation, module: nn.Module, config: Config) -> "FlowerRuntime":
        """Build the runtime on Flower's simulation engine."""
        return cls(federation, module, config)

    def available(self, t: int) -> IntArray:
        return np.arange(self.federation.clients)

    def execute(self, order: Order) -> Replies:
        if self._grid is not None:
            if not self._exchange.roster.names:
                self._exchange.roster.wait(self._grid, TIMEOUT)
            return self._exchange.execute(self._grid, order)
        session = simulation.current()
        self._exchange.roster = session.roster
        return self._exchange.execute(session.grid, order)

    def evaluate(self, states: Tensor) -> Scores:
        return self._evaluator.evaluate(states)

    def close(self) -> None:
        if self._grid is None:
            simulation.leave(self)
        self._evaluator.close()
        self._folder.close()
