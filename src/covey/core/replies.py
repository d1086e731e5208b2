"""A round's replies, stacked over clients: how they are assembled, and which of them are sound."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import IntArray
from covey.core.messages import Fault, Measurements, Order, Reply
from covey.core.wire_size import packed_size, payload_size

if TYPE_CHECKING:
    from covey.core.interfaces import Probe

_LARGEST = 1e30
"""Measurements of larger magnitude are rejected; they overflow later."""

Kept = Mapping[str, Mapping[int, Mapping[str, Tensor]]]
"""Probe → client → field → value."""


@dataclass(frozen=True)
class Traffic:
    """The bytes that clients sent in a round."""

    bytes_up: int = 0
    probe_bytes: Mapping[str, int] = field(default_factory=dict)
    """Each probe's measurements in `bytes_up`."""


@dataclass(frozen=True)
class Timing:
    """The time that a round took."""

    round_seconds: float = 0.0
    """The time that the server waited, on the clock of the clients' `seconds`."""
    wall_seconds: float = 0.0
    """Real time to compute the replies; with many runs in lockstep, this run's share."""
    probe_seconds: Mapping[str, float] = field(default_factory=dict)
    """Real time that each probe took, over all clients."""


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
    probes: Measurements = field(default_factory=dict)
    """Probe → field → values `[k, ...]`; rows of NaN where a client's measurement is missing or unusable."""
    faults: tuple[Fault, ...] = ()
    withheld: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Clients that kept their model because the order's gate did not open; they have no row."""
    withheld_replies: "Replies | None" = None
    """Samples, losses and probes of withheld clients, without models."""
    seconds: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    """`[k]`: the time that each client took (Oort uses it); empty where time is not kept."""
    traffic: Traffic = field(default_factory=Traffic)
    timing: Timing = field(default_factory=Timing)
    kept: Kept = field(default_factory=dict)
    """Measurements that stay on the clients; a simulation stores them here.

    A method hands them back with the next order and must not learn from them.
    """

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def bytes_up(self) -> int:
        return self.traffic.bytes_up

    @property
    def probe_bytes(self) -> Mapping[str, int]:
        return self.traffic.probe_bytes

    @property
    def round_seconds(self) -> float:
        return self.timing.round_seconds

    @property
    def wall_seconds(self) -> float:
        return self.timing.wall_seconds

    @property
    def probe_seconds(self) -> Mapping[str, float]:
        return self.timing.probe_seconds

    def observed(self, probe: str) -> IntArray:
        """Return the positions of the clients whose measurement of this probe can be used."""
        if probe not in self.probes:
            return np.empty(0, dtype=np.int64)
        usable = torch.ones(len(self), dtype=torch.bool)
        for values in self.probes[probe].values():
            rows = values.flatten(1) if values.dim() > 1 else values[:, None]
            usable &= finite_rows(rows)
            if values.is_floating_point() and not values.is_cuda and rows.shape[1]:
                usable &= (rows.amax(dim=1) <= _LARGEST) & (rows.amin(dim=1) >= -_LARGEST)
        lacking = [fault.client for fault in self.faults if fault.measurement == probe]
        usable &= torch.from_numpy(~np.isin(self.clients, lacking))
        return torch.nonzero(usable).flatten().numpy()

    def for_records(self) -> "Replies":
        """Return the replies without models, and without measurements so large that they were left on a GPU."""
        small = {
            probe: {name: values for name, values in fields.items() if not values.is_cuda}
            for probe, fields in self.probes.items()
        }
        # A clone, as a view would keep all states in memory.
        return replace(self, states=self.states[:0].clone(), probes=small, withheld_replies=None)

    def everyone(self) -> "Replies":
        """Return the replies with rows for withheld clients too, NaN in the place of their model."""
        if self.withheld_replies is None:
            return self
        others = self.withheld_replies
        order = torch.from_numpy(np.argsort(np.concatenate([self.clients, others.clients])))

        def joined(ours: Tensor, theirs: Tensor) -> Tensor:
            return torch.cat([ours, theirs.to(ours)])[order.to(ours.device)]

        timed = len(self.seconds) + len(others.seconds) == len(order)
        unknown = self.states.new_full((1, self.states.shape[1]), float("nan"))
        return replace(
            self,
            clients=np.concatenate([self.clients, others.clients])[order.numpy()],
            states=joined(self.states, unknown.expand(len(others), -1)),
            samples=joined(self.samples, others.samples),
            losses=joined(self.losses, others.losses),
            seconds=joined(self.seconds, others.seconds) if timed else self.seconds,
            probes={
                probe: {name: joined(values, others.probes[probe][name]) for name, values in fields.items()}
                for probe, fields in self.probes.items()
            },
            withheld_replies=None,
        )

    def timed(self, taken: Mapping[int, float], waited: float) -> "Replies":
        """Return the replies with the seconds that each client took and that the server waited."""
        seconds = torch.tensor([taken[client] for client in self.clients.tolist()], dtype=torch.float64)
        others = None if self.withheld_replies is None else self.withheld_replies.timed(taken, waited)
        timing = replace(self.timing, round_seconds=waited)
        return replace(self, seconds=seconds, timing=timing, withheld_replies=others)

    def take(self, keep: IntArray) -> "Replies":
        """Return the replies at positions `keep`."""
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
    """Drop replies that must not reach a model: a loss or state that is not finite, a count that is not positive.

    A measurement that is not finite is rejected alone; the rest of the client's reply is used.
    """
    if replies.withheld_replies is not None:
        replies = replace(replies, withheld_replies=checked(replies.withheld_replies))
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
    """Stack replies of single clients, in client order; models have `size` numbers."""
    sends = np.array([not order.withholds(reply.probes) for reply in replies], dtype=bool)
    states = [reply.state for reply, sent in zip(replies, sends, strict=True) if sent] if order.train else []
    measured, lacking = stacked_measurements(replies, order.probes)
    everyone = Replies(
        clients=np.array([reply.client for reply in replies], dtype=np.int64),
        states=torch.empty(len(replies), 0),
        samples=torch.tensor([reply.samples for reply in replies], dtype=torch.int64),
        losses=torch.tensor([reply.loss for reply in replies], dtype=torch.float64),
        probes=measured,
        faults=(*faults, *lacking),
        traffic=_traffic(order, ((reply, 1) for reply in replies)),
        kept={
            probe.name: {reply.client: reply.kept[probe.name] for reply in replies if probe.name in reply.kept}
            for probe in order.probes
            if probe.kept
        },
    )
    models = torch.stack(states) if states else torch.empty(int(sends.sum()), size if order.train else 0)
    return _assembled(everyone, sends, models)


def gathered_stack(
    order: Order, states: Tensor, samples: IntArray, losses: NDArray[np.float64], measured: Measurements, kept: Kept
) -> Replies:
    """Return the replies of all clients of an order, from stacks; states are copied only if some are withheld."""
    clients = order.clients

    def example(position: int) -> Reply:
        row = {name: {field: values[position] for field, values in of.items()} for name, of in measured.items()}
        return Reply(int(clients[position]), states[position], int(samples[position]), float(losses[position]), row)

    sends = np.ones(len(clients), dtype=bool)
    if order.gate is not None and len(clients):
        values = measured[order.gate.probe][order.gate.field]
        sends = np.array([not order.withholds({order.gate.probe: {order.gate.field: value}}) for value in values])
    # Rows of a stack have the same shapes, so one reply with a model and one without give all sizes.
    alike = [(example(int(rows[0])), len(rows)) for rows in map(np.flatnonzero, (sends, ~sends)) if len(rows)]
    everyone = Replies(
        clients=clients,
        states=torch.empty(len(clients), 0),
        samples=torch.from_numpy(samples),
        losses=torch.from_numpy(losses),
        probes=measured,
        traffic=_traffic(order, alike),
        kept=kept,
    )
    models = states if sends.all() else states[torch.from_numpy(np.flatnonzero(sends)).to(states.device)]
    return _assembled(everyone, sends, models)


def _assembled(everyone: Replies, sends: NDArray[np.bool_], models: Tensor) -> Replies:
    """Join all clients' replies with the models of those that send one; the others are withheld."""
    if sends.all():
        return replace(everyone, states=models)
    rows, withheld = np.flatnonzero(sends), np.flatnonzero(~sends)
    others = replace(everyone, faults=(), traffic=Traffic(), kept={}).take(withheld)
    return replace(everyone.take(rows), states=models, withheld=everyone.clients[withheld], withheld_replies=others)


def _traffic(order: Order, replies: Iterable[tuple[Reply, int]]) -> Traffic:
    """Return the bytes of replies, each given with the number of clients that send one of its size."""
    sent, apart = 0, dict.fromkeys((probe.name for probe in order.probes), 0)
    for reply, count in replies:
        sent += count * packed_size(reply.tensors(order))
        for probe, fields in reply.probes.items():
            apart[probe] += count * payload_size(fields)
    return Traffic(sent, apart)


def stacked_measurements(
    replies: Sequence[Reply], probes: "Sequence[Probe]"
) -> tuple[dict[str, dict[str, Tensor]], list[Fault]]:
    """Return probe → field → `[k, ...]`, and faults: a missing or misshapen measurement is a row of NaN.

    Where a probe does not declare its shapes, those that most clients sent are right.
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
    """Return the names and shapes of a measurement."""
    return None if not fields else tuple(sorted((name, tuple(value.shape)) for name, value in fields.items()))


def finite_rows(states: Tensor) -> Tensor:
    """True for the states of `[k, d]` that hold only finite values: `[k]`.

    A finite sum proves it in one pass that writes nothing. A sum that is not may have overflown, so its row is read.
    """
    finite = torch.isfinite(states.sum(dim=1)).cpu()
    for row in torch.nonzero(~finite).flatten().tolist():
        finite[row] = torch.isfinite(states[row]).all()
    return finite
