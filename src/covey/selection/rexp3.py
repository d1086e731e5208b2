"""Rexp3 (Besbes, Gur and Zeevi, "Stochastic Multi-Armed-Bandit Problem with Non-stationary Rewards", NeurIPS 2014).

FedACS's paper runs it on FedACS's rewards (section VII), so that any difference is due to the bandit.
"""

import math

import numpy as np
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Selector, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.insight import Insight, vectors
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.fedacs import skewness_scores, usable_insights
from covey.selection.update_insight import UPDATE, direction_scores, update_directions


@selectors.add("rexp3")
class Rexp3(Selector):
    """Runs Exp3 on FedACS's skewness rewards, restarted every `batch` rounds because rewards drift (Rexp3).

    Clients are arms with weights w_i = 1 at the start of each batch. A cohort is drawn without replacement, one client
    after another, by

        p_i = (1-γ) w_i / Σ w + γ/N,

    over the reachable clients. Each client of the cohort with an insight has the reward R_i = -Q_i (FedACS, eq. 16),
    scaled to r_i in [0, 1] by the least and the greatest reward of this batch, and its weight becomes
    w_i · exp(γ r_i / (p_i N)). A single insight equals its own mean and carries no information, so it is not used.

    batch: Δ, rounds between two restarts. 250 is FedACS's value; its authors' code never advances the counter and so
        never restarts.
    exploration: γ, the share of invitations that is uniform.
    variation: V_T, by how much the best mean reward may change over the run (at most its number of rounds). If given,
        it decides both of the above: Δ = ⌈(N ln N)^(1/3) (T/V_T)^(2/3)⌉ and γ = min(1, √(N ln N / ((e-1) Δ))). They
        depend on T, so a run that is resumed with more rounds is tuned anew from there, and differs from one that
        started with as many; `batch` and `exploration` do not depend on T.
    insight: head (last layer), full (all parameters) or package.module:function. update asks clients for nothing: the
        skew is estimated from the directions of their last layers' updates, also for clients without Covey.
    """

    log_weights: FloatArray
    """`[clients]`: ln w_i, since the weights themselves may overflow."""
    least: float | None
    """The least reward of the present batch; None before the first."""
    greatest: float | None

    def __init__(
        self, *, batch: int = 250, exploration: float = 0.2, variation: float | None = None, insight: str = "head"
    ) -> None:
        require(batch >= 1, f"selector.batch must be at least 1 round, not {batch}.")
        require(0 < exploration <= 1, f"selector.exploration is a fraction in (0, 1], not {exploration:g}.")
        require(variation is None or variation > 0, f"selector.variation must be above 0, not {variation}.")
        self.batch = batch
        self.exploration = exploration
        self.variation = variation
        self.depends_on_rounds = variation is not None
        self.insight = insight

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        if self.variation is not None:
            require(
                self.variation <= setting.rounds,
                f"selector.variation = {self.variation:g} is more than rewards in [0, 1] can change in "
                f"{setting.rounds} rounds: give at most {setting.rounds}.",
            )
            self.batch, self.exploration = tuned(setting.clients, setting.rounds, self.variation)
        self.probe = None if self.insight == UPDATE else Insight(rate=setting.work.rate, kind=self.insight)
        if self.probe is None:
            setting.layout.require_head("The selector 'rexp3' (insight=update)")
        else:
            self.probe.require_head(setting.layout, "The selector 'rexp3'")
        self._start: Tensor | None = None
        """The model that the round's clients received."""
        self._reach = 1.0
        """Sum of p_i over the clients that the last cohort was drawn from."""
        self._restart(0)

    def probes(self, t: int) -> tuple[Probe, ...]:
        return () if self.probe is None else (self.probe,)

    def select(self, t: int, candidates: IntArray) -> IntArray:
        self._enter(t)
        rng = generator(self.setting.seed, t, "cohort")
        chances = self.probabilities()[candidates]
        self._reach = float(chances.sum())
        size = min(self.setting.cohort, len(candidates))
        return np.asarray(rng.choice(candidates, size=size, replace=False, p=chances / self._reach))

    def probabilities(self) -> FloatArray:
        """Return p_i, the probability of each client to be drawn first if all are reachable: `[clients]`."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        mixed: FloatArray = (1 - self.exploration) * weights / weights.sum() + self.exploration / len(weights)
        return mixed

    def sent(self, t: int, model: Tensor) -> None:
        self._start = model

    def observe(self, t: int, replies: Replies) -> None:
        if self.probe is not None:
            clients, samples, fields = usable_insights(replies, self.probe.name)
        else:
            clients, samples, fields = update_directions(replies, self._start, self.setting.layout)
        scored = direction_scores if self.probe is None else skewness_scores
        if len(clients):
            self.learn(t, clients, -scored(vectors(fields), samples))

    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Update the weights by rewards `[k]` of invited clients, each divided by its probability (Exp3)."""
        self._enter(t)
        self.least = float(rewards.min()) if self.least is None else min(self.least, float(rewards.min()))
        self.greatest = float(rewards.max()) if self.greatest is None else max(self.greatest, float(rewards.max()))
        span = self.greatest - self.least
        # While all rewards are equal, each is neither good nor bad.
        scaled = (rewards - self.least) / span if span > 0 else np.full(len(rewards), 0.5)
        estimates = scaled / (self.probabilities()[clients] / self._reach)
        self.log_weights[clients] += self.exploration * estimates / len(self.log_weights)

    def state_dict(self) -> State:
        return {
            "log_weights": self.log_weights.copy(),
            "least": self.least,
            "greatest": self.greatest,
            "batches": self.batches,
        }

    def load_state_dict(self, state: State) -> None:
        self.log_weights = np.array(state["log_weights"], dtype=np.float64)
        self.least = state["least"]
        self.greatest = state["greatest"]
        self.batches = int(state["batches"])

    def _enter(self, t: int) -> None:
        """Restart if the round is the first of a batch."""
        batches = (t - 1) // self.batch
        if batches != self.batches:
            self._restart(batches)

    def _restart(self, batches: int) -> None:
        self.batches = batches
        self.log_weights = np.zeros(self.setting.clients)
        self.least = self.greatest = None


def tuned(clients: int, rounds: int, variation: float) -> tuple[int, float]:
    """Return Δ and γ for N clients, T rounds and the variation V_T (Besbes et al., Theorem 2)."""
    arms = clients * math.log(clients)
    batch = max(1, math.ceil(arms ** (1 / 3) * (rounds / variation) ** (2 / 3)))
    return batch, min(1.0, math.sqrt(arms / ((math.e - 1) * batch)))
