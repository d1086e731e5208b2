"""What one call of a Flower strategy's `start` works with."""

from dataclasses import dataclass, field
from typing import cast

from covey.core.loop import OnRound
from covey.flower.mixed_exchange import MixedExchange
from covey.flower.named_arrays import NamedArrays
from covey.flower.strategy_folder import RoundCount
from covey.flower.strategy_runtime import StrategyRuntime


@dataclass(eq=False)
class StartedRun:
    """The objects that one call of `Strategy.start` works with."""

    arrays: NamedArrays
    """The model's arrays: their names, order and places, and those that are not trained."""
    runtime: StrategyRuntime
    on_round: OnRound | None
    """Warns of a stalled run; None without a folder."""
    count: RoundCount = field(default_factory=RoundCount)
    """Counts rounds that no folder records."""

    @property
    def exchange(self) -> MixedExchange:
        return cast(MixedExchange, self.runtime.exchange)
