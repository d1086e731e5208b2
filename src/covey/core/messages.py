"""Orders and replies: the server's request to a round's clients, and each client's answer.

Together they are the wire format: a client sends nothing else. A round's bytes are the size of its messages as
safetensors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.config.sections import Local
from covey.core.wire_size import packed_size

if TYPE_CHECKING:
    from covey.core.interfaces import Probe
    from covey.core.trainer import TrainerOrder

Measurements = Mapping[str, Mapping[str, Tensor]]
"""Probe → field → value."""


@dataclass(frozen=True)
class Gate:
    """A rule that clients apply before they upload: a client whose measurement is below the bound keeps its model."""

    probe: str
    field: str
    at_least: float

    def opens(self, measured: Measurements) -> bool:
        """True if a client with these measurements sends its model; a missing measurement does not open the gate."""
        value = measured.get(self.probe, {}).get(self.field)
        return value is not None and bool(value >= self.at_least)


def gate_opens(gate: Gate | None, measured: Measurements) -> bool:
    """True if there is no gate, or a client with these measurements passes it."""
    return gate is None or gate.opens(measured)


@dataclass(frozen=True, eq=False)
class Order:
    """A round's request: its clients, the model that they start from, their training, and their measurements."""

    round: int
    clients: IntArray
    """`[cohort]`, ascending."""
    start: Tensor
    """The model to start from: `[d]` for all, or `[cohort, d]`, one for each."""
    work: Local
    probes: tuple["Probe", ...] = ()
    resident: bool = False
    """Models stay on the clients: neither sent nor returned (local-only, central)."""
    train: bool = True
    """False asks clients only to measure the model they receive; they send no model back."""
    gate: Gate | None = None
    """Decides which clients keep their model and send only their measurements."""
    held: bool = False
    """Clients already hold the model they start from: it is not sent, but the trained one is returned."""
    anchor: Tensor | None = None
    """The model that the proximal term pulls to, if not the start: `[d]` for all, or `[cohort, d]`."""
    holdout: int = 0
    """Every `holdout`-th sample of a client is kept out of its training, for validation; 0 keeps none."""
    trainer: "TrainerOrder | None" = None
    """How clients train, if not by plain local training."""

    def start_of(self, position: int) -> Tensor:
        """Return the model `[d]` that the client at `position` starts from."""
        return self.start if self.start.dim() == 1 else self.start[position]

    def take(self, keep: IntArray) -> "Order":
        """Return the order for the clients at positions `keep`."""

        def of(rows: Tensor) -> Tensor:
            return rows if rows.dim() == 1 else rows[torch.from_numpy(keep).to(rows.device)]

        anchor = None if self.anchor is None else of(self.anchor)
        return replace(self, clients=self.clients[keep], start=of(self.start), anchor=anchor)

    def shared(self, state: Tensor, position: int | None = None) -> Tensor:
        """Return what is exchanged of a state: all but the part that stays with clients.

        To the client at `position`, all of it is sent on its first visit.
        """
        trainer = self.trainer
        if trainer is None or trainer.shared is None:
            return state
        if position is not None and int(self.clients[position]) not in trainer.kept:
            return state
        return state[trainer.shared.to(state.device)]

    def completed(self, state: Tensor, sent: Tensor) -> Tensor:
        """Return a client's model from what it sent; the part that stays with it is that of `state`."""
        if self.trainer is None or self.trainer.shared is None:
            return sent
        return state.index_copy(0, self.trainer.shared.to(state.device), sent.to(state.device))

    @property
    def leaves_something(self) -> bool:
        """True if clients keep something for a probe or for the trainer."""
        by_trainer = self.trainer is not None and bool(self.trainer.ref.part.kept)
        return by_trainer or any(probe.kept for probe in self.probes)

    @property
    def returns_model(self) -> bool:
        """True if clients return the trained model, unless the gate makes them keep it."""
        return self.train and not self.resident

    def sends_model(self, measured: Measurements) -> bool:
        """True if a client with these measurements sends its model."""
        return self.returns_model and gate_opens(self.gate, measured)

    def tensors(self, position: int) -> dict[str, Tensor]:
        """Return the tensors that the server sends to one client; instructions are apart."""
        tensors = {} if self.resident or self.held else {"state": self.shared(self.start_of(position), position)}
        if self.anchor is not None:
            tensors["anchor"] = self.anchor if self.anchor.dim() == 1 else self.anchor[position]
        for probe in self.probes:
            payload = probe.for_client(int(self.clients[position])).payload()
            tensors |= {f"{probe.name}.{name}": value for name, value in payload.items()}
        if self.trainer is not None:
            tensors |= {f"trainer.{name}": value for name, value in self.trainer.sent.items()}
        return tensors

    @property
    def personal(self) -> bool:
        """True if messages to clients may differ in size."""
        if self.trainer is not None and self.trainer.shared is not None:
            return True
        return any(probe.for_client(int(client)) is not probe for probe in self.probes for client in self.clients[:1])

    def bytes_down(self) -> int:
        """Return the bytes that the server sends, over all clients of the round."""
        # Sizes are cached by content; all rounds with as many digits take the same number of bytes.
        about = {"round": "0" * len(str(self.round)), "work": json.dumps(self.work.as_message())}
        about["probes"] = ",".join(probe.name for probe in self.probes)
        if self.holdout:
            about["holdout"] = str(self.holdout)
        if self.trainer is not None:
            about["trainer"] = json.dumps([self.trainer.ref.name, dict(self.trainer.ref.options)])
        if self.personal:
            return sum(packed_size(self.tensors(position), about) for position in range(len(self.clients)))
        return packed_size(self.tensors(0), about) * len(self.clients) if len(self.clients) else 0


UNTOLD = float("-inf")
"""Loss of a client that does not tell it."""


@dataclass(frozen=True, eq=False)
class Reply:
    """One client's reply."""

    client: int
    state: Tensor
    """`[d]`, after training."""
    samples: int
    loss: float
    """Mean training loss over the local steps, or `UNTOLD`."""
    probes: Measurements = field(default_factory=dict)
    kept: Measurements = field(default_factory=dict)
    """Measurements that stay on the client; they are not sent."""

    def tensors(self, order: Order) -> dict[str, Tensor]:
        """Return the tensors that the client sends in reply to an order; the model only if it is asked for."""
        measured = {f"{probe}.{name}": value for probe, fields in self.probes.items() for name, value in fields.items()}
        scalars = {"samples": torch.tensor(self.samples)}
        if order.train:
            scalars["loss"] = torch.tensor(self.loss, dtype=torch.float32)
        model = {"state": order.shared(self.state)} if order.sends_model(self.probes) else {}
        return {**model, **scalars, **measured}


@dataclass(frozen=True)
class Fault:
    """A reply that was lost or rejected, or one rejected measurement of a sound reply, and the reason."""

    client: int
    reason: str
    measurement: str | None = None
    """The probe whose measurement was rejected, if only that."""
    unsound: bool = False
    """True if the reply arrived and its model or loss was not finite."""
