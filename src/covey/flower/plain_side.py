"""The server's side of clients that know nothing of Covey: orders as Flower's messages, and answers as replies."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from covey.core.interfaces import Probe
from covey.core.messages import UNTOLD, Fault, Order, Reply
from covey.errors import require
from covey.flower.exchange import too_large
from covey.flower.named_arrays import NamedArrays
from covey.flower.plain_messages import SERVER_ROUND, PlainClients, PlainScores, shown, told_settings
from covey.flower.plain_needs import LOSSES
from covey.probe.losses import Losses

Loss = tuple[int, float]
"""Samples and mean loss that a client reports of a model."""


@dataclass(eq=False)
class PlainSide:
    """Writes and reads the messages of clients without Covey."""

    arrays: NamedArrays
    names: PlainClients
    told: Collection[str] = ()
    """Settings of local training that the user gave: no others are sent."""
    by_evaluation: bool = False
    """True if losses are measured by requests to evaluate, on all clients, so that they mean the same."""
    needs_train_loss: bool = False
    evaluate_settings: Mapping[str, Any] = field(default_factory=dict)
    trained_metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """Client → the metrics of its last reply."""
    _records: tuple[Tensor, ArrayRecord] | None = None
    """The last model that was sent, as a record: made once for a round."""

    def settings(self, order: Order, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that a client is sent: those of local training that the user gave, and the user's."""
        return {**told_settings(order.work, self.told, order.round), **given}

    def training(self, order: Order, position: int, given: Mapping[str, Any]) -> RecordDict:
        """Return the content of a request to train."""
        return self.names.content(self.record(order.start_of(position)), given)

    def evaluation(self, t: int, state: Tensor) -> RecordDict:
        """Return the content of a request to evaluate a model."""
        return self.names.content(self.record(state), {SERVER_ROUND: t, **self.evaluate_settings})

    def record(self, state: Tensor) -> ArrayRecord:
        """Return a model as Flower's record; one that goes to many clients is made once."""
        known = self._records
        if known is None or known[0] is not state:
            known = self._records = (state, self.arrays.record(state))
        return known[1]

    def reply(self, order: Order, position: int, content: RecordDict, limit: int) -> Reply | Fault:
        """Return the reply in a client's answer to a request to train; anything unreadable raises."""
        client = int(order.clients[position])
        if (fault := too_large(client, content, limit)) is not None:
            return fault
        record, samples, loss = self.names.trained(content)
        state = self.arrays.read(record)
        metrics = self.names.metrics(content)
        require(
            loss is not None or not self.needs_train_loss,
            f"the method needs its training loss, and its metrics are {shown(metrics)}: name it, "
            "messages=PlainClients(loss=...)",
        )
        self.trained_metrics[client] = metrics
        return Reply(client, state, samples, UNTOLD if loss is None else loss)

    def metrics_of(self, clients: Sequence[int]) -> list[Mapping[str, Any]]:
        """Return the metrics of clients in this round, if all are without Covey: other clients have no such metrics."""
        found = [self.trained_metrics[client] for client in clients if client in self.trained_metrics]
        return found if len(found) == len(clients) else []

    def asked_losses(self, order: Order) -> tuple[Probe, ...]:
        """Return the measurements of an order that are made by requests to evaluate."""
        return tuple(probe for probe in order.probes if self.by_evaluation and probe.name in LOSSES)

    def models_to_evaluate(self, order: Order, replies: Sequence[Reply]) -> list[tuple[int, str, Tensor]]:
        """Return client, name and model of each evaluation that an order asks for beside its training."""
        places = {client: place for place, client in enumerate(order.clients.tolist())}
        after = any(isinstance(probe, Losses) for probe in order.probes)
        asked = []
        for reply in replies:
            asked.append((reply.client, "before", order.start_of(places[reply.client])))
            if after and bool(torch.isfinite(reply.state).all()):
                asked.append((reply.client, "after", reply.state))
        return asked


def loss_of(scores: PlainScores | None) -> Loss | None:
    """Return samples and loss of a report; None if it tells no loss, or it makes no sense."""
    if scores is None or scores.loss is None or scores.samples <= 0:
        return None
    return scores.samples, scores.loss


def measured_by(probes: Sequence[Probe], found: Mapping[str, Loss]) -> dict[str, dict[str, Tensor]]:
    """Return the measurements of probes, as far as evaluations found losses (before and after training).

    The mean of squared losses is not known; the square of their mean, which is the least it can be, takes its place.
    """
    measured: dict[str, dict[str, Tensor]] = {}
    for probe in probes:
        if isinstance(probe, Losses) and {"before", "after"} <= found.keys():
            measured[probe.name] = {name: torch.tensor(found[name][1]) for name in ("before", "after")}
        elif not isinstance(probe, Losses) and "before" in found:
            loss = torch.tensor(found["before"][1])
            measured[probe.name] = {"loss": loss, "square": loss**2}
    return measured
