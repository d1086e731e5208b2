"""Models that leap: the one before is kept until clients have trained from the next."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.messages import Fault

LEAP = 100.0
"""A model whose norm grows by this factor in a round is on probation until clients have trained from it."""


def leaps(before: Tensor, after: Tensor) -> bool:
    """True if the step from one model to the next is so large that clients may not be able to train from it."""
    norms = [torch.linalg.vector_norm(model, dtype=torch.float64) for model in (after, before)]
    now, then = torch.stack(norms).tolist()
    return bool(now > LEAP * then > 0)


@dataclass
class Probation:
    """The models of a method with several that leapt when they were last trained, each with the one before."""

    on: bool
    before: dict[int, Tensor] = field(default_factory=dict)
    """Number of the model → the model before."""
    back: bool = False
    """True if a model was taken back in this round."""

    def note(self, number: int, before: Tensor, after: Tensor) -> None:
        """Learn a model's step: clients have trained from the one before."""
        self.before.pop(number, None)
        if self.on and leaps(before, after):
            # A copy, as no two tensors of a checkpoint may share memory.
            self.before[number] = before.clone()

    def taken_back(self, t: int, trained: set[int], faults: Sequence[Fault], used: IntArray) -> dict[int, Tensor]:
        """Return number → the model to go back to, of models on probation from which nobody could train.

        trained: models with a sound reply in round `t`. used: `[clients]`, the number of each one's model.
        """
        lost = {int(used[fault.client]) for fault in faults if fault.unsound} - trained
        found = {number: self.before.pop(number) for number in sorted(lost) if number in self.before}
        self.back = bool(found)
        if found:
            warnings.warn(f"No reply of round {t} was finite: the model is back at the one before.", stacklevel=3)
        return found

    def state_dict(self) -> State:
        """Return what a resume needs; empty where no model leapt."""
        return {"before": {str(number): model for number, model in self.before.items()}} if self.before else {}

    def load_state_dict(self, state: State) -> None:
        """Restore the result of `state_dict`."""
        self.before = {int(number): model for number, model in state.get("before", {}).items()}
