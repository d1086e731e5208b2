"""FedDRL (Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive Aggregation for Non-IID Data in Federated
Learning", ICPP 2022): an agent learns how much each client's model counts.

A round is one step of a DDPG agent (Algorithm 2). Its state is what the K clients report: the loss of the model that
they received (l_b) and of the one that they trained (l_a) on their own samples, and their number of samples (section
3.3.2). Its action is a Gaussian for each client, from which the client's impact factor is drawn (3.3.3). Its reward
penalises high and uneven losses in the next round (3.3.4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.aggregation.agent_file import read_agent
from covey.aggregation.ddpg import Agent, AgentTraining, Architecture, Learning
from covey.aggregation.impact_factors import ImpactFactorAggregator, LossReports, softmax
from covey.arrays import FloatArray, State
from covey.core.interfaces import JointWork, Setting
from covey.errors import require
from covey.randomness import generator
from covey.registries import aggregators


@dataclass(frozen=True, kw_only=True)
class AgentOptions(Learning):
    """Options of every aggregator with an agent; those of `Learning` included."""

    hidden: int = 256
    """Width of the hidden layers."""
    noise: float = 0.1
    """σ of the Ornstein-Uhlenbeck noise on actions."""
    reversion: float = 0.1
    """θ of that noise; with 1 the noise of each round is independent."""
    reward: Literal["paper", "relative"] = "paper"
    """paper: minus the mean and the range of l_b in the next round (eq. 7, negated, since it is a cost). relative: the
    logarithm of the factor by which that sum fell."""
    agent: str | None = None
    """File of a trained agent to begin with, as written by covey train-agent."""
    learn: bool = True
    """True lets the agent explore and learn in this run; False uses it as it is."""
    worker: int = 0
    """Number of this worker in two-stage training (section 3.4.2); seeds the noise and nothing else."""
    side_thread: bool = False
    """True trains beside the rounds, as in the paper. A run then depends on the machine's speed, and the same seed
    does not give the same run."""

    def __post_init__(self) -> None:
        require(0 <= self.discount < 1, f"aggregator.discount is from 0 to below 1, not {self.discount:g}.")
        require(self.batch >= 1, f"aggregator.batch must be at least 1, not {self.batch}.")
        require(self.updates >= 0, f"aggregator.updates must not be negative, not {self.updates}.")
        require(0 < self.soft <= 1, f"aggregator.soft is a fraction in (0, 1], not {self.soft:g}.")
        require(self.actor_rate > 0, f"aggregator.actor_rate must be above 0, not {self.actor_rate:g}.")
        require(self.critic_rate > 0, f"aggregator.critic_rate must be above 0, not {self.critic_rate:g}.")
        require(
            self.capacity >= self.batch,
            f"aggregator.capacity = {self.capacity} experiences do not fill a batch of {self.batch}.",
        )
        require(self.hidden >= 1, f"aggregator.hidden must be at least 1, not {self.hidden}.")
        require(self.noise >= 0, f"aggregator.noise must not be negative, not {self.noise:g}.")
        require(0 <= self.reversion <= 1, f"aggregator.reversion is a fraction in [0, 1], not {self.reversion:g}.")
        require(self.reward in ("paper", "relative"), f"aggregator.reward is paper or relative, not '{self.reward}'.")
        require(self.worker >= 0, f"aggregator.worker must not be negative, not {self.worker}.")

    @property
    def learning(self) -> Learning:
        """The hyper-parameters of DDPG alone."""
        return Learning(**{field.name: getattr(self, field.name) for field in fields(Learning)})

    @property
    def objective(self) -> dict[str, Any]:
        """The options that decide what a critic learns to estimate."""
        return {name: getattr(self, name) for name in ("reward", "normalise_rewards", "discount")}


class AgentPolicy:
    """The agent of one run with its exploration noise and its last experience (Algorithm 2, lines 14 and 17-20)."""

    def __init__(
        self,
        kind: str,
        options: AgentOptions,
        setting: Setting,
        architecture: Architecture,
        *,
        encoding: Mapping[str, Any],
        bounds: tuple[float, float],
        anchor: float = 0.0,
    ) -> None:
        """`encoding` holds the settings that states and actions depend on, `bounds` the least and greatest action."""
        self.kind = kind
        """Name of the aggregator; an agent is trained for one."""
        self.options = options
        self.setting = setting
        self.encoding = dict(encoding)
        self.bounds = bounds
        self.agent = Agent(architecture, options.learning, setting.seed, anchor=anchor)
        if options.agent is not None and not setting.resumed:
            objective = options.objective if options.learn else None
            read_agent(Path(options.agent), self.agent, kind, self.encoding, objective)
        self.deviation: FloatArray = np.zeros(architecture.action_size)
        """The Ornstein-Uhlenbeck noise: `[D]`."""
        self.last: tuple[FloatArray, FloatArray, float] | None = None
        """State, action and cost of the last round; None if its action can no longer be rewarded."""
        self._final = False
        """True after the last round of the run."""

    def act(self, t: int, state: FloatArray, cost: float, device: torch.device) -> FloatArray:
        """Return the action `[D]` for a round's state `[S]`, and learn from its cost; models live on `device`."""
        self.agent.to(device)
        action = self.agent.act(state)
        if not self.options.learn:
            return np.clip(action, *self.bounds)
        if self.last is not None:
            last_state, last_action, last_cost = self.last
            self.agent.replay.push(last_state, last_action, self.reward(last_cost, cost), state)  # lines 17-18
        draws = self.rng(t, "noise").standard_normal(len(action))
        self.deviation = (1 - self.options.reversion) * self.deviation + self.options.noise * draws
        action = np.clip(action + self.deviation, *self.bounds)  # line 14
        self.last = state, action, cost
        self._final = t >= self.setting.rounds
        key = (self.setting.seed, t, "replay", self.options.worker)  # lines 19-20
        if not self.options.side_thread:
            self.agent.schedule_training(*key)
        elif not self._final:
            self.agent.train_in_background(*key)
        return action

    def reward(self, before: float, after: float) -> float:
        """Return the reward of an action taken at cost `before` that led to cost `after` (eq. 7, negated)."""
        if self.options.reward == "paper":
            return -after
        return float(np.log(max(before, 1e-12)) - np.log(max(after, 1e-12)))

    def skip_round(self) -> None:
        """Forget the last action, since a round without reports cannot reward it."""
        self.last = None

    def rng(self, t: int, purpose: str) -> np.random.Generator:
        return generator(self.setting.seed, t, purpose, self.options.worker)

    def joint_work(self) -> Sequence[JointWork]:
        """Return the scheduled training. That of the last round stays pending, as only an extended run needs it."""
        return (AgentTraining(self.agent),) if self.agent.pending is not None and not self._final else ()

    def state_dict(self) -> State:
        last = None if self.last is None else {"state": self.last[0], "action": self.last[1], "cost": self.last[2]}
        return {"agent": self.agent.state_dict(), "deviation": self.deviation, "last": last}

    def load_state_dict(self, state: State) -> None:
        self.agent.load_state_dict(state["agent"])
        self.deviation = np.array(state["deviation"], dtype=np.float64)
        last = state["last"]
        self.last = None if last is None else (np.array(last["state"]), np.array(last["action"]), float(last["cost"]))


class Perceptron:
    """Linear layers with leaky ReLU between, as a function of flat parameters, for a stack of agents."""

    def __init__(self, *widths: int) -> None:
        self.layers = list(pairwise(widths))
        self.sizes = [size for rows, columns in self.layers for size in (rows * columns, columns)]
        self.parameters = sum(self.sizes)

    def __call__(self, parameters: Tensor, x: Tensor) -> Tensor:
        """`[agents, P]` and `[agents, n, in]` → `[agents, n, out]`."""
        pieces = torch.split(parameters, self.sizes, dim=1)
        for number, shape in enumerate(self.layers):
            weight, bias = pieces[2 * number].view(-1, *shape), pieces[2 * number + 1]
            x = torch.baddbmm(bias[:, None], x, weight)
            if number < len(self.layers) - 1:
                x = F.leaky_relu(x)
        return x

    def initial(self, last: float) -> Tensor:
        """Initialise as torch does, but the last layer from U(-`last`, `last`): float64 `[P]`."""
        pieces = []
        for number, (rows, columns) in enumerate(self.layers):
            layer = nn.Linear(rows, columns, dtype=torch.float64)
            if number == len(self.layers) - 1:
                nn.init.uniform_(layer.weight, -last, last)
                nn.init.uniform_(layer.bias, -last, last)
            pieces += [layer.weight.detach().t().flatten(), layer.bias.detach()]
        return torch.cat(pieces)


@dataclass(frozen=True)
class FlatNetworks:
    """The paper's networks (Table 1, figure 3c): three linear layers on the concatenated numbers of all clients.

    Both networks know clients by their slot, which is worth learning only if it means the same client every round.
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


@dataclass(frozen=True, kw_only=True)
class FedDRLOptions(AgentOptions):
    """Options of `feddrl`."""

    beta: float = 0.1
    """β of eq. 6: the bound of an impact factor's standard deviation relative to its mean."""
    floor: float = 0.001
    """Least standard deviation, unless β binds."""
    order: Literal["authors", "paper"] = "authors"
    """authors: softmax the actor's means, then draw N(softmax, σ), as in the authors' code, with actions in [0, 1] and
    σ a hundredth of the actor's spread; eq. 6 makes sense only for positive means. paper: draw N(μ, σ) with actions in
    [-1, 1] and σ ≤ β|μ|, then softmax (eq. 5)."""
    renormalise: bool = True
    """True makes drawn factors sum to one. The authors' code does not, so that the norm of the model jitters."""
    sharpness: float = 1.0
    """Factor on the actor's means before the softmax. With 1 no client counts more than e times another."""
    append_mean_loss: bool = False
    """True adds the mean of l_b to the state. Losses and samples are divided by their sums, which hides the level that
    the reward depends on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta <= 1, f"aggregator.beta is a fraction in [0, 1], not {self.beta:g}.")
        require(self.floor >= 0, f"aggregator.floor must not be negative, not {self.floor:g}.")
        require(self.order in ("authors", "paper"), f"aggregator.order is authors or paper, not '{self.order}'.")
        require(self.sharpness > 0, f"aggregator.sharpness must be above 0, not {self.sharpness:g}.")


@aggregators.add("feddrl")
class FedDRL(ImpactFactorAggregator):
    """Weights models by impact factors that a reinforcement-learning agent (DDPG) chooses from the clients' losses.

    The agent's networks have a slot for each of the K clients of a round. The agent is trained after each round, before
    its next decision. `FedDRLOptions` documents the options.
    """

    Options = FedDRLOptions

    def __init__(self, **options: Any) -> None:
        self.options = FedDRLOptions(**options)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        options, cohort = self.options, setting.cohort
        encoded = ("hidden", "beta", "order", "sharpness", "append_mean_loss", "floor", "renormalise")
        self.policy = AgentPolicy(
            "feddrl",
            options,
            setting,
            FlatNetworks(3 * cohort + options.append_mean_loss, 2 * cohort, options.hidden),
            encoding={"cohort": cohort, **{name: getattr(options, name) for name in encoded}},
            bounds=(0.0 if options.order == "authors" else -1.0, 1.0),
        )

    def impact_factors(self, t: int, reports: LossReports, device: torch.device) -> FloatArray:
        """Algorithm 2, lines 13-20."""
        action = self.policy.act(t, self.state_of(reports), reports.cost, device)
        return self.factors(t, action, reports)

    def state_of(self, reports: LossReports) -> FloatArray:
        """(l_b, l_a, n) of line 13, each divided by its sum: `[3K]`, or `[3K + 1]` with the mean of l_b."""
        blocks = (reports.before, reports.after, reports.samples)
        state = np.concatenate([block / max(block.sum(), 1e-12) for block in blocks])
        return np.append(state, reports.before.mean()) if self.options.append_mean_loss else state

    def factors(self, t: int, action: FloatArray, reports: LossReports) -> FloatArray:
        """α_k of line 15 (eq. 5 and 6), 0 for slots that are not usable: `[K]`."""
        options = self.options
        means, spreads = np.split(action, 2)
        draws = self.policy.rng(t, "impact factors").standard_normal(len(means))
        if options.order == "paper":
            drawn = means + np.minimum(np.abs(spreads), options.beta * np.abs(means)) * draws  # eq. 6
            return softmax(options.sharpness * drawn, reports.usable)  # eq. 5
        centres = softmax(options.sharpness * means, reports.usable)
        deviations = np.minimum(np.maximum(spreads / 100, options.floor), options.beta * centres)
        factors: FloatArray = np.maximum(centres + deviations * draws, 0.0)
        if factors.sum() == 0:
            # With β = 1 all draws may be negative, and weights that are all 0 make no model.
            return centres
        return factors / factors.sum() if options.renormalise else factors

    def no_reports(self, t: int) -> None:
        self.policy.skip_round()

    def joint_work(self) -> Sequence[JointWork]:
        return self.policy.joint_work()

    def state_dict(self) -> State:
        return self.policy.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
