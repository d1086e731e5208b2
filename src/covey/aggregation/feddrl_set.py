"""FedDRL for a set of clients: an agent that does not depend on the clients' order or number.

FedDRL's networks have a slot for each client of a round. If cohorts change, a slot means another client every round,
and what is learned about one slot says nothing about the others. Here one small network looks at every client, so that
each round teaches it K times, and a trained agent works for any number of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.agent_policy import AgentOptions, AgentPolicy, Perceptron
from covey.aggregation.impact_factors import ImpactFactorAggregator, LossReports, softmax
from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import JointWork, Setting
from covey.errors import require
from covey.registries import aggregators

FEATURES = 6
"""Features of a client: relative loss, remembered relative loss, fraction of the loss left by training, relative number
of samples, level of the losses, and 1 if the slot is used."""

_MOST = 3.0
"""Bound of relative losses (four times the mean), so that an outlier cannot dominate."""


@dataclass(frozen=True)
class SetNetworks:
    """DeepSets (Zaheer et al. 2017): one network for all clients, applied to a client and a summary of all clients.

    With x_k the features of client k, and the summary the mean and maximum over clients, the actor's logit is
    R tanh(z_k / R) with z_k = g · (relative loss, remembered relative loss)_k + ρ(x_k, summary of φ(x)). The two
    gains g are parameters too, and ρ starts at 0: the agent starts as a softmax of losses, and learns from there. The
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
        """Return a logit for each client: `[agents, n, K]`."""
        inner, outer = self._actor
        gains, first, second = torch.split(actor, [2, inner.parameters, outer.parameters], dim=1)
        x, present = self._features(states)
        summary = summarised(inner(first, x.flatten(1, 2)).view(*x.shape[:3], -1), present)
        everyone = torch.cat([x, summary.unsqueeze(2).expand(-1, -1, self.cohort, -1)], dim=-1)
        learned = outer(second, everyone.flatten(1, 2)).view(x.shape[:3])
        logits = (x[..., :2] * gains[:, None, None]).sum(dim=-1) + learned
        return self.limit * torch.tanh(logits / self.limit)

    def value(self, critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        inner, outer = self._critic
        first, second = torch.split(critic, [inner.parameters, outer.parameters], dim=1)
        x, present = self._features(states)
        factors = torch.softmax(actions.masked_fill(~present, -torch.inf), dim=-1)
        relative = factors * present.sum(dim=-1, keepdim=True) - 1
        chosen = torch.cat([x, relative.unsqueeze(-1)], dim=-1)
        summary = summarised(inner(first, chosen.flatten(1, 2)).view(*x.shape[:3], -1), present)
        return outer(second, summary).squeeze(-1)

    def _features(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return x `[agents, n, K, features]` and a mask of the used slots `[agents, n, K]`."""
        x = states.reshape(*states.shape[:2], self.cohort, FEATURES)
        return x, x[..., -1] > 0


def summarised(values: Tensor, present: Tensor) -> Tensor:
    """Return mean and maximum over the slots in `present`: `[agents, n, K, h]` → `[agents, n, 2h]`."""
    there = present.unsqueeze(-1)
    mean = (values * there).sum(dim=2) / there.sum(dim=2)
    return torch.cat([mean, values.masked_fill(~there, -torch.inf).amax(dim=2)], dim=-1)


@dataclass(frozen=True, kw_only=True)
class FedDRLSetOptions(AgentOptions):
    """Options of `feddrl-set`."""

    discount: float = 0.5
    """γ; weights show their effect in the next round."""
    batch: int = 16
    """Experiences per step of the optimisers."""
    hidden: int = 32
    """Width of the hidden layers."""
    reversion: float = 1.0
    """θ of the Ornstein-Uhlenbeck noise on logits; with 1 the noise of each round is independent."""
    limit: float = 2.0
    """R, the bound of logits; no client counts more than e^(2R) times another."""
    gain: float = 0.0
    """Initial factor on the relative loss. With 0.8, and memory_gain 0, the agent starts as loss-softmax for 10 clients
    (up to `limit`)."""
    memory_gain: float = 1.5
    """Initial factor on the remembered relative loss. In trials 1, 1.5 and 3 reached accuracies within a point of each
    other, 3 points (10 of 100 clients a round) to 9 (all of 10) above 0."""
    keep: float = 0.9
    """Fraction of a client's remembered loss that is kept when the client takes part again."""
    reward: Literal["paper", "relative"] = "relative"
    """relative: the logarithm of the factor by which the mean plus range of l_b fell. paper: minus that sum (eq. 7)."""
    normalise_rewards: bool = True
    """True scales rewards to mean 0 and deviation 1 over the replay buffer."""
    anchor: float = 0.3
    """Weight, in the actor's loss, of the squared distance to the actions that were tried (Fujimoto and Gu 2021)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.anchor >= 0, f"aggregator.anchor must not be negative, not {self.anchor:g}.")
        require(self.limit > 0, f"aggregator.limit must be above 0, not {self.limit:g}.")
        require(0 <= self.keep < 1, f"aggregator.keep is a fraction from 0 to below 1, not {self.keep:g}.")


@aggregators.add("feddrl-set")
class FedDRLSet(ImpactFactorAggregator):
    """FedDRL with one network for all clients, in any order and number; it starts as a softmax of remembered losses.

    It differs from FedDRL in what an agent with few experiences needs. It starts as a rule that works: α = softmax of
    each client's remembered relative loss, which is l_b over the round's mean, averaged over the rounds in which the
    client took part. (A softmax of this round's losses, as in loss-softmax, moves the weight from one client to another
    and back; the memory damps that.) It explores near the rule, and its actor is held to actions that were tried. Its
    reward is the relative fall of mean plus range of the losses, so that early and late rounds count alike, and the
    level of the losses is part of its state. Impact factors are not drawn from Gaussians: the noise on actions
    explores. `FedDRLSetOptions` documents the options; without an agent and with learn=false it is the rule alone.
    """

    Options = FedDRLSetOptions

    def __init__(self, **options: Any) -> None:
        self.options = FedDRLSetOptions(**options)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        options = self.options
        self.policy = AgentPolicy(
            "feddrl-set",
            options,
            setting,
            SetNetworks(setting.cohort, options.hidden, options.limit, options.gain, options.memory_gain),
            encoding={"hidden": options.hidden, "limit": options.limit, "keep": options.keep},
            bounds=(-options.limit, options.limit),
            anchor=options.anchor,
        )
        self.memory: FloatArray = np.zeros(setting.clients)
        """Remembered relative loss: `[clients]`."""

    def impact_factors(self, t: int, reports: LossReports, device: torch.device) -> FloatArray:
        """Algorithm 2, lines 13-20, with α the softmax of the action."""
        self._remember(reports)
        action = self.policy.act(t, self.state_of(reports), reports.cost, device)
        return softmax(action, reports.usable)

    def _remember(self, reports: LossReports) -> None:
        """Add a round's relative losses to the memory of the clients that reported them."""
        clients, slots = _usable_clients(reports)
        keep = self.options.keep
        self.memory[clients] = keep * self.memory[clients] + (1 - keep) * _relative_losses(reports)[slots]

    def state_of(self, reports: LossReports) -> FloatArray:
        """Return the features of all slots, zeros where a slot is not usable: `[K · features]`."""
        usable = reports.usable
        clients, slots = _usable_clients(reports)
        remembered = np.zeros(len(usable))
        remembered[slots] = self.memory[clients]
        left = np.minimum(reports.after / np.maximum(reports.before, 1e-12), 2.0)
        samples = reports.samples / reports.samples[usable].mean() - 1
        level = np.full(len(usable), np.log(_mean_loss(reports)))
        x = np.stack([_relative_losses(reports), remembered, left, samples, level, np.ones(len(usable))], axis=1)
        state: FloatArray = (x * usable[:, None]).ravel()
        return state

    def first_figures(self) -> dict[str, object]:
        return {"agent": self.policy.identity} if self.policy.identity else {}

    def no_reports(self, t: int) -> None:
        self.policy.skip_round()

    def joint_work(self) -> Sequence[JointWork]:
        return self.policy.joint_work()

    def state_dict(self) -> State:
        return {**self.policy.state_dict(), "memory": self.memory.copy()}

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
        self.memory = np.array(state["memory"], dtype=np.float64)


def _mean_loss(reports: LossReports) -> float:
    return max(float(reports.before[reports.usable].mean()), 1e-12)


def _relative_losses(reports: LossReports) -> FloatArray:
    """Return l_b over the mean, minus 1, bounded by `_MOST`: `[K]`."""
    relative: FloatArray = np.minimum(reports.before / _mean_loss(reports) - 1, _MOST)
    return relative


def _usable_clients(reports: LossReports) -> tuple[IntArray, IntArray]:
    """Return the clients with usable losses, and their slots."""
    heard = reports.usable[reports.slots]
    return reports.clients[heard], reports.slots[heard]
