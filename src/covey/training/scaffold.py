"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates take out clients' drift.

Each client keeps c_k, the mean gradient of its last visit, and corrects every gradient by c - c_k. It sends the length
A of its steps (K·η in the paper), from which the server computes how c_k changed.
"""

from typing import Literal

import torch
from torch import Tensor

from covey.arrays import State
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.core.trainer import MODEL, Batch, LocalClient, Net, Trainer, Values, answers
from covey.model.trees import Tree, map_tree
from covey.registries import trainers


@trainers.add("scaffold")
class Scaffold(Trainer):
    """Corrects clients' drift by control variates: the mean gradient of all clients less their own.

    Every client counts alike in c, and so it does in the paper's mean of models, which the method `scaffold` takes.
    With another selector, say `aggregator.weighted=false` too: `average` weighs models by samples unless told.

    mean: over which clients c is taken. With `seen` a client is not corrected on its first visit. With `all`, as in the
        paper, clients that were never invited count as zero, and a client is corrected by c on its first visit.
    """

    sent = {"c": MODEL}
    kept = {"c": MODEL}
    replied = {"length": ()}
    aggregators = ("average",)
    needs_length = True

    def __init__(self, *, mean: Literal["seen", "all"] = "seen") -> None:
        self.mean = mean

    def client_step(self, w: Tree, batch: Batch, client: LocalClient, carry: Values, net: Net) -> tuple[Tree, Values]:
        gradient = net.gradient(w, batch)
        # Line 10: y ← y - η(g(y) - c_k + c).
        return map_tree(lambda g, change: g + change, gradient, self._correction(client)), carry

    def client_final(self, w: Tree, client: LocalClient, carry: Values) -> tuple[Values, Values]:
        # Line 12, option II: c_k⁺ = c_k - c + (x - y)/A.
        change = self._correction(client)
        own = {name: (start - w[name]) / client.length - change[name] for name, start in client.received.items()}
        return {"length": client.length}, {"c": own}

    def _correction(self, client: LocalClient) -> Tree:
        """Return c - c_k."""
        counts = 1.0 if self.mean == "all" else (client.age > 0).to(client.length.dtype)
        return map_tree(lambda c, own: counts * (c - own), client.sent["c"], client.kept["c"])

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._sum = torch.zeros(setting.layout.trainable, dtype=torch.float64)
        self._seen: set[int] = set()

    def send(self, t: int, model: Tensor) -> dict[str, Tensor]:
        return {"c": self._mean(model)}

    def _mean(self, model: Tensor) -> Tensor:
        """Return c: Σ c_k over the clients seen, over their number or that of all clients."""
        return (self._sum / (self.setting.clients if self.mean == "all" else max(1, len(self._seen)))).to(model)

    def finish(self, t: int, model: Tensor, found: Tensor, replies: Replies) -> Tensor:
        size = self.setting.layout.trainable
        lengths = answers(replies)["length"].to(model).double()[:, None]
        moved = (model[:size] - replies.states[:, :size].to(model)).double()
        # Lines 16 and 17: Σ(c_k⁺ - c_k), where a client that was not corrected keeps its mean gradient itself.
        corrected = sum(self.mean == "all" or client in self._seen for client in replies.clients.tolist())
        change = (moved / lengths).sum(dim=0) - corrected * self._mean(model).double()
        self._sum = self._sum.to(model.device) + change
        self._seen.update(replies.clients.tolist())
        return found

    def state_dict(self) -> State:
        return {"sum": self._sum, "seen": sorted(self._seen)}

    def load_state_dict(self, state: State) -> None:
        self._sum, self._seen = state["sum"], set(state["seen"])
