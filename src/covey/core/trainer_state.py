"""The server's half of a run's trainer: its orders, and what its clients keep."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.client_store import ClientStore
from covey.core.interfaces import Setting, begin_part
from covey.core.messages import Fault
from covey.core.replies import TRAINER, Replies
from covey.core.trainer import KEPT, Packing, Trainer, TrainerOrder, ref_of, require_trainer, shared_places
from covey.registries import trainers


@runtime_checkable
class OwnParts(Protocol):
    """A method whose models are completed by what clients keep, so that real clients evaluate them themselves."""

    def own_parts(self, clients: IntArray) -> TrainerOrder:
        """Return the trainer's part of an order to evaluate the models that these clients use."""
        ...


def own_parts_of(method: object, clients: IntArray) -> TrainerOrder | None:
    """Return the trainer's part of an order to evaluate a method's models; None where clients keep nothing of them."""
    return method.own_parts(clients) if isinstance(method, OwnParts) else None


class TrainerChoice:
    """A run's trainer, with what its clients keep (in a simulation) or when they kept it (real clients)."""

    def __init__(self, name: str, options: Mapping[str, Any], memory: int = 0) -> None:
        """`memory` is the most bytes that rows of a simulation may take in memory; 0 is no limit."""
        self.ref = ref_of(name, options)
        made = trainers.make(name, options)
        require_trainer(made)
        self.part: Trainer = made
        self.store = ClientStore(memory)
        self._first: State = {}
        """The trainer's state before the first round."""

    def begin(self, setting: Setting) -> None:
        begin_part(self.part, setting)
        self._first = self.part.state_dict()

    def roll_back(self, state: State) -> None:
        """Return to the state of a model that is taken back.

        What clients keep is of later rounds by now. A trainer for which they keep something begins afresh, so that its
        two halves know the same visits.
        """
        if self.part.kept:
            self.store.forget()
            state = self._first
        self.part.load_state_dict(state)

    def order(self, t: int, cohort: IntArray, model: Tensor) -> TrainerOrder:
        """Return the trainer's part of an order."""
        layout = self.part.setting.layout
        self.part.invited(t, cohort)
        sent = Packing(self.part.sent, layout)
        # Packed and unpacked, so that a field of a wrong size is refused here, with a sentence.
        values = sent.flat(sent.pack(self.part.send(t, model)).to(model)) if self.part.sent else {}
        shapes = Packing(self.part.replied, layout).shapes()
        return TrainerOrder(self.ref, values, self.store.of(cohort.tolist()), shapes, shared_places(self.part, layout))

    def with_answers(self, replies: Replies) -> Replies:
        """Drop replies without the fields that the trainer computes with, or whose fields are not finite."""
        if not self.part.replied or not len(replies):
            return replies
        usable = replies.observed(TRAINER)
        lost = np.setdiff1d(np.arange(len(replies)), usable)
        if not len(lost):
            return replies
        dropped = set(replies.clients[lost].tolist())
        others = [fault for fault in replies.faults if not (fault.client in dropped and fault.measurement == TRAINER)]
        faults = [Fault(client, "what its trainer replied cannot be used") for client in sorted(dropped)]
        return replace(replies.take(usable), faults=(*others, *faults))

    def keep(self, t: int, replies: Replies) -> None:
        """Take over what the clients of these replies keep; that of other clients stays as it was."""
        rows = replies.kept.get(TRAINER, {})
        counted = {*replies.clients.tolist(), *replies.withheld.tolist()}
        self.store.put(t, {client: fields[KEPT] for client, fields in rows.items() if client in counted})

    def attach_folder(self, folder: Path, runs: int) -> None:
        """Keep what simulated clients keep in a run folder; of real clients there is nothing to keep."""
        setting, fields = self.part.setting, self.part.kept
        if fields and not setting.live:
            self.store.attach(folder, Packing(fields, setting.layout).size, runs)

    def state_dict(self) -> State:
        return {"part": self.part.state_dict(), "kept": self.store.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.part.load_state_dict(state["part"])
        simulated = "segments" in state["kept"]
        # Real clients hold nothing of what simulated ones kept.
        self.store.load_state_dict({} if simulated and self.part.setting.live else state["kept"])
