"""A round's replies, stacked over clients: how they are assembled, and which of them are sound."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import IntArray
from covey.core.messages import UNTOLD, Fault, Measurements, Order, Reply
from covey.core.wire_size import packed_size, payload_size

_LARGEST = 1e30
"""Measurements of larger magnitude are rejected; they overflow later."""

TRAINER = "trainer"
"""What a trainer's fields are filed under, among measurements and among what clients keep."""

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
    """A round's replies, stacked over clients in ascending order; `checked` leaves the sound ones."""

    clients: IntArray
    """`[k]`"""
    states: Tensor
    """`[k, d]`"""
    samples: Tensor
    """`[k]`, int64"""
    losses: Tensor
    """`[k]`, float64; `UNTOLD` where a client does not tell it."""
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

    @property
    def train_loss(self) -> float:
        """Mean training loss, weighted by samples, of the clients that tell it; NaN if none does."""
        told = self.losses != UNTOLD
        samples = self.samples.double()[told]
        return float((self.losses[told] * samples).sum() / samples.sum())

    @property
    def median_loss(self) -> float:
        """The (lower) median of the training losses that clients tell; NaN if none does."""
        told = self.losses[self.losses != UNTOLD]
        return float(told.median()) if len(told) else math.nan

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

    def with_withheld_rows(self) -> "Replies":
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
    finite = finite_rows(replies.states).numpy()
    losses, samples = replies.losses.numpy(), replies.samples.numpy()
    told = np.isfinite(losses) | (losses == UNTOLD)
    good = finite & told & (samples > 0)
    faults = list(replies.faults)
    if not good.all():
        for position in np.flatnonzero(~good).tolist():
            client = int(replies.clients[position])
            if not told[position]:
                faults.append(Fault(client, "its loss became NaN or infinite", unsound=True))
            elif not finite[position]:
                faults.append(Fault(client, "its model holds NaN or infinite values", unsound=True))
            else:
                faults.append(Fault(client, f"it reported {samples[position]} samples"))
        replies = replies.take(np.flatnonzero(good))
    known = {(fault.client, fault.measurement) for fault in faults}
    for probe in replies.probes:
        for position in np.setdiff1d(np.arange(len(replies)), replies.observed(probe)).tolist():
            client = int(replies.clients[position])
            if (client, probe) not in known:
                faults.append(Fault(client, f"its {probe} holds NaN or infinite values", probe))
    if not faults:
        return replies
    return replace(replies, faults=tuple(sorted(faults, key=lambda fault: (fault.client, fault.measurement or ""))))


def stack_replies(order: Order, replies: Sequence[Reply], faults: tuple[Fault, ...], size: int) -> Replies:
    """Stack replies of single clients, in client order; models have `size` numbers."""
    withheld = _withheld(order, [reply.probes for reply in replies])
    measured, lacking = _stack_measurements(replies, _declared_shapes(order))
    rows = Replies(
        clients=np.array([reply.client for reply in replies], dtype=np.int64),
        states=torch.empty(len(replies), 0),
        samples=torch.tensor([reply.samples for reply in replies], dtype=torch.int64),
        losses=torch.tensor([reply.loss for reply in replies], dtype=torch.float64),
        probes=measured,
        faults=(*faults, *lacking),
        kept={
            probe.name: {reply.client: reply.kept[probe.name] for reply in replies if probe.name in reply.kept}
            for probe in order.probes
            if probe.kept
        }
        | _kept_by_trainer(order, replies),
    )
    sent = [reply.state for reply, keeps in zip(replies, withheld, strict=True) if not keeps] if order.train else []
    models = torch.stack(sent) if sent else torch.empty(int((~withheld).sum()), size if order.train else 0)
    return _assembled(order, rows, models, withheld, ((reply, 1) for reply in replies))


def replies_from_stack(
    order: Order,
    states: Tensor,
    samples: IntArray,
    losses: NDArray[np.float64],
    measured: Measurements,
    kept: Kept,
    timing: Timing,
) -> Replies:
    """Return the replies of all clients of an order, from stacks; states are copied only if some are withheld."""
    clients = order.clients

    def measurements(position: int) -> Measurements:
        return {probe: {name: values[position] for name, values in of.items()} for probe, of in measured.items()}

    def reply(position: int) -> Reply:
        row = measurements(position)
        return Reply(int(clients[position]), states[position], int(samples[position]), float(losses[position]), row)

    gated = order.returns_model and order.gate is not None
    withheld = _withheld(order, map(measurements, range(len(clients)))) if gated else np.zeros(len(clients), dtype=bool)
    # Rows of a stack have the same shapes, so one reply with a model and one without give all sizes.
    alike = [(reply(int(of[0])), len(of)) for of in map(np.flatnonzero, (~withheld, withheld)) if len(of)]
    rows = Replies(
        clients=clients,
        states=torch.empty(len(clients), 0),
        samples=torch.from_numpy(samples),
        losses=torch.from_numpy(losses),
        probes=measured,
        kept=kept,
        timing=timing,
    )
    models = states[torch.from_numpy(np.flatnonzero(~withheld)).to(states.device)] if withheld.any() else states
    return _assembled(order, rows, models, withheld, alike)


def _declared_shapes(order: Order) -> dict[str, Mapping[str, tuple[int, ...]]]:
    """Probe → field → shape, as far as they are known in advance; a trainer's fields are filed like a probe's."""
    declared = {probe.name: probe.shapes() for probe in order.probes}
    return declared if order.trainer is None else {**declared, TRAINER: order.trainer.shapes}


def _kept_by_trainer(order: Order, replies: Sequence[Reply]) -> dict[str, dict[int, Mapping[str, Tensor]]]:
    if order.trainer is None:
        return {}
    return {TRAINER: {reply.client: reply.kept[TRAINER] for reply in replies if TRAINER in reply.kept}}


def _withheld(order: Order, measured: Iterable[Measurements]) -> NDArray[np.bool_]:
    """Return `[k]`: True for clients with such measurements that keep a model which the order asks for."""
    return np.array([order.returns_model and not order.sends_model(fields) for fields in measured], dtype=bool)


def _assembled(
    order: Order,
    rows: Replies,
    models: Tensor,
    withheld: NDArray[np.bool_],
    sizes: Iterable[tuple[Reply, int]],
) -> Replies:
    """Join all clients' rows with the models of those that send one, and count their bytes.

    `sizes` gives replies with the number of clients that send one of the same size.
    """
    traffic = _traffic(order, sizes)
    if not withheld.any():
        return replace(rows, states=models, traffic=traffic)
    rows = replace(rows, traffic=traffic)
    sending, keeping = np.flatnonzero(~withheld), np.flatnonzero(withheld)
    others = replace(rows, faults=(), traffic=Traffic(), kept={}).take(keeping)
    return replace(rows.take(sending), states=models, withheld=rows.clients[keeping], withheld_replies=others)


def _traffic(order: Order, replies: Iterable[tuple[Reply, int]]) -> Traffic:
    """Return the bytes of replies, each given with the number of clients that send one of its size."""
    trainer = [TRAINER] if order.trainer is not None else []
    sent, apart = 0, dict.fromkeys((*(probe.name for probe in order.probes), *trainer), 0)
    for reply, count in replies:
        sent += count * packed_size(reply.tensors(order))
        for probe, fields in reply.probes.items():
            apart[probe] += count * payload_size(fields)
    return Traffic(sent, apart)


def _stack_measurements(
    replies: Sequence[Reply], declared: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> tuple[dict[str, dict[str, Tensor]], list[Fault]]:
    """Return probe → field → `[k, ...]`, and a fault for each measurement that is missing or of a wrong shape.

    A client with a fault has a row of NaN. Where a probe does not declare a shape, the one that most clients sent is
    right.
    """
    measured: dict[str, dict[str, Tensor]] = {}
    faults = []
    for probe in dict.fromkeys(name for reply in replies for name in reply.probes):
        sent = [_shapes(reply.probes.get(probe)) for reply in replies]
        expected = _expected_shapes(sent, declared.get(probe, {}))
        for reply, shapes in zip(replies, sent, strict=True):
            if shapes is None or shapes != expected:
                what = "is missing" if shapes is None else "has another shape than the other clients'"
                faults.append(Fault(reply.client, f"its {probe} {what}", probe))
        if expected is not None:
            measured[probe] = _stack_fields(
                [
                    reply.probes[probe] if shapes == expected else None
                    for reply, shapes in zip(replies, sent, strict=True)
                ]
            )
    return measured, faults


_Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of a measurement's fields, sorted by name."""


def _shapes(fields: Mapping[str, Tensor] | None) -> _Shapes | None:
    return None if not fields else tuple(sorted((name, tuple(value.shape)) for name, value in fields.items()))


def _expected_shapes(sent: Sequence[_Shapes | None], declared: Mapping[str, tuple[int, ...]]) -> _Shapes | None:
    """Return the shapes that most clients sent, of those that agree with the declared ones; None if none does."""
    possible = [
        shapes
        for shapes in sent
        if shapes is not None and all(dict(shapes).get(name) == shape for name, shape in declared.items())
    ]
    return Counter(possible).most_common(1)[0][0] if possible else None


def _stack_fields(rows: Sequence[Mapping[str, Tensor] | None]) -> dict[str, Tensor]:
    """Return field → `[k, ...]`; a row that is None becomes NaN, or 0 for integers. One row at least is not None."""
    example = next(fields for fields in rows if fields is not None)
    blank = {
        name: torch.full_like(value, float("nan")) if value.is_floating_point() else torch.zeros_like(value)
        for name, value in example.items()
    }
    filled = [blank if fields is None else fields for fields in rows]
    return {name: torch.stack([fields[name] for fields in filled]) for name in example}


def finite_rows(states: Tensor) -> Tensor:
    """True for the states of `[k, d]` that hold only finite values: `[k]`.

    A finite sum proves it in one pass that writes nothing. A sum that is not may have overflown, so its row is read.
    """
    finite = np.isfinite(states.sum(dim=1).cpu().numpy())
    for row in np.flatnonzero(~finite).tolist():
        finite[row] = torch.isfinite(states[row]).all()
    return torch.from_numpy(finite)


def is_finite(model: Tensor) -> bool:
    """True if a model `[d]` holds only finite values."""
    return bool(finite_rows(model[None])[0])
