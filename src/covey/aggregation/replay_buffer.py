"""A replay buffer of experiences (s, a, r, s'), and prioritised draws from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import FloatArray, IntArray, State

_FIELDS = ("states", "actions", "rewards", "next_states")


@dataclass(frozen=True, eq=False)
class Experiences:
    """n experiences (s, a, r, s') of one agent, or of each agent of a stack."""

    states: Tensor
    """`[..., n, S]`"""
    actions: Tensor
    """`[..., n, D]`"""
    rewards: Tensor
    """`[..., n]`"""
    next_states: Tensor
    """`[..., n, S]`"""

    @classmethod
    def stack(cls, many: Sequence["Experiences"]) -> "Experiences":
        """Stack the experiences of agents that have equally many: `[agents, n, ...]`."""
        return cls(*(torch.stack([getattr(each, field) for each in many]) for field in _FIELDS))

    def between(self, begin: int, end: int) -> "Experiences":
        """Return each agent's experiences at positions `begin` to `end - 1` of a stack."""
        return Experiences(*(getattr(self, field)[:, begin:end] for field in _FIELDS))

    def take(self, chosen: Tensor) -> "Experiences":
        """Return each agent's experiences at positions `chosen` `[agents, m]` of a stack: `[agents, m, ...]`."""
        agent = torch.arange(len(chosen), device=chosen.device)[:, None]
        return Experiences(*(getattr(self, field)[agent, chosen] for field in _FIELDS))


class Replay:
    """The last `capacity` experiences of an agent, as float64 on the CPU."""

    def __init__(self, capacity: int, state_size: int, action_size: int) -> None:
        self.capacity = capacity
        self._shapes = ((state_size,), (action_size,), (), (state_size,))
        self._arrays: list[FloatArray] = [np.empty((0, *shape)) for shape in self._shapes]
        self._length = 0
        self._next = 0

    def __len__(self) -> int:
        return self._length

    def push(self, state: FloatArray, action: FloatArray, reward: float, next_state: FloatArray) -> None:
        """Add an experience; a full buffer drops its oldest."""
        if self._next == len(self._arrays[0]) and self._length < self.capacity:
            room = min(self.capacity, max(64, 2 * self._length))
            self._arrays = [np.concatenate([old, np.empty((room - len(old), *old.shape[1:]))]) for old in self._arrays]
        for array, value in zip(self._arrays, (state, action, np.float64(reward), next_state), strict=True):
            array[self._next] = value
        self._length = max(self._length, self._next + 1)
        self._next = (self._next + 1) % self.capacity

    def extend(self, other: "Replay") -> None:
        """Add the experiences of another buffer."""
        for row in range(len(other)):
            self.push(*(array[row] for array in other._arrays))

    def copy(self) -> "Replay":
        twin = Replay(self.capacity, self._arrays[0].shape[1], self._arrays[1].shape[1])
        twin.load_state_dict(self.state_dict())
        return twin

    def experiences(self, device: torch.device | str = "cpu") -> Experiences:
        """Return all experiences: `[n, ...]`."""
        return Experiences(*(torch.from_numpy(array[: self._length]).to(device) for array in self._arrays))

    @property
    def fits(self) -> bool:
        """False if experiences that were loaded are of states or actions of another size."""
        return all(array.shape[1:] == shape for array, shape in zip(self._arrays, self._shapes, strict=True))

    @property
    def rewards(self) -> FloatArray:
        """`[n]`: a view, which can be changed in place."""
        return self._arrays[2][: self._length]

    def state_dict(self) -> State:
        held = {field: array[: self._length].copy() for field, array in zip(_FIELDS, self._arrays, strict=True)}
        return {**held, "next": self._next}

    def load_state_dict(self, state: State) -> None:
        self._arrays = [np.array(state[field], dtype=np.float64) for field in _FIELDS]
        self._length = len(self._arrays[0])
        self._next = int(state["next"])


def prioritised(rng: np.random.Generator, priorities: FloatArray, shape: tuple[int, ...]) -> IntArray:
    """Draw positions with replacement, in proportion to their priorities `[n]`."""
    chances = priorities / priorities.sum()
    drawn: NDArray[np.int64] = rng.choice(len(priorities), size=shape, p=chances).astype(np.int64, copy=False)
    return drawn
