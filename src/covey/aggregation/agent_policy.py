"""The policy that FedDRL and its variants share: a DDPG agent with its options, exploration and experiences.

Line numbers refer to Algorithm 2 of FedDRL (Nguyen et al., ICPP 2022).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.aggregation.agent_file import agent_digest, read_agent
from covey.aggregation.ddpg import Agent, AgentTraining, Architecture, Learning
from covey.arrays import FloatArray, State
from covey.config.schema import GIVEN
from covey.core.interfaces import JointWork, Setting
from covey.errors import require
from covey.randomness import generator


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
        super().__post_init__()
        require(self.hidden >= 1, f"aggregator.hidden must be at least 1, not {self.hidden}.")
        require(self.noise >= 0, f"aggregator.noise must not be negative, not {self.noise:g}.")
        require(0 <= self.reversion <= 1, f"aggregator.reversion is a fraction in [0, 1], not {self.reversion:g}.")
        require(self.reward in ("paper", "relative"), f"aggregator.reward is paper or relative, not '{self.reward}'.")
        require(self.worker >= 0, f"aggregator.worker must not be negative, not {self.worker}.")

    @property
    def learning(self) -> Learning:
        """The hyper-parameters of DDPG alone."""
        return Learning(
            discount=self.discount,
            batch=self.batch,
            updates=self.updates,
            soft=self.soft,
            actor_rate=self.actor_rate,
            critic_rate=self.critic_rate,
            capacity=self.capacity,
            normalise_rewards=self.normalise_rewards,
        )

    @property
    def objective(self) -> dict[str, Any]:
        """The options that decide what a critic learns to estimate."""
        return {
            "reward": self.reward,
            "normalise_rewards": self.normalise_rewards,
            "discount": self.discount,
        }


@dataclass(frozen=True, eq=False)
class UnrewardedAction:
    """The action of a round, whose reward the next round decides."""

    state: FloatArray
    """`[S]`"""
    action: FloatArray
    """`[D]`"""
    cost: float
    """Cost of the round in which it was taken."""


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
        """Make the agent, or read it from the file `options.agent`.

        `encoding` holds the settings that states and actions depend on, `bounds` the least and greatest action.
        `anchor` is the weight, in the actor's loss, of the squared distance to the actions that were tried; 0 is DDPG.
        """
        self.kind = kind
        """Name of the aggregator; an agent is trained for one."""
        self.options = options
        self.setting = setting
        self.encoding = dict(encoding)
        self.bounds = bounds
        self.agent = Agent(architecture, options.learning, setting.seed, anchor=anchor)
        self.identity: dict[str, Any] = {}
        """Digest and seed of the agent's file, for the record of the first round; empty without one."""
        if options.agent is not None and not setting.resumed:
            objective = options.objective if options.learn else None
            about = read_agent(Path(options.agent), self.agent, kind, self.encoding, objective)
            trained_on = about.get("trained_on", {})
            self.identity = {"digest": agent_digest(Path(options.agent)), "seed": trained_on.get("seed")}
            self._warn_of_other_clients(trained_on)
        self.deviation: FloatArray = np.zeros(architecture.action_size)
        """The Ornstein-Uhlenbeck noise: `[D]`."""
        self._fits = True
        """False if a checkpoint's agent is of another size; it may be read, but decides nothing."""
        self.last: UnrewardedAction | None = None
        """The last round's action; None if it can no longer be rewarded."""
        self._final = False
        """True after the last round of the run."""

    def _warn_of_other_clients(self, trained_on: Mapping[str, Any]) -> None:
        """Warn if the agent knows clients by their places, and has learned with other clients at these places."""
        setting, seed = self.setting, trained_on.get("seed")
        if "cohort" not in self.encoding or setting.cohort < setting.clients:
            return
        given = dict(trained_on.get("environment", {})).get("name") == GIVEN
        shuffled = trained_on.get("numbering") == "shuffled"
        # Clients that were passed in keep their own numbers, whatever the seed.
        same = given or (shuffled == setting.shuffled and (not shuffled or seed == setting.seed))
        if not same:
            in_order = "in their environment's order"
            there = f"by the seed {seed}" if shuffled else in_order
            here = f"by the seed {setting.seed}" if setting.shuffled else in_order
            warnings.warn(
                f"The agent {self.options.agent} was trained with clients numbered {there}, and here they are numbered "
                f"{here}: its places mean other clients. Train one with this run's settings and seed.",
                stacklevel=2,
            )

    def act(self, t: int, state: FloatArray, cost: float, device: torch.device) -> FloatArray:
        """Return the action `[D]` for a round's state `[S]`, and learn from its cost; models live on `device`."""
        require(
            self._fits,
            "The agent in the checkpoint has learned with another cohort or with other layers than the settings say: "
            "give those that it has learned with.",
        )
        self.agent.to(device)
        action = self.agent.act(state)
        if not self.options.learn:
            return np.clip(action, *self.bounds)
        self._remember(state, cost)
        action = self._explore(t, action)
        self.last = UnrewardedAction(state, action, cost)
        self._schedule_training(t)
        return action

    def _remember(self, state: FloatArray, cost: float) -> None:
        """Store the last round's action with its reward as an experience (lines 17-18)."""
        if self.last is not None:
            reward = self.reward(self.last.cost, cost)
            self.agent.replay.push(self.last.state, self.last.action, reward, state)

    def _explore(self, t: int, action: FloatArray) -> FloatArray:
        """Add Ornstein-Uhlenbeck noise to an action, and bound the result (line 14): `[D]`."""
        draws = self.rng(t, "noise").standard_normal(len(action))
        self.deviation = (1 - self.options.reversion) * self.deviation + self.options.noise * draws
        return np.clip(action + self.deviation, *self.bounds)

    def _schedule_training(self, t: int) -> None:
        """Have the agent trained on its experiences (lines 19-20): before its next action, or in a side thread."""
        self._final = t >= self.setting.rounds
        key = (self.setting.seed, t, "replay", self.options.worker)
        if not self.options.side_thread:
            self.agent.schedule_training(*key)
        elif not self._final:
            self.agent.train_in_background(*key)

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
        last = self.last
        return {
            "agent": self.agent.state_dict(),
            "deviation": self.deviation,
            "last": None if last is None else {"state": last.state, "action": last.action, "cost": last.cost},
        }

    def load_state_dict(self, state: State) -> None:
        sizes = [len(network.main) for network in (self.agent.actor, self.agent.critic)]
        self.agent.load_state_dict(state["agent"])
        found = [len(network.main) for network in (self.agent.actor, self.agent.critic)]
        self._fits = found == sizes and self.agent.replay.fits
        self.deviation = np.array(state["deviation"], dtype=np.float64)
        last = state["last"]
        self.last = None
        if last is not None:
            self.last = UnrewardedAction(np.array(last["state"]), np.array(last["action"]), float(last["cost"]))


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
