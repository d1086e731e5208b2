"""FedFomo (Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021): each client mixes the models that do better on its own validation samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.arrays import FloatArray, IntArray, State
from covey.client.holdout import validation_part
from covey.core.interfaces import Probe, Setting
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.data.dataset import Samples
from covey.errors import require
from covey.personalization.per_client import Participation, PersonalModels, on_saved_device
from covey.randomness import generator
from covey.registries import manymodels, probes

if TYPE_CHECKING:
    from covey.client.learner import Learner


@dataclass(frozen=True, eq=False)
class Gains(Probe):
    """Measures a client's gain per distance from each model offered to it: (L_i(θ_i) - L_i(θ_n)) / ‖θ_n - θ_i‖ (eq. 4).

    L_i is the mean loss on the client's validation samples and θ_i the model it received. `value` `[slots]` follows the
    order of `offers`, with 0 in unused slots.
    """

    personal: Tensor
    """`[clients, d]`: all models; a client is sent those offered to it."""
    offers: dict[int, tuple[int, ...]]
    """Client → owners of the models offered to it, possibly including itself."""
    slots: int
    holdout: int

    name = "gains"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"value": (self.slots,)}

    def for_client(self, client: int) -> "Offer":
        models = [self.personal[owner] for owner in self.offers[client]]
        return Offer(client, self.offers[client], models, self.slots, self.holdout)

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: Samples, key: int
    ) -> dict[str, Tensor]:
        raise TypeError("Every client measures its own offer: for_client(client).measure(...).")


@probes.add("gains")
@dataclass(frozen=True, eq=False)
class Offer(Probe):
    """The gains probe of one client, with the models offered to it."""

    client: int
    owners: tuple[int, ...]
    models: list[Tensor]
    slots: int
    holdout: int

    name = "gains"

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: Samples, key: int
    ) -> dict[str, Tensor]:
        part = validation_part(samples, self.holdout)
        values = torch.zeros(self.slots, dtype=torch.float64)
        if self.models:
            models = torch.stack([received, *(model.to(received.device) for model in self.models)])
            counts = [len(part)] * len(models)
            again = Samples(*(torch.cat([held] * len(models)) for held in (part.x, part.y)))
            losses = learner.own_losses(models, again, counts)
            apart = (models[1:] - received)[:, : learner.layout.trainable].double().norm(dim=1)
            # The gain from its own model is 0, not 0/0.
            gains = torch.where(apart > 0, (losses[0] - losses[1:]) / apart.clamp_min(1e-12), 0.0)
            values[: len(gains)] = gains.cpu()
        return {"value": values}

    def payload(self) -> dict[str, Tensor]:
        offered = zip(self.owners, self.models, strict=True)
        return {f"model{owner}": model for owner, model in offered if owner != self.client}

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as plain bytes: torch would pass whole models through /dev/shm, which may be small.
        plain = [model.cpu().numpy() for model in self.models]
        return _offer, (self.client, self.owners, plain, self.slots, self.holdout)


def _offer(client: int, owners: tuple[int, ...], models: list[NDArray[Any]], slots: int, holdout: int) -> Offer:
    return Offer(client, owners, [torch.from_numpy(model) for model in models], slots, holdout)


@manymodels.add("fedfomo")
class FedFomo(PersonalModels):
    """Sends each client a few models of others, which it mixes by their gain on its validation samples (FedFomo).

    In a round, a client receives models θ_n, as their owners last trained them. With θ_i the model that its last local
    training started from, it weighs them by w_n = max(0, (L_i(θ_i) - L_i(θ_n)) / ‖θ_n - θ_i‖), normalised, L_i its loss
    on samples held out of its training (eq. 3, 4). It trains from their mix, and sends its model and the weights before
    clipping. The server adds these (each round's scaled so that absolute values sum to 1) to P `[clients, clients]`;
    the models that a client receives next are ε-greedy on its row of P.

    The client mixes by itself, so neither the mix nor its own model is sent: it receives `models` models.

    form: delta is the paper's θ_i ← θ_i + Σ w_n (θ_n - θ_i): a client's own trained model is always weighed, beside
        `models` others, and if none is better than θ_i it returns to θ_i. weighted is θ_i ← Σ w_n θ_n, as others
        compare with it: the `models` highest of P, which starts as the identity, so that its own is one of them while
        it is among the highest; if none is better, it keeps its trained model. As weights are normalised, the two sums
        are the same model for the same weights; the forms differ in the models that are weighed and in the fallback.
    models: M, the number of models that a client receives; 0 leaves it with its own.
    epsilon: probability that a model is drawn at random, in the second round (the first with models to send). None is
        0.3 for delta, as in the paper, and 0 for weighted.
    decay: decrease of ε per round, down to 0.
    holdout: one in this many of a client's samples validates models; 5 is the paper's 80/20 split.
    participation: all reachable clients, or a cohort of them.
    """

    def __init__(
        self,
        setting: Setting,
        model: Tensor,
        *,
        form: Literal["delta", "weighted"] = "delta",
        models: int = 5,
        epsilon: float | None = None,
        decay: float = 0.05,
        holdout: int = 5,
        participation: Participation = "all",
    ) -> None:
        super().__init__(setting, model, participation)
        require(models >= 0, f"many.models must not be negative, not {models}.")
        require(models >= 1 or form == "delta", "many.models must be at least 1 where many.form is weighted.")
        if epsilon is None:
            epsilon = 0.3 if form == "delta" else 0.0
        require(0 <= epsilon <= 1, f"many.epsilon is a probability in [0, 1], not {epsilon:g}.")
        require(decay >= 0, f"many.decay must not be negative, not {decay:g}.")
        require(holdout >= 2, f"many.holdout must be at least 2, not {holdout}.")
        self.form = form
        self.sent = models
        self.epsilon = epsilon
        self.decay = decay
        self.holdout = holdout
        self.before = self.personal.clone()
        """`[clients, d]`: θ_i, the start of each client's last training; `personal` is its result."""
        self.preference = np.eye(setting.clients)
        """`[clients, clients]`: P."""
        self.known = np.zeros(setting.clients, dtype=bool)
        """`[clients]`: True if the server has the client's model."""
        self.offers: dict[int, tuple[int, ...]] = {}
        self.starts: dict[int, Tensor] = {}
        self.began: dict[int, Tensor] = {}
        self.weights: dict[int, FloatArray] = {}

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        self.offers, self.starts, self.weights = {}, {}, {}
        if not self.known.any():
            return None
        clients = self.invited(t, candidates)
        self.offers = {client: self._offered(t, client) for client in clients.tolist()}
        slots = self.sent + (self.form == "delta")
        probe = Gains(self.personal, self.offers, slots, self.holdout)
        start = self.before[torch.from_numpy(clients)]
        return Order(t, clients, start, self.setting.work, (probe,), resident=True, train=False)

    def _offered(self, t: int, client: int) -> tuple[int, ...]:
        """Return the owners of the models that a client weighs: ε-greedy on P, ties at random; delta adds its own."""
        rng = generator(self.setting.seed, t, client, "models")
        pool = np.flatnonzero(self.known)
        if self.form == "delta":
            pool = pool[pool != client]
        best_last = np.lexsort((rng.random(len(pool)), self.preference[client, pool]))
        remaining = pool[best_last].tolist()
        epsilon = max(0.0, self.epsilon - self.decay * (t - 2))
        chosen = [client] if self.form == "delta" and self.known[client] else []
        for _ in range(min(self.sent, len(remaining))):
            explores = rng.random() < epsilon
            chosen.append(remaining.pop(int(rng.integers(len(remaining))) if explores else -1))
        return tuple(chosen)

    def surveyed(self, t: int, replies: Replies) -> None:
        """Mix the models with positive gain, as each client does (eq. 3, 4), and update P."""
        for position in replies.observed(Gains.name).tolist():
            client = int(replies.clients[position])
            owners = self.offers[client]
            gains = replies.probes[Gains.name]["value"][position].numpy()[: len(owners)]
            total = np.abs(gains).sum()
            if total > 0:
                self.preference[client, list(owners)] += gains / total
            weights = gains.clip(min=0)
            if weights.any():
                self.weights[client] = weights / weights.sum()
                self.starts[client] = self._mixed(client)
            elif self.form == "delta":
                self.starts[client] = self.before[client]

    def _mixed(self, client: int) -> Tensor:
        weights = torch.from_numpy(self.weights[client])
        models = self.personal[list(self.offers[client])]
        if self.form == "weighted":
            return weighted_sum(models, weights)
        before = self.before[client]
        return before + weighted_sum(models - before, weights)

    def order(self, t: int, candidates: IntArray) -> Order:
        clients = self.invited(t, candidates)
        start = self.personal[torch.from_numpy(clients)]
        for position, client in enumerate(clients.tolist()):
            if client in self.starts:
                start[position] = self.starts[client]
        self.began = dict(zip(clients.tolist(), start, strict=True))
        return Order(t, clients, start, self.setting.work, held=True, holdout=self.holdout)

    def received(self, clients: IntArray) -> Tensor | None:
        return torch.stack([self.began[client] for client in clients.tolist()]) if len(clients) else None

    def absorb(self, t: int, replies: Replies) -> None:
        super().absorb(t, replies)
        self.before = self.before.to(self.personal.device)
        for client in replies.clients.tolist():
            self.before[client] = self.began[client]
        self.known[replies.clients] = True
        self.began = {}

    def figures(self) -> dict[str, object]:
        """Return how many clients mixed models, and the mean weight of their own."""
        own = [
            float(weights[self.offers[client].index(client)]) if client in self.offers[client] else 0.0
            for client, weights in self.weights.items()
        ]
        return {"mixed": len(own), "own_weight": float(np.mean(own)) if own else None}

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "before": self.before,
            "preference": self.preference.copy(),
            "known": self.known,
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.before = on_saved_device(state["before"], state)
        self.preference = np.array(state["preference"], dtype=np.float64)
        self.known = np.array(state["known"], dtype=bool)
