"""FedCor (Tang et al., "FedCor: Correlation-Based Active Client Selection Strategy for Heterogeneous Federated
Learning", CVPR 2022, Algorithm 1): the clients whose training should lower everyone's loss most.
"""

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.losses import Utility
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.loss_process import LossProcess

_MOST_CLIENTS = 2_000
"""The covariance has an entry for each pair of clients."""


@selectors.add("fedcor")
class FedCor(Selector):
    """Models how clients' losses change together, and invites those that should lower the loss of all most (FedCor).

    The changes of all clients' losses in a round are a Gaussian process with the covariance K = XᵀX + σ², where each
    client has a column of X (`LossProcess`). In the first rounds cohorts are uniform, all clients that can be reached
    tell their loss in every round, and K is fitted to the changes. After that, each place of a cohort goes to

        argmax_k α_k·Σ_i p_i·Σ_ik / √Σ_kk                                                       (equation 11),

    with p_i the client's share of samples; Σ is K at first, and then its posterior given the clients chosen so far.
    α_k = β^(times that k was chosen since the last fit). Every `interval` rounds a cohort is uniform again, all tell
    their loss before and after it, and K is fitted anew. (The authors train that cohort beside the run and throw its
    model away; here it is a round as any other.)

    warmup: rounds of uniform cohorts at the start; the paper has 15 on Fashion-MNIST and 20 on CIFAR-10.
    interval: rounds between fits; 10 and 50.
    discount: β, the annealing coefficient.
    dimension: length of a client's column of X.
    memory: weight of the changes of earlier rounds in a fit, by the power of their age in rounds; 0.95 and 0.99.
    """

    def __init__(
        self, *, warmup: int = 20, interval: int = 50, discount: float = 0.9, dimension: int = 15, memory: float = 0.99
    ) -> None:
        require(warmup >= 1, f"selector.warmup must be at least 1, not {warmup}.")
        require(interval >= 2, f"selector.interval must be at least 2, not {interval}.")
        require(0 < discount <= 1, f"selector.discount is a fraction in (0, 1], not {discount:g}.")
        require(dimension >= 1, f"selector.dimension must be at least 1, not {dimension}.")
        require(0 < memory <= 1, f"selector.memory is a fraction in (0, 1], not {memory:g}.")
        self.warmup = warmup
        self.interval = interval
        self.discount = discount
        self.dimension = dimension
        self.memory = memory

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        require(
            setting.clients <= _MOST_CLIENTS,
            f"fedcor keeps a covariance of all pairs of clients, and takes at most {_MOST_CLIENTS:,} clients, not "
            f"{setting.clients:,}.",
        )
        rng = generator(setting.seed, "fedcor")
        self.process = LossProcess(rng, setting.clients, self.dimension, self.memory)
        self.losses: FloatArray = np.full(setting.clients, np.nan)
        """`[clients]`: losses of the last survey; NaN is unknown."""
        self.asked_in = 0
        """Round of the last survey."""
        self.chosen: IntArray = np.zeros(setting.clients, dtype=np.int64)
        """`[clients]`: times that the client was chosen since the last fit."""
        self.sizes: FloatArray = np.zeros(setting.clients)
        """`[clients]`: samples; 0 is unknown."""

    def explores(self, t: int) -> bool:
        """True if the cohort of round `t` is uniform, and the losses around it are learned from."""
        return t <= self.warmup or t % self.interval == 0

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]] | None:
        return (candidates, (Utility(),)) if self.explores(t) or (t > 1 and self.explores(t - 1)) else None

    def surveyed(self, t: int, replies: Replies) -> None:
        self.sizes[replies.clients] = replies.samples.double().numpy()
        rows = replies.observed(Utility.name)
        losses = np.full(self.setting.clients, np.nan)
        if len(rows):
            losses[replies.clients[rows]] = replies.probes[Utility.name]["loss"].double().numpy()[rows]
        before, self.losses = self.losses, losses
        if self.asked_in == t - 1 and self.explores(t - 1):
            self.process.learn(t - 1, losses - before)
            if t - 1 >= self.warmup:
                self.process.fit(t - 1, steps=1000 if t - 1 == self.warmup else 100)
                self.chosen[:] = 0
        self.asked_in = t

    def select(self, t: int, candidates: IntArray) -> IntArray:
        size = min(self.setting.cohort, len(candidates))
        if self.explores(t) or not self.process.fitted:
            rng = generator(self.setting.seed, t, "cohort")
            return np.asarray(rng.choice(candidates, size=size, replace=False))
        known = self.sizes[candidates]
        mean = known[known > 0].mean() if (known > 0).any() else 1.0
        weights = np.where(known > 0, known, mean)
        alphas = self.discount ** self.chosen[candidates].astype(np.float64)
        places = most_helpful(self.process.covariance(candidates), weights / weights.sum(), alphas, size)
        cohort = candidates[places]
        self.chosen[cohort] += 1
        return cohort

    def observe(self, t: int, replies: Replies) -> None:
        self.sizes[replies.clients] = replies.samples.double().numpy()

    def state_dict(self) -> State:
        return {
            "process": self.process.state_dict(),
            "losses": self.losses.copy(),
            "asked_in": self.asked_in,
            "chosen": self.chosen.copy(),
            "sizes": self.sizes.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        self.process.load_state_dict(state["process"])
        self.losses = np.array(state["losses"], dtype=np.float64)
        self.asked_in = int(state["asked_in"])
        self.chosen = np.array(state["chosen"], dtype=np.int64)
        self.sizes = np.array(state["sizes"], dtype=np.float64)


def most_helpful(covariance: FloatArray, weights: FloatArray, alphas: FloatArray, size: int) -> list[int]:
    """Return positions chosen one after another by equation 11, each conditioning the covariance `[k, k]` of the rest.

    weights: p_i `[k]`; alphas: α_k `[k]`.
    """
    sigma, chosen = covariance.copy(), list[int]()
    left = np.ones(len(sigma), dtype=np.bool_)
    while len(chosen) < size:
        variances = np.maximum(np.diag(sigma), 1e-12)
        gains = np.where(left, alphas * np.einsum("i,ik->k", weights * left, sigma) / np.sqrt(variances), -np.inf)
        best = int(np.argmax(np.round(gains, 12)))
        chosen.append(best)
        left[best] = False
        sigma = sigma - np.outer(sigma[:, best], sigma[best]) / variances[best]
    return chosen
