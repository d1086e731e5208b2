"""Aggregation by an agent that learns from round to round, and trained agents as files."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.aggregation.ddpg import DIVERGED, Agent, Architecture, Learning
from covey.aggregation.impact_factors import ByImpactFactors, Reported
from covey.arrays import FloatArray, State
from covey.core.interfaces import Setting
from covey.errors import Refusal, require
from covey.randomness import generator


class ByAgent(ByImpactFactors):
    """An aggregator whose impact factors an agent chooses, round by round."""

    kind: str
    """What the aggregator is called; an agent is trained for one kind."""

    def __init__(
        self,
        learning: Learning,
        *,
        noise: float,
        reversion: float,
        reward: Literal["paper", "relative"],
        agent: str | None,
        learn: bool,
        worker: int,
        side_thread: bool,
    ) -> None:
        require(0 <= learning.discount < 1, f"aggregator.discount is from 0 to below 1, not {learning.discount:g}.")
        require(learning.batch >= 1, f"aggregator.batch must be at least 1, not {learning.batch}.")
        require(learning.updates >= 0, f"aggregator.updates must not be negative, not {learning.updates}.")
        require(0 < learning.soft <= 1, f"aggregator.soft is a fraction in (0, 1], not {learning.soft:g}.")
        require(learning.actor_rate > 0, f"aggregator.actor_rate must be above 0, not {learning.actor_rate:g}.")
        require(learning.critic_rate > 0, f"aggregator.critic_rate must be above 0, not {learning.critic_rate:g}.")
        require(
            learning.capacity >= learning.batch,
            f"aggregator.capacity = {learning.capacity} experiences do not fill a batch of {learning.batch}.",
        )
        require(learning.anchor >= 0, f"aggregator.anchor must not be negative, not {learning.anchor:g}.")
        require(noise >= 0, f"aggregator.noise must not be negative, not {noise:g}.")
        require(0 <= reversion <= 1, f"aggregator.reversion is a fraction in [0, 1], not {reversion:g}.")
        require(reward in ("paper", "relative"), f"aggregator.reward is paper or relative, not '{reward}'.")
        require(worker >= 0, f"aggregator.worker must not be negative, not {worker}.")
        self.learning = learning
        self.noise = noise
        self.reversion = reversion
        self.reward = reward
        self.trained = agent
        self.learn = learn
        self.worker = worker
        self.side_thread = side_thread

    @abstractmethod
    def architecture(self, setting: Setting) -> Architecture:
        """The networks for such a run."""

    @abstractmethod
    def state_of(self, reported: Reported) -> FloatArray:
        """What the agent sees of a round: `[S]`."""

    @abstractmethod
    def factors(self, t: int, action: FloatArray, reported: Reported) -> FloatArray:
        """Impact factors `[K]` by an action `[D]`."""

    @abstractmethod
    def meaning(self) -> dict[str, Any]:
        """Options without which an agent's states and actions mean something else."""

    def limited(self, action: FloatArray) -> FloatArray:
        """An action with noise, brought back to what is allowed."""
        return action

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        architecture = self.architecture(setting)
        self.agent = Agent(architecture, self.learning, setting.seed)
        if self.trained is not None and not setting.resumed:
            read_agent(Path(self.trained), self, self.agent)
        self.deviation: FloatArray = np.zeros(architecture.action_size)
        """The exploration noise, an Ornstein-Uhlenbeck process: `[D]`."""
        self.last: tuple[FloatArray, FloatArray, float] | None = None
        """State, action and cost of the last round, if its action can still be rewarded."""

    def impact_factors(self, t: int, reported: Reported, device: torch.device) -> FloatArray:
        """One step of the agent (Algorithm 2, lines 13-21)."""
        self.agent.to(device)
        state = self.state_of(reported)
        action = self.agent.act(state)
        if self.learn:
            if self.last is not None:
                last_state, last_action, last_cost = self.last
                self.agent.replay.push(last_state, last_action, self.reward_of(last_cost, reported.cost), state)
            draws = self.draws(t, "noise").standard_normal(len(action))
            self.deviation = (1 - self.reversion) * self.deviation + self.noise * draws
            action = self.limited(action + self.deviation)
            self.last = state, action, reported.cost
            key = (self.setting.seed, t, "replay", self.worker)
            if not self.side_thread:
                # After the last round too: nothing is done before it is needed, and a run may be gone on with.
                self.agent.train_later(*key)
            elif t < self.setting.rounds:
                self.agent.train_aside(*key)
        else:
            action = self.limited(action)
        return self.factors(t, action, reported)

    def nothing_reported(self, t: int) -> None:
        self.last = None

    def reward_of(self, before: float, after: float) -> float:
        """What an action earns that was taken at a cost `before` and led to a cost `after`.

        The paper's (eq. 7) is the cost itself, and maximised; a cost is to be avoided, so it is negated here.
        """
        if self.reward == "paper":
            return -after
        return float(np.log(max(before, 1e-12)) - np.log(max(after, 1e-12)))

    def draws(self, t: int, purpose: str) -> np.random.Generator:
        return generator(self.setting.seed, t, purpose, self.worker)

    def state_dict(self) -> State:
        last = None if self.last is None else {"state": self.last[0], "action": self.last[1], "cost": self.last[2]}
        return {"agent": self.agent.state_dict(), "deviation": self.deviation, "last": last}

    def load_state_dict(self, state: State) -> None:
        self.agent.load_state_dict(state["agent"])
        self.deviation = np.array(state["deviation"], dtype=np.float64)
        last = state["last"]
        self.last = None if last is None else (np.array(last["state"]), np.array(last["action"]), float(last["cost"]))


def write_agent(path: Path, aggregator: ByAgent, agent: Agent, about: Mapping[str, Any]) -> Path:
    """A trained agent as one safetensors file; `about` says what it was trained on."""
    tensors = {
        "actor.main": agent.actor.main,
        "actor.target": agent.actor.target,
        "critic.main": agent.critic.main,
        "critic.target": agent.critic.target,
    }
    require(all(bool(tensor.isfinite().all()) for tensor in tensors.values()), DIVERGED)
    described = json.dumps({"kind": aggregator.kind, "meaning": aggregator.meaning(), **about})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, str(path), {"agent": described})
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The file {path} cannot be written: {error}.") from error
    return path


def agent_kind(path: Path) -> str:
    """Which aggregator the agent in a file was trained for."""
    about, _ = _read(path)
    return str(about["kind"])


def read_agent(path: Path, aggregator: ByAgent, agent: Agent) -> dict[str, Any]:
    """Make `agent`, of an aggregator that has begun, the one of a file; says what that was trained on."""
    about, tensors = _read(path)
    kind, meaning = about["kind"], about["meaning"]
    require(
        kind == aggregator.kind, f"The agent {path} was trained for the aggregator '{kind}', not '{aggregator.kind}'."
    )
    own = aggregator.meaning()
    if meaning.get("cohort") != own.get("cohort"):
        raise Refusal(
            f"The agent {path} was trained for {meaning.get('cohort')} clients a round, and here there are "
            f"{own['cohort']}: the networks of '{kind}' have a place for each. Set the cohort to "
            f"{meaning.get('cohort')}, or train an agent for 'feddrl-set', which takes any number."
        )
    # A file that says nothing of an option is older than its record.
    differing = [f"aggregator.{name}={meaning[name]}" for name in own if meaning.get(name, own[name]) != own[name]]
    require(not differing, f"The agent {path} was trained with other options; set {', '.join(differing)}.")
    if aggregator.learn:
        _require_same_goal(path, aggregator, about)
    for network, name in ((agent.actor, "actor"), (agent.critic, "critic")):
        for part, mine in (("main", network.main), ("target", network.target)):
            tensor = tensors.get(f"{name}.{part}")
            alike = tensor is not None and tensor.shape == mine.shape and tensor.dtype == mine.dtype
            if tensor is None or not alike or not bool(tensor.isfinite().all()):
                raise Refusal(f"The agent {path} is damaged: '{name}.{part}' is not {len(mine):,} finite numbers.")
            mine.copy_(tensor)
    return about


def _require_same_goal(path: Path, aggregator: ByAgent, about: Mapping[str, Any]) -> None:
    """Refuse to go on learning with a critic that has learned what another reward is worth."""
    trained = about.get("options", {})
    goal = {
        "reward": aggregator.reward,
        "normalise_rewards": aggregator.learning.normalise,
        "discount": aggregator.learning.discount,
    }
    other = [f"aggregator.{name}={trained[name]}" for name, own in goal.items() if trained.get(name, own) != own]
    require(
        not other,
        f"The agent {path} has learned for another reward, and cannot go on with this one; set {', '.join(other)}, or "
        "aggregator.learn=false to use it as it is.",
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an agent's file says of it, and its tensors."""
    try:
        with safe_open(str(path), framework="pt") as file:
            described = (file.metadata() or {}).get("agent")
            require(described is not None, f"{path} holds no agent. Give a file that covey train-agent has written.")
            about: dict[str, Any] = json.loads(str(described))
            about = {**about, "kind": about["kind"], "meaning": dict(about["meaning"])}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Refusal:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Refusal(
            f"The agent {path} cannot be read ({error}). Give a file that covey train-agent has written."
        ) from error
    return about, tensors
