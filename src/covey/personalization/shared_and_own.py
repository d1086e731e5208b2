"""Methods with a shared model of which a part, or a variant, is each client's own: FedBN, FedPer, FedRep and Ditto.

What a client does is a trainer (`covey.training`), and its own part is what that trainer keeps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.arrays import IntArray, State
from covey.core.interfaces import Setting
from covey.core.messages import Order
from covey.core.probation import Probation
from covey.core.replies import Replies
from covey.core.trainer import Packing, TrainerOrder, shared_places
from covey.core.trainer_state import TrainerChoice
from covey.personalization.per_client import ManyModel, Participation, on_saved_device
from covey.registries import manymodels


class SharedAndOwn(ManyModel):
    """A shared model, averaged by samples as in FedAvg, and what a trainer keeps of each client's own."""

    resident = True
    """Clients' own parts stay with them."""

    def __init__(
        self, setting: Setting, model: Tensor, trainer: str, options: Mapping[str, Any], participation: Participation
    ) -> None:
        super().__init__(setting, participation)
        self.trainer = TrainerChoice(trainer, options)
        self.trainer.begin(setting)
        self.model = model
        """`[d]`: the shared model; where a part of it stays with clients, with that of the beginning."""
        self.probation = Probation(setting.limits.on)
        self._only = np.zeros(setting.clients, dtype=np.int64)

    def order(self, t: int, candidates: IntArray) -> Order:
        clients = self.invited(t, candidates)
        trainer = self.trainer.order(t, clients, self.model)
        return Order(t, clients, self.model, self.setting.work, trainer=trainer)

    def received(self, clients: IntArray) -> Tensor | None:
        return self.model

    @property
    def shared(self) -> Tensor | None:
        return shared_places(self.trainer.part, self.setting.layout)

    def absorb(self, t: int, replies: Replies) -> None:
        """Average what clients share, and take over what they keep; if nobody could train, go back after a leap."""
        back = self.probation.taken_back(t, {0} if len(replies) else set(), replies.faults, self._only)
        self.model = back.get(0, self.model).to(self.model)
        if not len(replies):
            return
        counts = replies.samples.double()
        found = weighted_sum(replies.states, counts / counts.sum())
        if (shared := self.shared) is not None:
            places = shared.to(found.device)
            found = self.model.to(found).index_copy(0, places, found[places])
        if bool(torch.isfinite(found).all()):
            self.probation.note(0, self.model, found)
            self.model = found
            self.trainer.keep(t, replies)

    def figures(self) -> dict[str, object]:
        return {"rolled_back": True} if self.probation.back else {}

    def own_parts(self, clients: IntArray) -> TrainerOrder:
        """Return the trainer's part of an order to evaluate the models that these clients use."""
        return self.trainer.order(0, clients, self.model)

    def models(self) -> Tensor:
        """Return the shared model, and after it those of clients that have trained; of real clients, the shared one."""
        if self.setting.live:
            return self.model[None]
        part, layout = self.trainer.part, self.setting.layout
        packing, rows = Packing(part.kept, layout), self.trainer.store.of(range(self.setting.clients))
        own = [part.client_model(self.model, packing.flat(row.values.to(self.model)), layout) for row in rows.values()]
        return torch.stack([self.model, *own])

    @property
    def model_of_client(self) -> IntArray:
        found = np.zeros(self.setting.clients, dtype=np.int64)
        if not self.setting.live:
            trained = list(self.trainer.store.of(range(self.setting.clients)))
            found[trained] = np.arange(1, len(trained) + 1)
        return found

    def state_dict(self) -> State:
        kept = {**self.guard.saved(self.setting.work), **self.probation.state_dict()}
        return {"model": self.model, "device": str(self.model.device), "trainer": self.trainer.state_dict(), **kept}

    def load_state_dict(self, state: State) -> None:
        self.guard.recall(state, self.setting.work)
        self.probation.load_state_dict(state)
        self.model = on_saved_device(state["model"], state)
        self.trainer.load_state_dict(state["trainer"])


@manymodels.add("fedbn")
def fedbn(setting: Setting, model: Tensor, *, participation: Participation = "cohort") -> SharedAndOwn:
    """Averages models without their normalisation layers, which stay with each client (FedBN).

    participation: all reachable clients, or a cohort of them.
    """
    return SharedAndOwn(setting, model, "fedbn", {}, participation)


@manymodels.add("fedper")
def fedper(
    setting: Setting, model: Tensor, *, layers: int = 1, participation: Participation = "cohort"
) -> SharedAndOwn:
    """Averages models without their last layers, which stay with each client (FedPer).

    layers: number of last layers that stay with a client.
    participation: all reachable clients, or a cohort of them.
    """
    return SharedAndOwn(setting, model, "fedper", {"layers": layers}, participation)


@manymodels.add("fedrep")
def fedrep(
    setting: Setting, model: Tensor, *, head_epochs: int | None = None, participation: Participation = "cohort"
) -> SharedAndOwn:
    """Averages models without their heads; a client first trains its head alone, then the body alone (FedRep).

    The body's batch-norm statistics, if it has any, also move while the head is trained.

    head_epochs: local epochs for the head; the body gets the others. None is all but one, as in the paper.
    participation: all reachable clients, or a cohort of them.
    """
    epochs = max(1, setting.work.epochs - 1) if head_epochs is None else head_epochs
    return SharedAndOwn(setting, model, "fedrep", {"head_epochs": epochs}, participation)


@manymodels.add("ditto")
def ditto(
    setting: Setting, model: Tensor, *, weight: float = 0.1, participation: Participation = "cohort"
) -> SharedAndOwn:
    """Trains FedAvg's model and beside it each client's own, pulled towards the global one (Ditto).

    A client's own model v follows ∇F(v) + λ(v - w), w the global model that it received, on the same batches and with
    the rate, momentum and weight decay of `local`. It starts from w on the client's first visit.

    weight: λ. 0 leaves personal models to local training.
    participation: all reachable clients, or a cohort of them.
    """
    work = setting.work
    options = {"weight": weight, "momentum": work.momentum, "weight_decay": work.weight_decay}
    return SharedAndOwn(setting, model, "ditto", options, participation)
