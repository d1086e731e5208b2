"""DDPG (Lillicrap et al., "Continuous control with deep reinforcement learning", 2015), as FedDRL uses it.

An actor π chooses an action for a state, a critic Q says what an action is worth, and a target of each follows slowly.
What was experienced is replayed, the more often the more it surprises (FedDRL's Algorithm 1). Everything is written
for a stack of agents; a single agent is a stack of one.
"""

import copy
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.aggregation.agents_together import Network, catch_up, leave, wait
from covey.aggregation.repeatable import as_tensor, one_thread
from covey.aggregation.replay_buffer import Experiences, Replay, prioritised
from covey.arrays import FloatArray, State
from covey.errors import require
from covey.randomness import generator, torch_seed

LEAST_PRIORITY = 1e-6
"""Added to every temporal difference, so that each experience can be drawn."""

DIVERGED = "The agent's networks have diverged in training; lower actor_rate and critic_rate."

_CHUNK = 1 << 14
"""Experiences whose priorities are computed at once."""


class Perceptron:
    """Linear layers with leaky ReLU between, as a function of flat parameters; for a stack of agents at once."""

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
        """Torch's own initialisation of linear layers, U(-`last`, `last`) for the last one: float64 `[P]`."""
        pieces = []
        for number, (rows, columns) in enumerate(self.layers):
            layer = nn.Linear(rows, columns, dtype=torch.float64)
            if number == len(self.layers) - 1:
                nn.init.uniform_(layer.weight, -last, last)
                nn.init.uniform_(layer.bias, -last, last)
            pieces += [layer.weight.detach().t().flatten(), layer.bias.detach()]
        return torch.cat(pieces)


class Architecture(Protocol):
    """An actor and a critic, as functions of flat parameters; equal ones can be trained as one stack."""

    @property
    def state_size(self) -> int: ...

    @property
    def action_size(self) -> int: ...

    def initial(self) -> tuple[Tensor, Tensor]:
        """Parameters of the actor and the critic to begin with, from torch's generator."""
        ...

    def act(self, actor: Tensor, states: Tensor) -> Tensor:
        """π(s): `[agents, P]` and `[agents, n, S]` → `[agents, n, D]`."""
        ...

    def value(self, critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a): `[agents, n]`."""
        ...


@dataclass(frozen=True)
class Learning:
    """How an agent learns."""

    discount: float
    """γ"""
    batch: int
    """Experiences per step."""
    updates: int
    """Most steps per training."""
    soft: float
    """τ: what part of the way the targets follow in a step."""
    actor_rate: float
    critic_rate: float
    capacity: int
    """Experiences that are remembered."""
    normalise: bool
    """Rewards are seen relative to the mean and deviation of those remembered."""
    anchor: float = 0.0
    """How strongly the actor is held to the actions that were tried; far from those the critic knows nothing."""


class Agent:
    """A DDPG agent: chooses actions, remembers what came of them, and is trained on it when next needed."""

    def __init__(self, architecture: Architecture, learning: Learning, *key: int | str) -> None:
        """`key` decides the initial networks."""
        self.architecture = architecture
        self.learning = learning
        with torch_seed(*key, "agent"):
            actor, critic = architecture.initial()
        self.actor = Network.of(actor)
        self.critic = Network.of(critic)
        self.steps = 0
        """Steps of the optimisers so far."""
        self.replay = Replay(learning.capacity, architecture.state_size, architecture.action_size)
        self.pending: list[int | str] | None = None
        """The key of the training that was put off."""
        self._aside: tuple[threading.Thread, Agent, list[int | str]] | None = None
        self.failure: Exception | None = None
        """What a training aside came to that failed."""

    def act(self, state: FloatArray) -> FloatArray:
        """π(s), by the networks as they are after all training that was due."""
        catch_up(self, train)
        self.adopt()
        with torch.no_grad(), one_thread():
            inputs = as_tensor(state).to(self.device)[None, None]
            action: FloatArray = self.architecture.act(self.actor.main[None], inputs)[0, 0].cpu().numpy()
        require(bool(np.isfinite(action).all()), DIVERGED)
        return action

    def train_later(self, *key: int | str) -> None:
        """Train on what is remembered by now before the next action; `key` decides what is drawn."""
        if self.updates:
            self.pending = list(key)
            wait(self)

    def train_now(self, *key: int | str) -> None:
        self.train_later(*key)
        catch_up(self, train)

    def train_aside(self, *key: int | str) -> None:
        """Train a copy of the networks on what is remembered by now while others work (the paper's side thread).

        The first action after its end is by the networks that came of it. Nothing is done while one is under way.
        """
        if self._aside is None and self.updates:
            twin = copy.copy(self)
            twin.actor, twin.critic, twin.replay = self.actor.copy(), self.critic.copy(), self.replay.copy()
            twin.pending = list(key)
            thread = threading.Thread(target=_learn_aside, args=(twin,), name="agent", daemon=True)
            self._aside = thread, twin, list(key)
            thread.start()

    def adopt(self) -> None:
        """Take over what the side thread has learned, if it is done."""
        if self._aside is None:
            return
        thread, twin, _ = self._aside
        if not thread.is_alive():
            if twin.failure is not None:
                raise twin.failure
            self.actor, self.critic, self.steps = twin.actor, twin.critic, twin.steps
            self._aside = None

    @property
    def updates(self) -> int:
        """⌊|D|/b⌋ steps, or as many as are allowed."""
        return min(self.learning.updates, len(self.replay) // self.learning.batch)

    @property
    def likeness(self) -> Hashable:
        # On a CPU a stack does not pay: five agents of the paper's size took 0.27 s together and 0.11 s one by one,
        # each of which fits a cache.
        alone = id(self) if self.device.type == "cpu" else None
        return self.architecture, self.learning, len(self.replay), self.device, alone

    @property
    def device(self) -> torch.device:
        return self.actor.main.device

    def to(self, device: torch.device) -> None:
        """Keep the networks where they are trained."""
        if device != self.device:
            self.actor, self.critic = self.actor.to(device), self.critic.to(device)

    def state_dict(self) -> State:
        """Does not wait for a side thread: what is under way there is due again in whoever goes on from this state."""
        self.adopt()
        under_way = None if self._aside is None else self._aside[2]
        return {
            "actor": dict(zip(("main", "target", "mean", "square"), self.actor.tensors, strict=True)),
            "critic": dict(zip(("main", "target", "mean", "square"), self.critic.tensors, strict=True)),
            "steps": self.steps,
            "replay": self.replay.state_dict(),
            "pending": under_way or self.pending,
        }

    def load_state_dict(self, state: State) -> None:
        leave(self)
        self._aside = None
        self.actor = Network(**{name: tensor.clone() for name, tensor in state["actor"].items()})
        self.critic = Network(**{name: tensor.clone() for name, tensor in state["critic"].items()})
        self.steps = int(state["steps"])
        self.replay.load_state_dict(state["replay"])
        self.pending = state["pending"]
        if self.pending is not None:
            wait(self)


def train(agents: Sequence[Agent]) -> None:
    """Algorithm 1, for agents that are alike: as one stack, each on its own experiences."""
    with one_thread():
        _learn(*agents)


def _learn_aside(agent: Agent) -> None:
    try:
        _learn(agent)
    except Exception as error:
        agent.failure = error


def _learn(*agents: Agent) -> None:
    first = agents[0]
    learning, device, updates = first.learning, first.device, first.updates
    memory = Experiences.stack([agent.replay.experiences(device) for agent in agents])
    if learning.normalise:
        center = memory.rewards.mean(dim=1, keepdim=True)
        # A single reward has no deviation.
        deviation = memory.rewards.std(dim=1, keepdim=True, correction=min(1, memory.rewards.shape[1] - 1))
        scaled = (memory.rewards - center) / (deviation + 1e-8)
        memory = Experiences(memory.states, memory.actions, scaled, memory.next_states)
    actors = Network.stack([agent.actor for agent in agents])
    critics = Network.stack([agent.critic for agent in agents])
    priorities = priorities_of(first.architecture, learning, actors, critics, memory).cpu().numpy()
    require(bool(np.isfinite(priorities).all()), DIVERGED)
    shape = (updates * learning.batch,)
    drawn = [
        prioritised(generator(*(agent.pending or [])), row, shape)
        for agent, row in zip(agents, priorities, strict=True)
    ]
    batches = memory.take(torch.from_numpy(np.stack(drawn)).to(device))
    steps = torch.tensor([[agent.steps] for agent in agents], dtype=torch.float64, device=device)
    for at in range(0, updates * learning.batch, learning.batch):
        steps = steps + 1
        update(first.architecture, learning, actors, critics, batches.between(at, at + learning.batch), steps)
    actors.put_back([agent.actor for agent in agents])
    critics.put_back([agent.critic for agent in agents])
    for agent in agents:
        agent.steps += updates
        agent.pending = None


def update(
    architecture: Architecture, learning: Learning, actors: Network, critics: Network, batch: Experiences, steps: Tensor
) -> None:
    """One step of each agent of a stack on a batch `[agents, b, ...]` of its own (Algorithm 1, lines 4-9).

    The losses of all agents are added up, so that one gradient holds those of all. `steps` `[agents, 1]` counts from 1.
    """
    targets = targets_of(architecture, learning, actors, critics, batch)
    critic = critics.main.detach().requires_grad_()
    errors = architecture.value(critic, batch.states, batch.actions) - targets
    (slope,) = torch.autograd.grad(errors.square().mean(dim=1).sum(), critic)
    adam(critics, slope, learning.critic_rate, steps)
    actor = actors.main.detach().requires_grad_()
    actions = architecture.act(actor, batch.states)
    losses = -architecture.value(critics.main, batch.states, actions)
    if learning.anchor:
        losses = losses + learning.anchor * (actions - batch.actions).square().mean(dim=-1)
    (slope,) = torch.autograd.grad(losses.mean(dim=1).sum(), actor)
    adam(actors, slope, learning.actor_rate, steps)
    for network in (actors, critics):
        network.target.lerp_(network.main, learning.soft)


@torch.no_grad()
def targets_of(
    architecture: Architecture, learning: Learning, actors: Network, critics: Network, batch: Experiences
) -> Tensor:
    """y = r + γ Q'(s', π'(s')) (Algorithm 1, line 5): `[agents, n]`."""
    following = architecture.act(actors.target, batch.next_states)
    return batch.rewards + learning.discount * architecture.value(critics.target, batch.next_states, following)


@torch.no_grad()
def priorities_of(
    architecture: Architecture, learning: Learning, actors: Network, critics: Network, memory: Experiences
) -> Tensor:
    """|y - Q(s, a)| of every experience (Algorithm 1, line 1): `[agents, n]`, above 0.

    The paper's line takes Q of the next state and the old action, which is no temporal difference of anything.
    """
    parts = []
    for at in range(0, memory.rewards.shape[1], _CHUNK):
        some = memory.between(at, at + _CHUNK)
        targets = targets_of(architecture, learning, actors, critics, some)
        parts.append((targets - architecture.value(critics.main, some.states, some.actions)).abs() + LEAST_PRIORITY)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def adam(network: Network, slope: Tensor, rate: float, steps: Tensor) -> None:
    """One step of Adam (Kingma and Ba 2015, with their defaults) for a stack: `[agents, P]`, in place.

    With c₁ and c₂ the corrections of the moments' bias, m/c₁ over √(v/c₂) + ε is m over (√v + ε√c₂)·c₁/√c₂, which
    takes fewer passes over the parameters.
    """
    first, second, tiny = 0.9, 0.999, 1e-8
    network.mean.lerp_(slope, 1 - first)
    network.square.mul_(second).addcmul_(slope, slope, value=1 - second)
    root = (1 - second**steps).sqrt_()
    width = network.square.sqrt().add_(tiny * root).mul_((1 - first**steps) / root)
    network.main.addcdiv_(network.mean, width, value=-rate)
