"""How clients' training moves the bias of the last layer, as their updates show it (Chen and Vikalo 2024, section 3.2).

Clients with many samples of a class push its bias up. Nothing is asked of them: the server has sent the model, and the
update comes back in any case.
"""

import math

import numpy as np
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.errors import Refusal
from covey.model.layout import Slot


class BiasUpdates:
    """Reads Δb, the change of the last layer's bias, off a round's replies."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.slot = _bias_of(setting)
        self._sent: Tensor | None = None

    def sent(self, model: Tensor) -> None:
        """Remember the bias of the model that a round's clients start from."""
        self._sent = self.slot.of(model).detach().clone()

    def of(self, replies: Replies) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return clients `[k]`, Δb `[k, classes]` and samples `[k]`, of the clients that sent a model."""
        if self._sent is None or not replies.states.shape[1]:
            return np.empty(0, dtype=np.int64), np.empty((0, self.slot.size)), np.empty(0)
        after = self.slot.of(replies.states)
        changes = (after.double() - self._sent.to(after.device).double()).cpu().numpy()
        usable = np.flatnonzero(np.isfinite(changes).all(axis=1))
        return replies.clients[usable], changes[usable], replies.samples.double().numpy()[usable]

    def steps(self, samples: FloatArray) -> FloatArray:
        """Return the number of local steps of clients with so many samples: `[k]`."""
        work = self.setting.work
        each = np.ceil(samples / work.batch) if work.batch else np.ones_like(samples)
        steps: FloatArray = work.epochs * np.maximum(each, 1.0)
        return steps

    def length(self, samples: float) -> float:
        """Return the sum of the first round's rates over a client's steps, with momentum as it adds up."""
        steps = float(self.steps(np.array([samples]))[0])
        length = self.setting.work.rate * steps / (1 - self.setting.work.momentum)
        return length if math.isfinite(length) and length > 0 else 1.0


def _bias_of(setting: Setting) -> Slot:
    """Return the bias of the last layer; refuse a model without one."""
    # Apps of other frameworks have names of their own for it.
    for slot in setting.layout.head:
        if slot.shape == (setting.classes,):
            return slot
    raise Refusal(
        "Class shares are read from updates of the last layer's bias, and this model has none: choose a model with "
        "one, or ask clients for their class shares (the selector balanced with selector.shares=asked)."
    )
