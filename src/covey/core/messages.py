"""Orders and replies: what the server asks of a round's clients, and what comes back.

These two are the wire format. What is not in them never leaves a client, and the bytes of a round
are counted from their serialised form (safetensors).
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from covey.arrays import IntArray
from covey.config.sections import Local

if TYPE_CHECKING:
    from covey.core.interfaces import Probe

_MOST = 1e30
"""A number beyond this is no measurement, though floats have it."""


@dataclass(frozen=True)
class Gate:
    """A rule that clients apply before they upload: below the bound, the model stays where it is."""

    probe: str
    field: str
    at_least: float

    def opens(self, measured: Mapping[str, Mapping[str, Tensor]]) -> bool:
        """Whether a client that measured this sends its model."""
        return bool(measured[self.probe][self.field] >= self.at_least)


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
    train: bool = True
    """Without it clients only measure, on the model they received, and send no model back."""
    gate: Gate | None = None
    """When clients keep their model to themselves and send only what they measured."""
    held: bool = False
    """Clients hold the model they start from: it is not sent, but what they make of it is returned."""
    anchor: Tensor | None = None
    """What the proximal term pulls to, where not to the start: `[d]` for all, or `[cohort, d]`."""
    holdout: int = 0
    """Every so many-th sample of a client is kept out of its training, to validate models on; 0 keeps none."""

    def start_of(self, position: int) -> Tensor:
        return self.start if self.start.dim() == 1 else self.start[position]

    def take(self, keep: IntArray) -> "Order":
        """The order for the clients at positions `keep`."""

        def of(rows: Tensor) -> Tensor:
            return rows if rows.dim() == 1 else rows[torch.from_numpy(keep).to(rows.device)]

        anchor = None if self.anchor is None else of(self.anchor)
        return replace(self, clients=self.clients[keep], start=of(self.start), anchor=anchor)

    def tensors(self, position: int) -> dict[str, Tensor]:
        """What the server sends to one client besides instructions."""
        tensors = {} if self.resident or self.held else {"state": self.start_of(position)}
        if self.anchor is not None:
            tensors["anchor"] = self.anchor if self.anchor.dim() == 1 else self.anchor[position]
        for probe in self.probes:
            payload = probe.for_client(int(self.clients[position])).payload()
            tensors |= {f"{probe.name}.{name}": value for name, value in payload.items()}
        return tensors

    @property
    def personal(self) -> bool:
        """Whether clients are sent messages of different sizes."""
        return any(probe.for_client(int(client)) is not probe for probe in self.probes for client in self.clients[:1])

    def bytes_down(self) -> int:
        """What the server sends, over all clients of the round."""
        # Rounds of as many digits take as many bytes, and sizes that were seen before are remembered.
        about = {"round": "0" * len(str(self.round)), "work": json.dumps(asdict(self.work))}
        about["probes"] = ",".join(probe.name for probe in self.probes)
        if self.holdout:
            about["holdout"] = str(self.holdout)
        if self.personal:
            return sum(packed_size(self.tensors(position), about) for position in range(len(self.clients)))
        return packed_size(self.tensors(0), about) * len(self.clients) if len(self.clients) else 0


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
    kept: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Probe → field → value of what stays on the client; it does not travel."""

    def tensors(self, order: Order) -> dict[str, Tensor]:
        """The fields as they travel in answer to an order: no model where none is asked for."""
        measured = {f"{probe}.{name}": value for probe, fields in self.probes.items() for name, value in fields.items()}
        scalars = {"samples": torch.tensor(self.samples)}
        if order.train:
            scalars["loss"] = torch.tensor(self.loss, dtype=torch.float32)
        sends = order.train and not order.resident and (order.gate is None or order.gate.opens(self.probes))
        return {**({"state": self.state} if sends else {}), **scalars, **measured}


@dataclass(frozen=True)
class Fault:
    """A reply that was lost or thrown away, or one measurement of a reply that is otherwise used, and why."""

    client: int
    reason: str
    measurement: str | None = None
    """The probe whose measurement alone is thrown away."""


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
    """Probe → field → values `[k, ...]`; rows of NaN where a client's measurement is missing or unusable."""
    faults: tuple[Fault, ...] = ()
    withheld: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Clients whose model stayed with them because the order's gate did not open; they have no row."""
    told: "Replies | None" = None
    """What those said besides, in rows of their own without a model."""
    bytes_up: int = 0
    probe_bytes: Mapping[str, int] = field(default_factory=dict)
    """What each probe's measurements take of `bytes_up`."""
    probe_seconds: Mapping[str, float] = field(default_factory=dict)
    """What each probe took to measure, over all clients of the round, in real time."""
    seconds: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    """`[k]`: what each client took, where time is kept (Oort wants to know), else empty."""
    round_seconds: float = 0.0
    """What the server waited for the round, on the same clock."""
    wall_seconds: float = 0.0
    """What it really took to compute them; with many runs in lockstep, this run's share."""
    kept: Mapping[str, Mapping[int, Mapping[str, Tensor]]] = field(default_factory=dict)
    """Probe → client → field: what stays on the clients, here only because the simulation has nowhere else to put it.

    A method hands it back with the next order and must not learn from it.
    """

    def __len__(self) -> int:
        return len(self.clients)

    def observed(self, probe: str) -> IntArray:
        """Positions of the clients whose measurement of this probe can be used."""
        if probe not in self.probes:
            return np.empty(0, dtype=np.int64)
        usable = torch.ones(len(self), dtype=torch.bool)
        for values in self.probes[probe].values():
            rows = values.flatten(1) if values.dim() > 1 else values[:, None]
            usable &= finite_rows(rows)
            if values.is_floating_point() and not values.is_cuda and rows.shape[1]:
                # What is made of it shall be finite, too.
                usable &= (rows.amax(dim=1) <= _MOST) & (rows.amin(dim=1) >= -_MOST)
        lacking = [fault.client for fault in self.faults if fault.measurement == probe]
        usable &= torch.from_numpy(~np.isin(self.clients, lacking))
        return torch.nonzero(usable).flatten().numpy()

    def for_records(self) -> "Replies":
        """The same without models, and without measurements that are large enough to have been left on a device."""
        small = {
            probe: {name: values for name, values in fields.items() if not values.is_cuda}
            for probe, fields in self.probes.items()
        }
        # A copy, as a view would hold on to all of them.
        return replace(self, states=self.states[:0].clone(), probes=small, told=None)

    def everyone(self) -> "Replies":
        """With rows for clients whose model stayed with them, too: NaN in the place of the model."""
        if self.told is None:
            return self
        told = self.told
        order = torch.from_numpy(np.argsort(np.concatenate([self.clients, told.clients])))

        def joined(ours: Tensor, theirs: Tensor) -> Tensor:
            return torch.cat([ours, theirs.to(ours)])[order.to(ours.device)]

        timed = len(self.seconds) + len(told.seconds) == len(order)
        unknown = self.states.new_full((1, self.states.shape[1]), float("nan"))
        return replace(
            self,
            clients=np.concatenate([self.clients, told.clients])[order.numpy()],
            states=joined(self.states, unknown.expand(len(told), -1)),
            samples=joined(self.samples, told.samples),
            losses=joined(self.losses, told.losses),
            seconds=joined(self.seconds, told.seconds) if timed else self.seconds,
            probes={
                probe: {name: joined(values, told.probes[probe][name]) for name, values in fields.items()}
                for probe, fields in self.probes.items()
            },
            told=None,
        )

    def timed(self, taken: Mapping[int, float], waited: float) -> "Replies":
        """With the seconds that each client took, and those that the server waited."""
        seconds = torch.tensor([taken[client] for client in self.clients.tolist()], dtype=torch.float64)
        told = None if self.told is None else self.told.timed(taken, waited)
        return replace(self, seconds=seconds, round_seconds=waited, told=told)

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
    """Drop what must not touch a model: a loss or a state that is not finite, a count that is not positive.

    A measurement that is not finite costs the client this measurement and nothing else.
    """
    if replies.told is not None:
        replies = replace(replies, told=checked(replies.told))
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
    known = {(fault.client, fault.measurement) for fault in faults}
    for probe in replies.probes:
        for position in np.setdiff1d(np.arange(len(replies)), replies.observed(probe)).tolist():
            client = int(replies.clients[position])
            if (client, probe) not in known:
                faults.append(Fault(client, f"its {probe} holds NaN or infinite values", probe))
    return replace(replies, faults=tuple(sorted(faults, key=lambda fault: (fault.client, fault.measurement or ""))))


def gathered(order: Order, replies: Sequence[Reply], faults: tuple[Fault, ...], size: int) -> Replies:
    """Replies in client order as one `Replies`: measurements stacked, models withheld where the gate says so."""
    sent, apart = 0, dict.fromkeys((probe.name for probe in order.probes), 0)
    sends = []
    for reply in replies:
        tensors = reply.tensors(order)
        sent += packed_size(tensors)
        for probe, fields in reply.probes.items():
            apart[probe] += sum(value.numel() * value.element_size() for value in fields.values())
        sends.append("state" in tensors or not order.train or order.resident)
    measured, lacking = stacked_measurements(replies, order.probes)
    everyone = Replies(
        clients=np.array([reply.client for reply in replies], dtype=np.int64),
        states=torch.empty(len(replies), 0),
        samples=torch.tensor([reply.samples for reply in replies], dtype=torch.int64),
        losses=torch.tensor([reply.loss for reply in replies], dtype=torch.float64),
        probes=measured,
    )
    rows, withheld = np.flatnonzero(sends), np.flatnonzero(~np.array(sends, dtype=bool))
    senders = [reply for reply, sent_model in zip(replies, sends, strict=True) if sent_model]
    states = [reply.state for reply in senders] if order.train else []
    return replace(
        everyone.take(rows) if len(withheld) else everyone,
        states=torch.stack(states) if states else torch.empty(len(rows), 0 if not order.train else size),
        kept={
            probe.name: {reply.client: reply.kept[probe.name] for reply in senders if probe.name in reply.kept}
            for probe in order.probes
            if probe.kept
        },
        faults=(*faults, *lacking),
        withheld=everyone.clients[withheld],
        told=everyone.take(withheld) if len(withheld) else None,
        bytes_up=sent,
        probe_bytes=apart,
    )


def stacked_measurements(
    replies: Sequence[Reply], probes: "Sequence[Probe]"
) -> tuple[dict[str, dict[str, Tensor]], list[Fault]]:
    """Probe → field → `[k, ...]`, and who sent no measurement, or one of another shape than it has: a row of NaN.

    Where the probe does not know the shape, it is what most have sent.
    """
    shapes = {probe.name: probe.shapes() for probe in probes}
    names = {probe: fields for reply in replies for probe, fields in reply.probes.items()}
    measured: dict[str, dict[str, Tensor]] = {}
    faults = []
    for probe in names:
        forms = [_form(reply.probes.get(probe)) for reply in replies]
        possible = [
            form is not None and all(dict(form).get(name) == shape for name, shape in shapes.get(probe, {}).items())
            for form in forms
        ]
        usual = Counter(form for form, fits in zip(forms, possible, strict=True) if fits).most_common(1)
        right = [bool(usual) and form == usual[0][0] for form in forms]
        for reply, form, fits in zip(replies, forms, right, strict=True):
            if not fits:
                what = "is missing" if form is None else "has another shape than the other clients'"
                faults.append(Fault(reply.client, f"its {probe} {what}", probe))
        if not usual:
            continue
        example = next(reply.probes[probe] for reply, fits in zip(replies, right, strict=True) if fits)
        nothing = {
            name: torch.full_like(value, float("nan")) if value.is_floating_point() else torch.zeros_like(value)
            for name, value in example.items()
        }
        used = [reply.probes[probe] if fits else nothing for reply, fits in zip(replies, right, strict=True)]
        measured[probe] = {name: torch.stack([fields[name] for fields in used]) for name in example}
    return measured, faults


def _form(fields: Mapping[str, Tensor] | None) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Names and shapes of a measurement."""
    return None if not fields else tuple(sorted((name, tuple(value.shape)) for name, value in fields.items()))


def finite_rows(states: Tensor) -> Tensor:
    """Which states `[k, d]` hold finite values only: `[k]`.

    A finite sum proves it in one pass that writes nothing; one that is not may be an overflow, and is looked into.
    """
    finite = torch.isfinite(states.sum(dim=1)).cpu()
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
    fields = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    return _size_of(fields, tuple(metadata.items()) if metadata else ())


@lru_cache(maxsize=4096)
def _size_of(
    fields: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], metadata: tuple[tuple[str, str], ...]
) -> int:
    """The size of a message with tensors of these names, types and shapes; most of a run's messages are alike."""
    empty = {name: torch.empty(0, dtype=dtype) for name, dtype, _ in fields}
    shapes = {name: shape for name, _, shape in fields}
    header = json.loads(pack(empty, dict(metadata))[8:])
    at = 0
    # The format decides the order of tensors from their types and names, so the empty ones are in it already.
    for name in header:
        if name in shapes:
            size = math.prod(shapes[name]) * empty[name].element_size()
            header[name].update(shape=list(shapes[name]), data_offsets=[at, at + size])
            at += size
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (length + 7) // 8 * 8 + at
