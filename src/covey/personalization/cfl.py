"""Clustered federated learning (Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization under Privacy Constraints", 2019).

All clients begin as one cluster with one model. Where a cluster's model has come to rest although single clients still
pull at it, its clients want different models: it is cut in two by the directions of their updates, and so on.
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
from covey.core.replies import Replies
from covey.errors import require
from covey.personalization.per_client import ManyModel, Participation, brought_back
from covey.registries import manymodels

_COLUMNS = 1 << 18
"""Parameters whose products are summed at a time, in double precision."""


@manymodels.add("cfl")
class CFL(ManyModel):
    """Clusters of clients, each with a model; one whose clients pull apart is cut in two.

    Every round clients train from their cluster's model θ_c, and Δθ_i is what they change. A cluster c is cut if
    ‖Σ_{i∈c} (n_i/n_c) Δθ_i‖ < ε1 and max_{i∈c} ‖Δθ_i‖ > ε2 (eq. 31, 32), by complete linkage on minus the cosines of
    the updates, into the two clusters at the top. Then each cluster's model takes the mean update of its members.

    A cluster is trained by those of its members that took part in the round, by what they have just sent. Only the
    test and the cut look at the last update of members that were absent, and wait until every member has sent one
    since the cluster came to be. With everyone in every round this is the original.

    epsilon1, epsilon2: the thresholds; 0.4 and 1.6 where not given. They are norms of whole updates and so belong to
        one model, one learning rate and one number of local steps (the authors' convolutional net): look at the norms
        in the records' figures before you believe them.
    relative: thresholds without a unit, which carry over from model to model: ε1 as a share of the cluster's largest
        ‖Δθ_i‖, and ε2 as a share of the largest that anybody has ever sent; 0.25 and 0.5 where not given. Clients of
        one kind come to rest together, so that all their updates become small, and those of different kinds never.
    gamma: cut only where √((1 - α)/2) > γ, α the largest cosine between members on different sides (Algorithm 2).
    min_size: clusters with fewer members are not cut.
    warm_up: rounds before the first cut.
    weighted: whether means weigh clients by their samples, as in the paper; the authors' code takes plain means.
    participation: all who can be reached, or a cohort of them.
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
        """`[clients]`: which cluster each belongs to."""
        self.centres = model[None]
        """`[clusters, d]`: θ_c."""
        self.updates = model.new_zeros(setting.clients, setting.layout.trainable)
        """`[clients, parameters]`: the last Δθ_i of each, of parameters and not of batch-norm statistics."""
        self.samples = np.zeros(setting.clients, dtype=np.int64)
        """`[clients]`: n_i as last reported; 0 for those without an update since their cluster came to be."""
        self.scale = 0.0
        """The largest norm of an update so far."""
        self.norms: list[dict[str, float | None]] = []

    def order(self, t: int, candidates: IntArray) -> Order:
        clients = self.invited(t, candidates)
        start = self.centres[0] if len(self.centres) == 1 else self.centres[torch.from_numpy(self.cluster[clients])]
        return Order(t, clients, start, self.setting.work)

    def absorb(self, t: int, replies: Replies) -> None:
        if not len(replies):
            return
        device = replies.states.device
        self.centres, self.updates = self.centres.to(device), self.updates.to(device)
        clients = torch.from_numpy(replies.clients)
        changes = replies.states - self.centres[torch.from_numpy(self.cluster[replies.clients])]
        self.updates[clients] = changes[:, : self.setting.layout.trainable]
        self.scale = max(self.scale, float(self.updates[clients].norm(dim=1).max()))
        self.samples[replies.clients] = replies.samples.numpy()
        self._part(t)
        # A new tensor, as orders hold on to the old one.
        self.centres = self.centres.clone()
        for cluster in np.unique(self.cluster[replies.clients]).tolist():
            present = np.flatnonzero(self.cluster[replies.clients] == cluster)
            weights = self._weights(replies.samples.numpy()[present])
            self.centres[cluster] += weighted_sum(changes[torch.from_numpy(present)], torch.from_numpy(weights))

    def _part(self, t: int) -> None:
        """Test every cluster of which all members have sent an update, and cut it where it fails."""
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
                self._cut(cluster, members)

    def _cut(self, cluster: int, members: IntArray) -> None:
        """Cut a cluster in two, unless its halves are alike; the half without its first client is a new cluster."""
        similarity = cosines(self.updates[torch.from_numpy(members)])
        stay, leave = bipartition(similarity)
        if math.sqrt(max(0.0, 1 - similarity[np.ix_(stay, leave)].max()) / 2) <= self.gamma:
            return
        # Positions within the cluster are clients only by way of its members.
        self.cluster[members[leave]] = len(self.centres)
        self.centres = torch.cat([self.centres, self.centres[cluster][None]])
        self.samples[members] = 0

    def _weights(self, samples: IntArray) -> FloatArray:
        counts = samples.astype(np.float64) if self.weighted else np.ones(len(samples))
        weights: FloatArray = counts / counts.sum()
        return weights

    def figures(self) -> dict[str, object]:
        """Clusters and their sizes, and the norms that the test looked at (of the clusters before a cut)."""
        sizes = np.bincount(self.cluster, minlength=len(self.centres))
        return {"clusters": len(self.centres), "sizes": sizes.tolist(), "norms": self.norms}

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
        }

    def load_state_dict(self, state: State) -> None:
        self.cluster = np.array(state["cluster"], dtype=np.int64)
        self.centres = brought_back(state["centres"], state)
        self.updates = brought_back(state["updates"], state)
        self.samples = np.array(state["samples"], dtype=np.int64)
        self.scale = float(state["scale"])


def cosines(updates: Tensor) -> FloatArray:
    """Cosines of the angles between updates `[k, p]`: `[k, k]`."""
    products = np.zeros((len(updates), len(updates)))
    for at in range(0, updates.shape[1], _COLUMNS):
        part = updates[:, at : at + _COLUMNS].double()
        products += (part @ part.t()).cpu().numpy()
    norms = np.sqrt(np.diag(products)).clip(min=1e-12)
    similarity: FloatArray = (products / np.outer(norms, norms)).clip(-1, 1)
    return similarity


def bipartition(similarity: FloatArray) -> tuple[IntArray, IntArray]:
    """The two clusters at the top of complete linkage on minus the similarity `[k, k]`: positions, ascending.

    The first holds position 0.
    """
    apart = 1 - similarity[np.triu_indices(len(similarity), 1)]
    side = cut_tree(linkage(apart, method="complete"), n_clusters=[2])[:, 0]
    return np.flatnonzero(side == side[0]), np.flatnonzero(side != side[0])
