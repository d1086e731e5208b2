"""Agents of many runs trained as one stack.

In a sweep that advances in lockstep every run has an agent of its own, and each wants to be trained once a round: a
few dozen steps on tiny batches, which cost a GPU launches rather than arithmetic. So training is put off until an
agent's networks are needed next. By then the others of the round wait too, and all that are alike are trained together.
What an agent becomes does not depend on its company, but for rounding.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Network:
    """A network's parameters, those of its target, and Adam's moments: flat, `[P]`, or `[agents, P]` as a stack."""

    main: Tensor
    target: Tensor
    mean: Tensor
    square: Tensor

    @classmethod
    def of(cls, parameters: Tensor) -> "Network":
        """A network before its first step; the target is a copy."""
        return cls(parameters, parameters.clone(), torch.zeros_like(parameters), torch.zeros_like(parameters))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.main, self.target, self.mean, self.square

    def copy(self) -> "Network":
        return Network(*(tensor.clone() for tensor in self.tensors))

    def to(self, device: torch.device) -> "Network":
        return Network(*(tensor.to(device) for tensor in self.tensors))

    @classmethod
    def stack(cls, networks: Sequence["Network"]) -> "Network":
        """Networks of the same shape as a stack; a single one is not copied."""
        if len(networks) == 1:
            return cls(*(tensor[None] for tensor in networks[0].tensors))
        return cls(*(torch.stack(rows) for rows in zip(*(network.tensors for network in networks), strict=True)))

    def put_back(self, networks: Sequence["Network"]) -> None:
        """Write a stack back to the networks that it was made of."""
        if len(networks) == 1:
            return
        for stacked, rows in zip(
            self.tensors, zip(*(network.tensors for network in networks), strict=True), strict=True
        ):
            for row, value in zip(rows, stacked, strict=True):
                row.copy_(value)


class Pupil(Protocol):
    """Somebody who may wait to be trained."""

    @property
    def likeness(self) -> Hashable:
        """Those with equal likeness can be trained as one stack."""
        ...


P = TypeVar("P", bound=Pupil)


class _Waiting(threading.local):
    """Those who wait, first come first; of one thread, since nobody shall be trained while another thread uses him."""

    def __init__(self) -> None:
        self.pupils: weakref.WeakValueDictionary[int, Pupil] = weakref.WeakValueDictionary()
        self.tickets = 0


_waiting = _Waiting()


def wait(pupil: Pupil) -> None:
    """Let `pupil` wait until `catch_up` trains it, on its own account or another's."""
    _waiting.pupils[_waiting.tickets] = pupil
    _waiting.tickets += 1


def leave(pupil: Pupil) -> None:
    """`pupil` waits no longer."""
    for ticket, other in list(_waiting.pupils.items()):
        if other is pupil:
            del _waiting.pupils[ticket]


def catch_up(pupil: P, train: Callable[[Sequence[P]], None]) -> None:
    """If `pupil` waits, train it, and with it all that wait and are like it."""
    waiting = list(_waiting.pupils.values())
    if not any(other is pupil for other in waiting):
        return
    wanted = pupil.likeness
    together = [other for other in waiting if type(other) is type(pupil) and other.likeness == wanted]
    for other in together:
        leave(other)
    train(together)
