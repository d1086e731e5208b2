"""FedDRL (Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive Aggregation for Non-IID Data in Federated
Learning", ICPP 2022): an agent learns how much each client's model shall count.

A round is a step of the agent. The state is what the K clients report: the loss of the model that they received (l_b)
and of the one that they trained (l_a) on their own samples, and how many those are (section 3.3.2). The action is a
Gaussian for each client, from which its impact factor is drawn (3.3.3). The reward punishes a high and an uneven loss
in the next round (3.3.4). The agent is DDPG (Lillicrap et al. 2015): a policy π, a value Q, a slowly following target
of both, and a replay buffer sampled by temporal difference (Algorithm 1).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.by_agent import ByAgent
from covey.aggregation.ddpg import Architecture, Learning, Perceptron
from covey.aggregation.impact_factors import Reported, softmax
from covey.arrays import FloatArray
from covey.core.interfaces import Setting
from covey.errors import require
from covey.registries import aggregators


@dataclass(frozen=True)
class FlatNetworks:
    """The paper's networks (Table 1, figure 3c): three linear layers on the concatenated numbers of all clients.

    Both see clients by their position, which is worth learning only where it means the same client every round.
    """

    state_size: int
    action_size: int
    hidden: int

    @property
    def _actor(self) -> Perceptron:
        return Perceptron(self.state_size, self.hidden, self.hidden, self.action_size)

    @property
    def _critic(self) -> Perceptron:
        return Perceptron(self.state_size + self.action_size, self.hidden, self.hidden, 1)

    def initial(self) -> tuple[Tensor, Tensor]:
        return self._actor.initial(0.1), self._critic.initial(0.1)

    def act(self, actor: Tensor, states: Tensor) -> Tensor:
        return torch.tanh(self._actor(actor, states))

    def value(self, critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        return self._critic(critic, torch.cat([states, actions], dim=-1)).squeeze(-1)


@aggregators.add("feddrl")
class FedDRL(ByAgent):
    """Models weighted by impact factors that a reinforcement-learning agent (DDPG) chooses from clients' losses.

    The networks have a place for each of the K clients of a round. Training is part of the round, and takes place just
    before the next decision.

    discount: γ.
    batch: experiences per step of the optimisers.
    updates: most steps per round; there are ⌊experiences/batch⌋, which the paper does not bound.
    soft: how far targets follow in each step. The paper prints the roles the other way round, which would leave no
        difference between networks and targets.
    actor_rate, critic_rate: Adam's rates.
    capacity: experiences that the replay buffer holds.
    hidden: width of the two hidden layers.
    noise, reversion: σ and θ of the Ornstein-Uhlenbeck noise on actions.
    beta: β of eq. 6, the bound of the standard deviation of an impact factor relative to its mean.
    floor: least standard deviation (unless β binds).
    order: authors softmaxes the actor's means and draws N(softmax, σ), as the authors' code does, with actions in
        [0, 1] and σ a hundredth of the actor's spread: eq. 6 has a meaning only for positive means. paper draws N(μ, σ)
        with actions in [-1, 1] and σ ≤ β|μ|, then softmaxes (eq. 5).
    renormalise: whether factors that were drawn are made to sum to one; the authors' code does not, so that the norm of
        the model jitters.
    sharpness: factor on the actor's means before the softmax. With 1 no client can count more than e times another.
    append_mean_loss: whether the state holds the mean of l_b too. Losses and samples are divided by their sums, which
        hides the level that the reward depends on.
    reward: paper is minus the mean and the range of l_b in the next round (eq. 7, negated); relative is the logarithm
        of how much smaller that sum became.
    normalise_rewards: whether rewards are scaled to mean 0 and deviation 1 of those remembered.
    agent: file of a trained agent to begin with, as written by covey train-agent.
    learn: whether the agent explores and learns in this run; a trained one may be kept as it is.
    worker: which worker of two-stage training this is; decides the noise and nothing else.
    side_thread: whether training runs beside the rounds, as in the paper, and the agent decides by what has come of it
        so far. Then a run depends on the machine's speed, and the same seed does not give the same run.
    """

    kind = "feddrl"

    def __init__(
        self,
        *,
        discount: float = 0.99,
        batch: int = 4,
        updates: int = 32,
        soft: float = 0.02,
        actor_rate: float = 1e-4,
        critic_rate: float = 1e-3,
        capacity: int = 100_000,
        hidden: int = 256,
        noise: float = 0.1,
        reversion: float = 0.1,
        beta: float = 0.1,
        floor: float = 0.001,
        order: Literal["authors", "paper"] = "authors",
        renormalise: bool = True,
        sharpness: float = 1.0,
        append_mean_loss: bool = False,
        reward: Literal["paper", "relative"] = "paper",
        normalise_rewards: bool = False,
        agent: str | None = None,
        learn: bool = True,
        worker: int = 0,
        side_thread: bool = False,
    ) -> None:
        super().__init__(
            Learning(discount, batch, updates, soft, actor_rate, critic_rate, capacity, normalise_rewards),
            noise=noise,
            reversion=reversion,
            reward=reward,
            agent=agent,
            learn=learn,
            worker=worker,
            side_thread=side_thread,
        )
        require(hidden >= 1, f"aggregator.hidden must be at least 1, not {hidden}.")
        require(0 <= beta <= 1, f"aggregator.beta is a fraction in [0, 1], not {beta:g}.")
        require(floor >= 0, f"aggregator.floor must not be negative, not {floor:g}.")
        require(order in ("authors", "paper"), f"aggregator.order is authors or paper, not '{order}'.")
        require(sharpness > 0, f"aggregator.sharpness must be above 0, not {sharpness:g}.")
        self.hidden = hidden
        self.beta = beta
        self.floor = floor
        self.order = order
        self.renormalise = renormalise
        self.sharpness = sharpness
        self.append_mean_loss = append_mean_loss

    def meaning(self) -> dict[str, Any]:
        names = ("hidden", "beta", "order", "sharpness", "append_mean_loss", "floor", "renormalise")
        return {"cohort": self.setting.cohort, **{name: getattr(self, name) for name in names}}

    def architecture(self, setting: Setting) -> Architecture:
        return FlatNetworks(3 * setting.cohort + self.append_mean_loss, 2 * setting.cohort, self.hidden)

    def state_of(self, reported: Reported) -> FloatArray:
        """(l_b, l_a, n), each divided by its sum: `[3K]`, or `[3K + 1]` with the mean of l_b."""
        blocks = (reported.before, reported.after, reported.samples)
        state = np.concatenate([block / max(block.sum(), 1e-12) for block in blocks])
        return np.append(state, reported.before.mean()) if self.append_mean_loss else state

    def limited(self, action: FloatArray) -> FloatArray:
        return np.clip(action, 0.0 if self.order == "authors" else -1.0, 1.0)

    def factors(self, t: int, action: FloatArray, reported: Reported) -> FloatArray:
        """α_k by eq. 5 and 6, of the usable seats."""
        means, spreads = np.split(action, 2)
        draws = self.draws(t, "impact factors").standard_normal(len(means))
        if self.order == "paper":
            drawn = means + np.minimum(np.abs(spreads), self.beta * np.abs(means)) * draws
            return softmax(self.sharpness * drawn, reported.usable)
        centres = softmax(self.sharpness * means, reported.usable)
        deviations = np.minimum(np.maximum(spreads / 100, self.floor), self.beta * centres)
        factors: FloatArray = np.maximum(centres + deviations * draws, 0.0)
        if factors.sum() == 0:
            # With β = 1 all draws may fall below zero, and a model of nothing is none.
            return centres
        return factors / factors.sum() if self.renormalise else factors
