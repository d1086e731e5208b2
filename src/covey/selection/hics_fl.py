"""HiCS-FL (Chen and Vikalo, "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID Federated
Learning", NeurIPS 2024, Algorithm 1): clusters of clients by what their training does to the bias of the last layer.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.bias_updates import BiasUpdates
from covey.selection.oort import weighted_draw

PAPER_TEMPERATURE, PAPER_LENGTH = 0.0025, 0.038
"""T on Fashion-MNIST, and the sum of rates of its clients there: 2 epochs of 19 batches at a rate of 0.001."""

_MOST_CLIENTS = 5_000
"""Clustering takes a distance for each pair of clients."""


@selectors.add("hics-fl")
class HiCSFL(Selector):
    """Samples clusters of clients, at first those with balanced classes, by updates of the last layer's bias (HiCS-FL).

    In the first rounds everyone is invited once. Then each round estimates every client's heterogeneity by the entropy
    of its bias's update, Ĥ = H(softmax(Δb/T)) (equation 7), and clusters clients by Ward's method with the distance

        arccos(Δb·Δb' / |Δb||Δb'|) + λ·|Ĥ - Ĥ'|                                                 (equation 9).

    A cluster is drawn with π ∝ exp(γ_t·mean Ĥ), γ_t = γ0(1 - t/rounds), and a client of it in proportion to its samples
    (equation 10), until the cohort is full. Clients that do not answer keep Δb = 0, as at the start.

    temperature: T. The paper has 0.0025 where the rates of a client's steps sum to 0.038; none scales it with the sum
        of rates here, as Δb does.
    distance: λ; the paper has 10.
    anneal: γ0; the paper has 4.
    clusters: number of clusters; none is as many as a cohort has clients, as in the paper.
    """

    depends_on_rounds = True
    needs_classes = True

    def __init__(
        self,
        *,
        temperature: float | None = None,
        distance: float = 10.0,
        anneal: float = 4.0,
        clusters: int | None = None,
    ) -> None:
        require(
            temperature is None or temperature > 0, f"selector.temperature must be above 0, or none, not {temperature}."
        )
        require(distance >= 0, f"selector.distance must not be negative, not {distance:g}.")
        require(anneal >= 0, f"selector.anneal must not be negative, not {anneal:g}.")
        require(clusters is None or clusters >= 1, f"selector.clusters must be at least 1, or none, not {clusters}.")
        self.temperature = temperature
        self.distance = distance
        self.anneal = anneal
        self.clusters = clusters

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            setting.clients <= _MOST_CLIENTS,
            f"hics-fl compares all pairs of clients, and takes at most {_MOST_CLIENTS:,} clients, not "
            f"{setting.clients:,}.",
        )
        self.updates = BiasUpdates(setting)
        self.changes: FloatArray = np.zeros((setting.clients, setting.classes))
        """`[clients, classes]`: Δb of the last answer."""
        self.sizes: FloatArray = np.zeros(setting.clients)
        """`[clients]`: samples; 0 is unknown."""
        self.visited: NDArray[np.bool_] = np.zeros(setting.clients, dtype=np.bool_)
        """`[clients]`: True if the client was ever invited; the others are S_0."""

    def select(self, t: int, candidates: IntArray) -> IntArray:
        rng = generator(self.setting.seed, t, "cohort")
        size = min(self.setting.cohort, len(candidates))
        # Lines 3 and 4.
        new = candidates[~self.visited[candidates]]
        cohort = np.asarray(rng.choice(new, size=min(size, len(new)), replace=False))
        if len(cohort) < size:
            others = candidates[self.visited[candidates]]
            # Lines 6 to 12. Drawing a client again and again until it is new is a draw without replacement.
            drawn = weighted_draw(rng, others, self.chances(t, others), size - len(cohort))
            cohort = np.concatenate([cohort, drawn])
        self.visited[cohort] = True
        return cohort

    def chances(self, t: int, clients: IntArray) -> FloatArray:
        """Return π of each client's cluster times its share of the cluster's samples (equation 10): `[k]`."""
        entropies = self.entropies(clients)
        groups = self.grouped(clients, entropies)
        gamma = self.anneal * (1 - min(t / self.setting.rounds, 1.0))
        sizes = np.where(self.sizes[clients] > 0, self.sizes[clients], 1.0)
        names, members = np.unique(groups, return_inverse=True)
        means = np.bincount(members, weights=entropies) / np.bincount(members)
        weights = np.exp(gamma * (means - means.max()))
        chances: FloatArray = (weights / weights.sum())[members] * sizes
        chances /= np.bincount(members, weights=sizes, minlength=len(names))[members]
        return chances

    def entropies(self, clients: IntArray) -> FloatArray:
        """Return Ĥ of clients (equation 7): `[k]`."""
        scaled = self.changes[clients] / self._temperature()
        powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        found: FloatArray = -(shares * logarithms).sum(axis=1)
        return found

    def _temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        known = self.sizes[self.sizes > 0]
        length = self.updates.length(float(known.mean())) if len(known) else PAPER_LENGTH
        return PAPER_TEMPERATURE * length / PAPER_LENGTH

    def grouped(self, clients: IntArray, entropies: FloatArray) -> IntArray:
        """Return each client's cluster by Ward's method and the distance of equation 9: `[k]`."""
        number = self.clusters or self.setting.cohort
        if len(clients) <= number:
            return np.arange(len(clients))
        changes = self.changes[clients]
        lengths = np.sqrt(np.square(changes).sum(axis=1))
        units = np.divide(changes, lengths[:, None], out=np.zeros_like(changes), where=lengths[:, None] > 0)
        # einsum adds in the same order on any number of threads.
        angles = np.arccos(np.clip(np.einsum("ic,jc->ij", units, units), -1.0, 1.0))
        distances = angles + self.distance * np.abs(entropies[:, None] - entropies[None])
        np.fill_diagonal(distances, 0.0)
        tree = linkage(squareform(np.round(distances, 9), checks=False), method="ward")
        found: IntArray = fcluster(tree, number, criterion="maxclust").astype(np.int64)
        return found

    def sent(self, t: int, model: Tensor) -> None:
        self.updates.sent(model)

    def observe(self, t: int, replies: Replies) -> None:
        self.sizes[replies.clients] = replies.samples.double().numpy()
        clients, changes, _ = self.updates.of(replies)
        self.changes[clients] = changes

    def figures(self) -> dict[str, object]:
        known = np.flatnonzero(self.sizes > 0)
        mean = float(self.entropies(known).mean()) if len(known) else math.nan
        return {"mean_entropy": mean} if math.isfinite(mean) else {}

    def state_dict(self) -> State:
        return {"changes": self.changes.copy(), "sizes": self.sizes.copy(), "visited": self.visited.copy()}

    def load_state_dict(self, state: State) -> None:
        self.changes = np.array(state["changes"], dtype=np.float64)
        self.sizes = np.array(state["sizes"], dtype=np.float64)
        self.visited = np.array(state["visited"], dtype=np.bool_)
