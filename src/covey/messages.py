"""Orders and replies: what the server asks of a round's clients, and what comes back.

These two are the wire format. What is not in them never leaves a client, and the bytes of a round
are counted from their serialised form (safetensors).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from covey.config import Local
from covey.environments import IntArray

if TYPE_CHECKING:
    from covey.probes import Probe


@dataclass(frozen=True, eq=False)
class Order:
    """What a round asks for: who trains, from which model, how, and what is measured besides."""

    round: int
    clients: IntArray
    """`[cohort]`, ascending."""
    start: Tensor
    """The model to start from: `[d]` for all, or `[cohort, d]`, one for each."""
    work: Local
    probes: tuple["Probe", ...] = ()
    resident: bool = False
    """The models stay where they are trained: neither sent nor returned (local-only, central)."""

    def start_of(self, position: int) -> Tensor:
        return self.start if self.start.dim() == 1 else self.start[position]

    def bytes_down(self) -> int:
        """What the server sends, over all clients of the round."""
        tensors = {} if self.resident else {"state": self.start_of(0)}
        instructions = {"work": json.dumps(asdict(self.work)), "probes": ",".join(probe.name for probe in self.probes)}
        return packed_size(tensors, {"round": str(self.round), **instructions}) * len(self.clients)


@dataclass(frozen=True, eq=False)
class Reply:
    """What one client sends back."""

    client: int
    state: Tensor
    """`[d]`, after training."""
    samples: int
    loss: float
    """Mean training loss over the local steps."""
    probes: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Probe → field → value."""

    def tensors(self) -> dict[str, Tensor]:
        """The fields as they travel."""
        measured = {f"{probe}.{name}": value for probe, fields in self.probes.items() for name, value in fields.items()}
        scalars = {"samples": torch.tensor(self.samples), "loss": torch.tensor(self.loss, dtype=torch.float32)}
        return {"state": self.state, **scalars, **measured}


@dataclass(frozen=True)
class Fault:
    """A reply that was lost or thrown away, and why."""

    client: int
    reason: str


@dataclass(frozen=True, eq=False)
class Replies:
    """The sound replies of a round, stacked over clients in ascending order, and the faults."""

    clients: IntArray
    """`[k]`"""
    states: Tensor
    """`[k, d]`"""
    samples: Tensor
    """`[k]`, int64"""
    losses: Tensor
    """`[k]`, float64"""
    probes: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Probe → field → values `[k, ...]`."""
    faults: tuple[Fault, ...] = ()
    bytes_up: int = 0
    seconds: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    """`[k]`: what each client took, where time is kept (Oort wants to know), else empty."""
    round_seconds: float = 0.0
    """What the server waited for the round, on the same clock."""
    wall_seconds: float = 0.0
    """What it really took to compute them; with many runs in lockstep, this run's share."""

    def __len__(self) -> int:
        return len(self.clients)

    def take(self, keep: IntArray) -> "Replies":
        """The replies at positions `keep`."""
        index = torch.from_numpy(keep)
        return replace(
            self,
            clients=self.clients[keep],
            states=self.states[index.to(self.states.device)],
            samples=self.samples[index],
            losses=self.losses[index],
            seconds=self.seconds[index] if len(self.seconds) else self.seconds,
            probes={
                probe: {name: values[index] for name, values in fields.items()} for probe, fields in self.probes.items()
            },
        )


def checked(replies: Replies) -> Replies:
    """Drop what must not touch a model: a loss or a state that is not finite, a count that is not positive."""
    states = finite_rows(replies.states).tolist()
    losses = torch.isfinite(replies.losses).tolist()
    samples = replies.samples.tolist()
    keep, faults = [], list(replies.faults)
    for position, client in enumerate(replies.clients.tolist()):
        if not losses[position]:
            faults.append(Fault(client, "its loss became NaN or infinite"))
        elif not states[position]:
            faults.append(Fault(client, "its model holds NaN or infinite values"))
        elif samples[position] <= 0:
            faults.append(Fault(client, f"it reported {samples[position]} samples"))
        else:
            keep.append(position)
    if len(keep) < len(replies):
        replies = replies.take(np.array(keep, dtype=np.int64))
    return replace(replies, faults=tuple(sorted(faults, key=lambda fault: fault.client)))


def finite_rows(states: Tensor) -> Tensor:
    """Which states `[k, d]` hold finite values only: `[k]`.

    A finite sum proves it in one pass that writes nothing; one that is not may be an overflow, and is looked into.
    """
    finite = torch.isfinite(states.sum(dim=1))
    for row in torch.nonzero(~finite).flatten().tolist():
        finite[row] = torch.isfinite(states[row]).all()
    return finite


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Tensors as they travel: safetensors."""
    return save({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(metadata) if metadata else None)


def unpack(data: bytes) -> dict[str, Tensor]:
    return load(data)


def packed_size(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """`len(pack(tensors, metadata))` without copying the tensors: the header is packed, the payload counted."""
    empty = {name: tensor.new_empty(0) for name, tensor in tensors.items()}
    header = json.loads(pack(empty, metadata)[8:])
    at = 0
    # The format decides the order of tensors from their types and names, so the empty ones are in it already.
    for name in header:
        if name in tensors:
            size = tensors[name].numel() * tensors[name].element_size()
            header[name].update(shape=list(tensors[name].shape), data_offsets=[at, at + size])
            at += size
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (length + 7) // 8 * 8 + at
