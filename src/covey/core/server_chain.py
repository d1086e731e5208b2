"""What follows the aggregator in methods with one model: the server's optimiser, then averaging over rounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from covey.arrays import State
from covey.config.server_sections import Averaging, ServerStep
from covey.core.loss_brake import LossBrake
from covey.core.model_average import ModelAverage
from covey.core.replies import is_finite
from covey.core.server_optimizer import Moments, server_step
from covey.errors import require
from covey.model.layout import Layout


@runtime_checkable
class Averaged(Protocol):
    """A method whose `models()` may be averages over rounds."""

    def raw_model(self) -> Tensor | None:
        """Return the model `[d]` that training goes on from, if `models()` gives an average instead; else None."""
        ...


@dataclass(frozen=True, eq=False)
class ChainState:
    """The state between rounds. It is replaced and never changed in place, so that an earlier one can be kept."""

    moments: Moments = field(default_factory=dict)
    average: State = field(default_factory=dict)


class ServerChain:
    """Steps from the model towards the aggregator's result, and averages the models of all rounds.

    The optimiser acts on the parameters; batch-norm statistics are the aggregator's. A step that is not finite is not
    taken, and changes neither moments nor averages.
    """

    def __init__(self, layout: Layout, optimizer: ServerStep | None = None, averaging: Averaging | None = None) -> None:
        self.layout = layout
        self.optimizer = optimizer or ServerStep()
        self.average = ModelAverage(averaging, layout) if averaging else None
        self.state = ChainState()
        self.brake = LossBrake(self.optimizer.halving or 0.0)

    def note_loss(self, mean: float, typical: float) -> bool:
        """Learn a round's mean training loss and its median client's, before its step.

        True if they halve the rate and stop the momentum.
        """
        before, self.brake = self.brake, self.brake.after(mean, typical)
        return self._stopped(before)

    def halve(self) -> bool:
        """Halve the rate because a model was not finite; True if the brake is on."""
        before, self.brake = self.brake, self.brake.halved()
        return self._stopped(before)

    def _stopped(self, before: LossBrake) -> bool:
        """Start the momentum anew if the rate is lower than before."""
        if self.brake.halvings == before.halvings:
            return False
        self.state = replace(self.state, moments={})
        return True

    @property
    def rate(self) -> float | None:
        """The optimiser's rate by now, if it was ever halved."""
        return self.optimizer.rate * self.brake.share if self.brake.halvings and self.optimizer.rate else None

    def step(self, model: Tensor, found: Tensor) -> Tensor | None:
        """Return the next model `[d]` from the current one and the aggregator's finite result; None if not finite."""
        moments: Moments = {}
        if self.optimizer:
            size = self.layout.trainable
            rule = self.optimizer if self.rate is None else replace(self.optimizer, rate=self.rate)
            after, moments = server_step(rule, self.state.moments, model[:size], found[:size])
            found = torch.cat([after, found[size:]])
        average = self.average.with_model(self.state.average, found) if self.average else {}
        state = ChainState(moments, average)
        if not all(is_finite(one) for one in (*([found] if self.optimizer else []), *self._tensors(state))):
            return None
        self.state = state
        return found

    def served(self, model: Tensor) -> Tensor:
        """Return the model `[d]` to evaluate and hand out: the average over rounds, or the current model itself."""
        return self.average.served(self.state.average, model) if self.average else model

    def saved(self, state: ChainState) -> State:
        """Return a state for a checkpoint, empty before the first round."""
        # Copies, as no two tensors of a checkpoint may share memory.
        moments = {"optimizer": self.optimizer.optimizer, "moments": _copied(state.moments)} if state.moments else {}
        return {**moments, **({"average": _copied(state.average)} if state.average else {})}

    def restored(self, state: State) -> ChainState:
        """Return the state of a checkpoint; moments of another optimiser are left out."""
        ours = state.get("optimizer") == self.optimizer.optimizer
        found = ChainState(state["moments"] if ours else {}, state.get("average", {}))
        names = {"velocity"} if self.optimizer.optimizer == "momentum" else {"mean", "square"}
        require(not found.moments or set(found.moments) == names, "the server's optimiser lacks moments")
        if self.average:
            self.average.require_of_its_kind(found.average)
        sizes = {len(one) for one in found.moments.values()} - {self.layout.trainable}
        sizes |= {len(one) for one in self._averages(found)} - {self.layout.size}
        require(not sizes, f"the server's optimiser or average has {sizes} numbers")
        return found

    def _averages(self, state: ChainState) -> list[Tensor]:
        return list(self.average.tensors(state.average)) if self.average else []

    def _tensors(self, state: ChainState) -> Iterator[Tensor]:
        yield from state.moments.values()
        # The models of a window were checked when they entered it.
        yield from self._averages(state)[-1:]


def served_model(state: State, averaging: Averaging, layout: Layout) -> Tensor:
    """Return the model `[d]` to evaluate and hand out, of the state of a method with one model."""
    chain = ServerChain(layout, None, averaging)
    chain.state = chain.restored(state.get("server", {}))
    return chain.served(state["model"])


def _copied(part: State) -> State:
    """Return a nested mapping with copies of its tensors."""
    return {
        name: one.clone() if isinstance(one, Tensor) else _copied(one) if isinstance(one, dict) else one
        for name, one in part.items()
    }
