"""FedDRL for a set of clients: an agent to which it makes no difference who sits where, nor how many there are.

FedDRL's networks have a place for each client of a round. Where cohorts change, a place means another client every
round, and what is learned about one place is unknown about the others. Here one small network looks at every client, so
that each round teaches it K times, and a trained agent can be used with any number of clients.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.by_agent import ByAgent
from covey.aggregation.ddpg import Architecture, Learning, Perceptron
from covey.aggregation.impact_factors import Reported, softmax
from covey.arrays import FloatArray, State
from covey.core.interfaces import Setting
from covey.errors import require
from covey.registries import aggregators

FEATURES = 6
"""What is seen of a client: relative loss, remembered relative loss, what training left of the loss, relative number of
samples, the level of losses, and whether it is there at all."""

_MOST = 3.0
"""Relative losses above this (four times the mean) count as this: an outlier is not trusted without bounds."""


@dataclass(frozen=True)
class SetNetworks:
    """DeepSets (Zaheer et al. 2017): one network for all clients, which sees a client and a summary of everyone.

    With x_k what is seen of client k, and a summary the mean and maximum over clients, the actor's logit is
    R tanh(z_k / R) with z_k = g · (relative loss, remembered relative loss)_k + ρ(x_k, summary of φ(x)). The two
    numbers g are parameters too, ρ begins at 0: the agent begins as a softmax of losses, and learns from there. The
    critic is a network of a summary of φ(x_k, impact factor of k).
    """

    cohort: int
    hidden: int
    limit: float
    gain: float
    memory_gain: float

    @property
    def state_size(self) -> int:
        return self.cohort * FEATURES

    @property
    def action_size(self) -> int:
        return self.cohort

    @property
    def _actor(self) -> tuple[Perceptron, Perceptron]:
        return Perceptron(FEATURES, self.hidden, self.hidden), Perceptron(FEATURES + 2 * self.hidden, self.hidden, 1)

    @property
    def _critic(self) -> tuple[Perceptron, Perceptron]:
        return Perceptron(FEATURES + 1, self.hidden, self.hidden), Perceptron(2 * self.hidden, self.hidden, 1)

    def initial(self) -> tuple[Tensor, Tensor]:
        gains = torch.tensor([self.gain, self.memory_gain], dtype=torch.float64)
        inner, outer = self._actor
        actor = torch.cat([gains, inner.initial(0.1), outer.initial(0.0)])
        inner, outer = self._critic
        return actor, torch.cat([inner.initial(0.1), outer.initial(0.1)])

    def act(self, actor: Tensor, states: Tensor) -> Tensor:
        """A logit for each client: `[agents, n, K]`."""
        inner, outer = self._actor
        gains, first, second = torch.split(actor, [2, inner.parameters, outer.parameters], dim=1)
        x, present = self._seen(states)
        summary = summarised(inner(first, x.flatten(1, 2)).view(*x.shape[:3], -1), present)
        everyone = torch.cat([x, summary.unsqueeze(2).expand(-1, -1, self.cohort, -1)], dim=-1)
        learned = outer(second, everyone.flatten(1, 2)).view(x.shape[:3])
        logits = (x[..., :2] * gains[:, None, None]).sum(dim=-1) + learned
        return self.limit * torch.tanh(logits / self.limit)

    def value(self, critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        inner, outer = self._critic
        first, second = torch.split(critic, [inner.parameters, outer.parameters], dim=1)
        x, present = self._seen(states)
        factors = torch.softmax(actions.masked_fill(~present, -torch.inf), dim=-1)
        relative = factors * present.sum(dim=-1, keepdim=True) - 1
        chosen = torch.cat([x, relative.unsqueeze(-1)], dim=-1)
        summary = summarised(inner(first, chosen.flatten(1, 2)).view(*x.shape[:3], -1), present)
        return outer(second, summary).squeeze(-1)

    def _seen(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """x `[agents, n, K, features]` and who is there `[agents, n, K]`."""
        x = states.reshape(*states.shape[:2], self.cohort, FEATURES)
        return x, x[..., -1] > 0


def summarised(values: Tensor, present: Tensor) -> Tensor:
    """Mean and maximum over those present: `[agents, n, K, h]` → `[agents, n, 2h]`."""
    there = present.unsqueeze(-1)
    mean = (values * there).sum(dim=2) / there.sum(dim=2)
    return torch.cat([mean, values.masked_fill(~there, -torch.inf).amax(dim=2)], dim=-1)


@aggregators.add("feddrl-set")
class FedDRLSet(ByAgent):
    """FedDRL with one network for all clients, whatever their number and order, that begins as a softmax of losses.

    It differs from FedDRL in what an agent with few experiences needs. It begins as a rule that works: α = softmax of
    each client's remembered relative loss, that is l_b over the round's mean, averaged over the rounds in which the
    client took part. (A softmax of this round's losses, as in loss-softmax, sends the weight from one client to another
    and back; what is remembered does not.) It tries actions near to those of the rule, and is held to actions that were
    tried. Its reward is how much smaller the mean and the range of losses became, relative to what they were, so that
    early and late rounds count alike; the level of losses is part of the state. Impact factors are not drawn again
    from Gaussians: the noise on actions explores.

    discount: γ; weights show their effect in the next round.
    batch: experiences per step of the optimisers.
    updates: most steps per round; there are ⌊experiences/batch⌋.
    soft: how far targets follow in each step.
    actor_rate, critic_rate: Adam's rates.
    capacity: experiences that the replay buffer holds.
    hidden: width of the hidden layers.
    noise, reversion: σ and θ of the Ornstein-Uhlenbeck noise on logits; with reversion 1 each round's is new.
    limit: R, the bound of logits; no client counts more than e^(2R) times another.
    gain, memory_gain: where the agent begins: factors on relative and on remembered relative loss. 0.8 and 0 is
        loss-softmax for 10 clients (and up to `limit`). In trials, 1, 1.5 and 3 of memory came to accuracies within
        a point of each other, and 3 points (10 of 100 clients a round) to 9 (all of 10) above none.
    keep: how much of what is remembered of a client stays when it takes part again.
    reward: relative is the logarithm of how much smaller mean plus range of l_b became; paper is minus that sum.
    normalise_rewards: whether rewards are scaled to mean 0 and deviation 1 of those remembered.
    anchor: weight of the squared distance to the actions that were tried (Fujimoto and Gu 2021) in the actor's loss.
    agent: file of a trained agent to begin with, as written by covey train-agent.
    learn: whether the agent explores and learns in this run; false without an agent is the rule that it begins as.
    worker: which worker of two-stage training this is; decides the noise and nothing else.
    side_thread: whether training runs beside the rounds; then the same seed does not give the same run.
    """

    kind = "feddrl-set"

    def __init__(
        self,
        *,
        discount: float = 0.5,
        batch: int = 16,
        updates: int = 32,
        soft: float = 0.02,
        actor_rate: float = 1e-4,
        critic_rate: float = 1e-3,
        capacity: int = 100_000,
        hidden: int = 32,
        noise: float = 0.1,
        reversion: float = 1.0,
        limit: float = 2.0,
        gain: float = 0.0,
        memory_gain: float = 1.5,
        keep: float = 0.9,
        reward: Literal["paper", "relative"] = "relative",
        normalise_rewards: bool = True,
        anchor: float = 0.3,
        agent: str | None = None,
        learn: bool = True,
        worker: int = 0,
        side_thread: bool = False,
    ) -> None:
        super().__init__(
            Learning(discount, batch, updates, soft, actor_rate, critic_rate, capacity, normalise_rewards, anchor),
            noise=noise,
            reversion=reversion,
            reward=reward,
            agent=agent,
            learn=learn,
            worker=worker,
            side_thread=side_thread,
        )
        require(hidden >= 1, f"aggregator.hidden must be at least 1, not {hidden}.")
        require(limit > 0, f"aggregator.limit must be above 0, not {limit:g}.")
        require(0 <= keep < 1, f"aggregator.keep is a fraction from 0 to below 1, not {keep:g}.")
        self.hidden = hidden
        self.limit = limit
        self.gain = gain
        self.memory_gain = memory_gain
        self.keep = keep

    def architecture(self, setting: Setting) -> Architecture:
        return SetNetworks(setting.cohort, self.hidden, self.limit, self.gain, self.memory_gain)

    def meaning(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "limit": self.limit, "keep": self.keep}

    def limited(self, action: FloatArray) -> FloatArray:
        return np.clip(action, -self.limit, self.limit)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.memory: FloatArray = np.zeros(setting.clients)
        """Remembered relative loss: `[clients]`."""

    def state_of(self, reported: Reported) -> FloatArray:
        """`[K · features]`; zeros for whoever is not there. Adds the round to what is remembered of clients."""
        usable = reported.usable
        mean = max(float(reported.before[usable].mean()), 1e-12)
        relative = np.minimum(reported.before / mean - 1, _MOST)
        heard = usable[reported.seats]
        clients, seats = reported.clients[heard], reported.seats[heard]
        self.memory[clients] = self.keep * self.memory[clients] + (1 - self.keep) * relative[seats]
        remembered = np.zeros(len(usable))
        remembered[seats] = self.memory[clients]
        left = np.minimum(reported.after / np.maximum(reported.before, 1e-12), 2.0)
        samples = reported.samples / reported.samples[usable].mean() - 1
        level = np.full(len(usable), np.log(mean))
        x = np.stack([relative, remembered, left, samples, level, np.ones(len(usable))], axis=1)
        state: FloatArray = (x * usable[:, None]).ravel()
        return state

    def factors(self, t: int, action: FloatArray, reported: Reported) -> FloatArray:
        return softmax(action, reported.usable)

    def state_dict(self) -> State:
        return {**super().state_dict(), "memory": self.memory.copy()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory = np.array(state["memory"], dtype=np.float64)
