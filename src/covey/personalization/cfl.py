"""Clustered federated learning (Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization under Privacy Constraints", 2019).

All clients start in one cluster with one model. If a cluster's model has become stationary while single clients still
have large updates, its clients need different models: it is split in two by the directions of their updates, and so on.
"""

import math

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from torch import Tensor

from covey.aggregation.average import weighted_sum
from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Setting
from covey.core.messages import Order
from covey.core.probation import Probation
from covey.core.replies import Replies
from covey.errors import require
from covey.personalization.per_client import ManyModel, Participation, on_saved_device
from covey.registries import manymodels

_COLUMNS = 1 << 18
"""Parameters that are multiplied at a time, in double precision."""


@manymodels.add("cfl")
class CFL(ManyModel):
    """Trains one model per cluster of clients, and splits clusters whose clients' updates disagree (CFL).

    Every round clients train from their cluster's model θ_c, and Δθ_i are their updates. A cluster c is split if
    ‖Σ_{i∈c} (n_i/n_c) Δθ_i‖ < ε1 and max_{i∈c} ‖Δθ_i‖ > ε2 (eq. 31, 32), by complete linkage on minus the cosines of
    the updates, into the two clusters at the top. Then each cluster's model takes the mean update of its members.

    A cluster's model takes the updates of those members that took part in the round. Only the test and the split use
    the last updates of absent members, and wait until every member has sent one since the cluster was formed. With
    everyone in every round this is the original.

    epsilon1, epsilon2: the thresholds; 0.4 and 1.6 if not given. They are norms of whole updates and so belong to one
        model, one learning rate and one number of local steps (the authors' convolutional net): compare them with the
        norms in the records' figures first.
    relative: thresholds without a unit, which carry over from model to model: ε1 as a share of the cluster's largest
        ‖Δθ_i‖, and ε2 as a share of the largest so far of any client; 0.25 and 0.5 if not given. The updates of clients
        of one kind all become small with time, those of different kinds never do.
    gamma: split only if √((1 - α)/2) > γ, α the largest cosine between members on different sides (Algorithm 2).
    min_size: clusters with fewer members are not split.
    warm_up: rounds before the first split.
    weighted: true weighs clients by their samples in means, as in the paper; the authors' code takes plain means.
    participation: all reachable clients, or a cohort of them.
    """

    def __init__(
        self,
        setting: Setting,
        model: Tensor,
        *,
        epsilon1: float | None = None,
        epsilon2: float | None = None,
        relative: bool = False,
        gamma: float = 0.0,
        min_size: int = 3,
        warm_up: int = 20,
        weighted: bool = True,
        participation: Participation = "all",
    ) -> None:
        super().__init__(setting, participation)
        usual = (0.25, 0.5) if relative else (0.4, 1.6)
        self.epsilon1 = usual[0] if epsilon1 is None else epsilon1
        self.epsilon2 = usual[1] if epsilon2 is None else epsilon2
        require(self.epsilon1 >= 0, f"many.epsilon1 must not be negative, not {self.epsilon1:g}.")
        require(self.epsilon2 >= 0, f"many.epsilon2 must not be negative, not {self.epsilon2:g}.")
        require(0 <= gamma < 1, f"many.gamma must be in [0, 1), not {gamma:g}.")
        require(min_size >= 2, f"many.min_size must be at least 2, not {min_size}.")
        require(warm_up >= 0, f"many.warm_up must not be negative, not {warm_up}.")
        self.relative = relative
        self.gamma = gamma
        self.min_size = min_size
        self.warm_up = warm_up
        self.weighted = weighted
        self.cluster = np.zeros(setting.clients, dtype=np.int64)
        """`[clients]`: the cluster of each client."""
        self.centres = model[None]
        """`[clusters, d]`: θ_c."""
        self.updates = model.new_zeros(setting.clients, setting.layout.trainable)
        """`[clients, parameters]`: the last Δθ_i, without batch-norm statistics."""
        self.samples = np.zeros(setting.clients, dtype=np.int64)
        """`[clients]`: n_i as last reported; 0 without an update since the client's cluster was formed."""
        self.scale = 0.0
        """The largest norm of an update so far."""
        self.norms: list[dict[str, float | None]] = []
        self.probation = Probation(setting.limits.on)

    def order(self, t: int, candidates: IntArray) -> Order:
        clients = self.invited(t, candidates)
        start = self.received(clients)
        assert start is not None
        return Order(t, clients, start, self.setting.work)

    def received(self, clients: IntArray) -> Tensor | None:
        return self.centres[0] if len(self.centres) == 1 else self.centres[torch.from_numpy(self.cluster[clients])]

    def absorb(self, t: int, replies: Replies) -> None:
        trained = set(self.cluster[replies.clients].tolist())
        if back := self.probation.taken_back(t, trained, replies.faults, self.cluster):
            self.centres = torch.stack(
                [back.get(number, centre).to(centre) for number, centre in enumerate(self.centres)]
            )
        if not len(replies):
            return
        device = replies.states.device
        self.centres, self.updates = self.centres.to(device), self.updates.to(device)
        clients = torch.from_numpy(replies.clients)
        changes = replies.states - self.centres[torch.from_numpy(self.cluster[replies.clients])]
        self.updates[clients] = changes[:, : self.setting.layout.trainable]
        self.scale = max(self.scale, float(self.updates[clients].norm(dim=1).max()))
        self.samples[replies.clients] = replies.samples.numpy()
        self._split_clusters(t)
        # A new tensor, as orders still refer to the old one.
        before, self.centres = self.centres, self.centres.clone()
        for cluster in np.unique(self.cluster[replies.clients]).tolist():
            present = np.flatnonzero(self.cluster[replies.clients] == cluster)
            weights = self._weights(replies.samples.numpy()[present])
            self.centres[cluster] += weighted_sum(changes[torch.from_numpy(present)], torch.from_numpy(weights))
            self.probation.note(cluster, before[cluster], self.centres[cluster])

    def _split_clusters(self, t: int) -> None:
        """Test every cluster whose members have all sent an update (eq. 31, 32), and split it if it is torn."""
        self.norms = []
        for cluster in range(len(self.centres)):
            members = np.flatnonzero(self.cluster == cluster)
            if (self.samples[members] == 0).any():
                self.norms.append({"mean": None, "max": None})
                continue
            updates = self.updates[torch.from_numpy(members)]
            weights = torch.from_numpy(self._weights(self.samples[members]))
            mean = float(weighted_sum(updates, weights).norm())
            largest = float(updates.norm(dim=1).max())
            self.norms.append({"mean": mean, "max": largest})
            units = (largest, self.scale) if self.relative else (1.0, 1.0)
            torn = mean < self.epsilon1 * units[0] and largest > self.epsilon2 * units[1]
            if torn and len(members) >= self.min_size and t > self.warm_up:
                self._split(cluster, members)

    def _split(self, cluster: int, members: IntArray) -> None:
        """Split a cluster in two, unless its halves are alike; the half without its first client is a new cluster."""
        similarity = cosines(self.updates[torch.from_numpy(members)])
        stay, leave = bipartition(similarity)
        if math.sqrt(max(0.0, 1 - similarity[np.ix_(stay, leave)].max()) / 2) <= self.gamma:
            return
        # `stay` and `leave` are positions within the cluster.
        self.cluster[members[leave]] = len(self.centres)
        self.centres = torch.cat([self.centres, self.centres[cluster][None]])
        self.samples[members] = 0

    def _weights(self, samples: IntArray) -> FloatArray:
        counts = samples.astype(np.float64) if self.weighted else np.ones(len(samples))
        weights: FloatArray = counts / counts.sum()
        return weights

    def figures(self) -> dict[str, object]:
        """Return the clusters, their sizes, and the norms of the test (of the clusters before a split)."""
        sizes = np.bincount(self.cluster, minlength=len(self.centres))
        back = {"rolled_back": True} if self.probation.back else {}
        return {"clusters": len(self.centres), "sizes": sizes.tolist(), "norms": self.norms, **back}

    def models(self) -> Tensor:
        return self.centres

    @property
    def model_of_client(self) -> IntArray:
        return self.cluster

    def state_dict(self) -> State:
        return {
            "cluster": self.cluster.copy(),
            "centres": self.centres,
            "updates": self.updates,
            "samples": self.samples.copy(),
            "scale": self.scale,
            "device": str(self.centres.device),
            **self.guard.saved(self.setting.work),
            **self.probation.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.guard.recall(state, self.setting.work)
        self.probation.load_state_dict(state)
        self.cluster = np.array(state["cluster"], dtype=np.int64)
        self.centres = on_saved_device(state["centres"], state)
        self.updates = on_saved_device(state["updates"], state)
        self.samples = np.array(state["samples"], dtype=np.int64)
        self.scale = float(state["scale"])


def cosines(updates: Tensor) -> FloatArray:
    """Return the cosines between updates `[k, p]`: `[k, k]`."""
    products = np.zeros((len(updates), len(updates)))
    for at in range(0, updates.shape[1], _COLUMNS):
        part = updates[:, at : at + _COLUMNS].double()
        products += (part @ part.t()).cpu().numpy()
    norms = np.sqrt(np.diag(products)).clip(min=1e-12)
    similarity: FloatArray = (products / np.outer(norms, norms)).clip(-1, 1)
    return similarity


def bipartition(similarity: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the two top clusters of complete linkage on minus the similarity `[k, k]`: positions, ascending.

    The first holds position 0.
    """
    apart = 1 - similarity[np.triu_indices(len(similarity), 1)]
    side = cut_tree(linkage(apart, method="complete"), n_clusters=[2])[:, 0]
    return np.flatnonzero(side == side[0]), np.flatnonzero(side != side[0])
