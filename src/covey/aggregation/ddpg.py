"""DDPG (Lillicrap et al., "Continuous control with deep reinforcement learning", 2015) with prioritised replay.

An actor π chooses an action for a state, a critic Q estimates what the action is worth, and a target network follows
each of them slowly. Experiences are replayed in proportion to their temporal-difference error (Algorithm 1 of FedDRL).
All computations take a stack of agents `[agents, ...]`; a single agent is a stack of one.
"""

import copy
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.replay_buffer import Experiences, Replay, prioritised
from covey.arrays import FloatArray, State
from covey.core.interfaces import JointWork
from covey.errors import require
from covey.randomness import generator, torch_seed

LEAST_PRIORITY = 1e-6
"""Added to every temporal-difference error, so that each experience can be drawn."""

DIVERGED = "The agent's networks have diverged in training; lower actor_rate and critic_rate."

_CHUNK = 1 << 14
"""Experiences whose priorities are computed at once."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Hyper-parameters of DDPG; the defaults are FedDRL's."""

    discount: float = 0.99
    """γ."""
    batch: int = 4
    """Experiences per step of the optimisers."""
    updates: int = 32
    """Most steps per round, of ⌊experiences / batch⌋. The paper has no such bound: give a number above that, such as
    1000000."""
    soft: float = 0.02
    """τ: the fraction by which targets follow in each step. The paper prints 1 - τ in its place, which would leave no
    difference between networks and targets."""
    actor_rate: float = 1e-4
    """Adam's rate for the actor."""
    critic_rate: float = 1e-3
    """Adam's rate for the critic."""
    capacity: int = 100_000
    """Experiences that the replay buffer holds."""
    normalise_rewards: bool = False
    """True scales rewards to mean 0 and deviation 1 over the replay buffer."""

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


class Architecture(Protocol):
    """An actor and a critic as functions of flat parameters. Agents with equal architectures can form a stack."""

    @property
    def state_size(self) -> int: ...

    @property
    def action_size(self) -> int: ...

    def initial(self) -> tuple[Tensor, Tensor]:
        """Draw the initial parameters of the actor and the critic from torch's generator."""
        ...

    def act(self, actor: Tensor, states: Tensor) -> Tensor:
        """Return π(s): `[agents, P]` and `[agents, n, S]` → `[agents, n, D]`."""
        ...

    def value(self, critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        """Return Q(s, a): `[agents, n]`."""
        ...


@dataclass(frozen=True, eq=False)
class NetworkState:
    """Flat parameters of a network and its target, and Adam's moments: `[P]` each, or `[agents, P]` as a stack."""

    main: Tensor
    target: Tensor
    mean: Tensor
    square: Tensor

    @classmethod
    def initial(cls, parameters: Tensor) -> "NetworkState":
        """Return a network before its first step; the target is a copy."""
        return cls(parameters, parameters.clone(), torch.zeros_like(parameters), torch.zeros_like(parameters))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.main, self.target, self.mean, self.square

    def copy(self) -> "NetworkState":
        return NetworkState(*(tensor.clone() for tensor in self.tensors))

    def to(self, device: torch.device) -> "NetworkState":
        return NetworkState(*(tensor.to(device) for tensor in self.tensors))

    @classmethod
    def stack(cls, networks: Sequence["NetworkState"]) -> "NetworkState":
        """Stack networks of one shape; a single one is not copied, so its stack is trained in place."""
        if len(networks) == 1:
            return cls(*(tensor[None] for tensor in networks[0].tensors))
        return cls(*(torch.stack(rows) for rows in zip(*(network.tensors for network in networks), strict=True)))

    def unstack(self, networks: Sequence["NetworkState"]) -> None:
        """Write a stack back into the networks that it was made of."""
        if len(networks) == 1:
            return
        for stacked, rows in zip(
            self.tensors, zip(*(network.tensors for network in networks), strict=True), strict=True
        ):
            for row, value in zip(rows, stacked, strict=True):
                row.copy_(value)


class Agent:
    """A DDPG agent: chooses actions, and learns from the experiences in its replay buffer.

    Training can be scheduled and performed later, jointly with that of other agents (`AgentTraining`). An agent whose
    training is still pending when it acts performs it first.
    """

    def __init__(self, architecture: Architecture, learning: Learning, *key: int | str, anchor: float = 0.0) -> None:
        """`key` seeds the initial networks; `anchor` weighs the squared distance to replayed actions (`update`)."""
        self.architecture = architecture
        self.learning = learning
        self.anchor = anchor
        with torch_seed(*key, "agent"):
            actor, critic = architecture.initial()
        self.actor = NetworkState.initial(actor)
        self.critic = NetworkState.initial(critic)
        self.steps = 0
        """Steps of the optimisers so far."""
        self.replay = Replay(learning.capacity, architecture.state_size, architecture.action_size)
        self.pending: list[int | str] | None = None
        """Seed key of the scheduled training; None if there is none."""
        self._background: tuple[threading.Thread, Agent, list[int | str]] | None = None
        """The side thread, the copy that it trains, and its seed key."""
        self.failure: Exception | None = None
        """The exception that ended a training in a side thread."""

    def act(self, state: FloatArray) -> FloatArray:
        """Return π(s) `[D]` after all pending training."""
        self.train_pending()
        self.adopt_background()
        with torch.no_grad(), one_thread():
            # A tensor of torch's own memory: how NumPy aligned its array would decide how a product is computed.
            inputs = torch.tensor(state, dtype=torch.float64).to(self.device)[None, None]
            action: FloatArray = self.architecture.act(self.actor.main[None], inputs)[0, 0].cpu().numpy()
        require(bool(np.isfinite(action).all()), DIVERGED)
        return action

    @property
    def updates(self) -> int:
        """Steps of a training now: ⌊|D| / b⌋ (Algorithm 1, line 3), bounded by `learning.updates`."""
        return min(self.learning.updates, len(self.replay) // self.learning.batch)

    def schedule_training(self, *key: int | str) -> None:
        """Schedule a training on the current experiences; `key` seeds what is drawn from them."""
        if self.updates:
            self.pending = list(key)

    def train_pending(self) -> None:
        """Perform the scheduled training, if there is one."""
        if self.pending is not None:
            train([self])

    def train_now(self, *key: int | str) -> None:
        self.schedule_training(*key)
        self.train_pending()

    def train_in_background(self, *key: int | str) -> None:
        """Train a copy of the agent in a side thread (section 3.4.1); the agent adopts it when it acts after the end.

        Does nothing while another training is running.
        """
        if self._background is None and self.updates:
            twin = copy.copy(self)
            twin.actor, twin.critic, twin.replay = self.actor.copy(), self.critic.copy(), self.replay.copy()
            twin.pending = list(key)
            thread = threading.Thread(target=_train_twin, args=(twin,), name="agent", daemon=True)
            self._background = thread, twin, list(key)
            thread.start()

    def adopt_background(self) -> None:
        """Take over the networks of a side thread that has ended; if it failed, raise its error."""
        if self._background is None:
            return
        thread, twin, _ = self._background
        if not thread.is_alive():
            if twin.failure is not None:
                raise twin.failure
            self.actor, self.critic, self.steps = twin.actor, twin.critic, twin.steps
            self._background = None

    @property
    def device(self) -> torch.device:
        return self.actor.main.device

    def to(self, device: torch.device) -> None:
        """Move the networks to the device where they are trained."""
        if device != self.device:
            self.actor, self.critic = self.actor.to(device), self.critic.to(device)

    def state_dict(self) -> State:
        """Return the agent's state without waiting for a side thread, whose training is stored as pending."""
        self.adopt_background()
        running = None if self._background is None else self._background[2]
        return {
            "actor": dict(zip(("main", "target", "mean", "square"), self.actor.tensors, strict=True)),
            "critic": dict(zip(("main", "target", "mean", "square"), self.critic.tensors, strict=True)),
            "steps": self.steps,
            "replay": self.replay.state_dict(),
            "pending": running or self.pending,
        }

    def load_state_dict(self, state: State) -> None:
        self._background = None
        self.actor = NetworkState(**{name: tensor.clone() for name, tensor in state["actor"].items()})
        self.critic = NetworkState(**{name: tensor.clone() for name, tensor in state["critic"].items()})
        self.steps = int(state["steps"])
        self.replay.load_state_dict(state["replay"])
        self.pending = state["pending"]


@dataclass(frozen=True, eq=False)
class AgentTraining(JointWork):
    """The scheduled training of one agent. On a GPU agents of many runs are trained as one stack."""

    agent: Agent

    @property
    def key(self) -> Hashable:
        agent = self.agent
        # On a CPU a stack does not pay: five agents of the paper's size took 0.27 s together and 0.11 s one by one,
        # each of which fits a cache.
        alone = id(agent) if agent.device.type == "cpu" else None
        return agent.architecture, agent.learning, agent.anchor, len(agent.replay), agent.device, alone

    @classmethod
    def perform(cls, works: Sequence["AgentTraining"]) -> None:
        # An agent that was needed earlier has trained by itself.
        due = [work.agent for work in works if work.agent.pending is not None]
        if due:
            train(due)


def train(agents: Sequence[Agent]) -> None:
    """Perform the scheduled training of agents with equal `AgentTraining.key`s: as one stack, on one thread."""
    with one_thread():
        _train(*agents)


def _train_twin(agent: Agent) -> None:
    try:
        _train(agent)
    except Exception as error:
        agent.failure = error


def _train(*agents: Agent) -> None:
    """Algorithm 1: prioritise the experiences, draw batches of them, and update once per batch."""
    first = agents[0]
    architecture, learning, device, updates = first.architecture, first.learning, first.device, first.updates
    memory = Experiences.stack([agent.replay.experiences(device) for agent in agents])
    if learning.normalise_rewards:
        memory = replace(memory, rewards=_normalised(memory.rewards))
    actors = NetworkState.stack([agent.actor for agent in agents])
    critics = NetworkState.stack([agent.critic for agent in agents])
    priorities = priorities_of(architecture, learning, actors, critics, memory).cpu().numpy()  # lines 1-2
    require(bool(np.isfinite(priorities).all()), DIVERGED)
    drawn = [
        prioritised(generator(*(agent.pending or [])), row, (updates * learning.batch,))
        for agent, row in zip(agents, priorities, strict=True)
    ]
    batches = memory.take(torch.from_numpy(np.stack(drawn)).to(device))
    steps = torch.tensor([[agent.steps] for agent in agents], dtype=torch.float64, device=device)
    for at in range(0, updates * learning.batch, learning.batch):  # line 3
        steps = steps + 1
        batch = batches.between(at, at + learning.batch)
        update(architecture, learning, actors, critics, batch, steps, first.anchor)  # lines 4-9
    actors.unstack([agent.actor for agent in agents])
    critics.unstack([agent.critic for agent in agents])
    for agent in agents:
        agent.steps += updates
        agent.pending = None


def _normalised(rewards: Tensor) -> Tensor:
    """Scale rewards `[agents, n]` to mean 0 and deviation 1; a single reward has no deviation."""
    deviation = rewards.std(dim=1, keepdim=True, correction=min(1, rewards.shape[1] - 1))
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (deviation + 1e-8)


def update(
    architecture: Architecture,
    learning: Learning,
    actors: NetworkState,
    critics: NetworkState,
    batch: Experiences,
    steps: Tensor,
    anchor: float = 0.0,
) -> None:
    """Take one step of each agent of a stack on a batch `[agents, b, ...]` of its own (Algorithm 1, lines 4-9).

    The losses of all agents are summed, so that one gradient holds those of all. `steps` `[agents, 1]` counts from 1.
    `anchor` adds anchor · (π(s) - a)² to the actor's loss (Fujimoto and Gu 2021); DDPG has none.
    """
    targets = targets_of(architecture, learning, actors, critics, batch)
    critic = critics.main.detach().requires_grad_()
    errors = architecture.value(critic, batch.states, batch.actions) - targets
    (gradient,) = torch.autograd.grad(errors.square().mean(dim=1).sum(), critic)
    adam(critics, gradient, learning.critic_rate, steps)
    actor = actors.main.detach().requires_grad_()
    actions = architecture.act(actor, batch.states)
    losses = -architecture.value(critics.main, batch.states, actions)
    if anchor:
        losses = losses + anchor * (actions - batch.actions).square().mean(dim=-1)
    (gradient,) = torch.autograd.grad(losses.mean(dim=1).sum(), actor)
    adam(actors, gradient, learning.actor_rate, steps)
    for network in (actors, critics):
        network.target.lerp_(network.main, learning.soft)


@torch.no_grad()
def targets_of(
    architecture: Architecture, learning: Learning, actors: NetworkState, critics: NetworkState, batch: Experiences
) -> Tensor:
    """Return y = r + γ Q'(s', π'(s')) (Algorithm 1, line 5): `[agents, n]`."""
    following = architecture.act(actors.target, batch.next_states)
    return batch.rewards + learning.discount * architecture.value(critics.target, batch.next_states, following)


@torch.no_grad()
def priorities_of(
    architecture: Architecture, learning: Learning, actors: NetworkState, critics: NetworkState, memory: Experiences
) -> Tensor:
    """Return |y - Q(s, a)| of every experience (Algorithm 1, line 1): `[agents, n]`, above 0.

    The paper prints Q of the next state and the old action, which is no temporal-difference error.
    """
    parts = []
    for at in range(0, memory.rewards.shape[1], _CHUNK):
        some = memory.between(at, at + _CHUNK)
        targets = targets_of(architecture, learning, actors, critics, some)
        parts.append((targets - architecture.value(critics.main, some.states, some.actions)).abs() + LEAST_PRIORITY)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def adam(network: NetworkState, gradient: Tensor, rate: float, steps: Tensor) -> None:
    """Take one step of Adam (Kingma and Ba 2015, their defaults) for a stack: `[agents, P]`, in place.

    With c₁ and c₂ the corrections of the moments' bias, m/c₁ over √(v/c₂) + ε is m over (√v + ε√c₂)·c₁/√c₂, which
    takes fewer passes over the parameters.
    """
    first, second, tiny = 0.9, 0.999, 1e-8
    network.mean.lerp_(gradient, 1 - first)
    network.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    root = (1 - second**steps).sqrt_()
    width = network.square.sqrt().add_(tiny * root).mul_((1 - first**steps) / root)
    network.main.addcdiv_(network.mean, width, value=-rate)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread of torch inside, so that results are the same to the bit on any number of threads.

    Threads may split a matrix product, which changes the order of its sums. An agent learns from its own actions, so
    one bit today is another action some rounds later.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
