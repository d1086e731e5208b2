"""The exchange with clients of every kind: with Covey, with its mod, and without.

Where losses are measured by requests to evaluate, all clients are asked so, and their losses mean the same.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from covey.config.sections import Local
from covey.core.messages import UNTOLD, Fault, Order, Reply
from covey.core.replies import Replies, stack_replies
from covey.errors import Refusal
from covey.flower.client_reports import reported, reported_metric
from covey.flower.exchange import Exchange
from covey.flower.node_kinds import NodeKind
from covey.flower.plain_messages import PlainScores
from covey.flower.plain_needs import LOSSES, require_plain_order
from covey.flower.plain_side import Loss, PlainSide, loss_of, measured_by
from covey.flower.roster import Roster
from covey.flower.wire import EVALUATE, QUERY, REPLY, TRAIN, Shared


class MixedExchange(Exchange):
    """Sends orders to clients with Covey, and requests as Flower's strategies send them to the others."""

    def __init__(self, roster: Roster, plain: PlainSide, **options: Any) -> None:
        super().__init__(roster, **options)
        self.plain = plain
        self._unable: dict[int, str] = {}
        """Clients of the last order that cannot do what it asks, and why."""

    def messages(self, order: Order, again: Sequence[int] | None = None, *, evaluate: bool = False) -> list[Message]:
        self._unable = {}
        if evaluate:
            return super().messages(order, again, evaluate=True)
        asked = self._without_losses(order)
        for client in order.clients.tolist() if again is None else again:
            if self.roster.kind_of(client) is NodeKind.PLAIN:
                try:
                    require_plain_order(asked, ())
                except Refusal as error:
                    self._unable[client] = str(error)
        if self._unable and len(self._unable) == len(order.clients):
            raise Refusal(self._unable[int(order.clients[0])])
        able = np.array([place for place, one in enumerate(order.clients.tolist()) if one not in self._unable])
        return super().messages(asked.take(able) if self._unable else asked, again)

    def request(self, order: Order, position: int, shared: Shared, *, evaluate: bool) -> tuple[str, RecordDict]:
        client = int(order.clients[position])
        known = self.roster.kind_of(client)
        if self._speaks_plain(known, order, evaluate=evaluate):
            if evaluate:
                return EVALUATE, self.plain.evaluation(order.round, order.start_of(position))
            return TRAIN, self.plain.training(order, position, self.for_client(order, client)[1])
        kind, content = super().request(order, position, shared, evaluate=evaluate)
        # Flower calls a mod around functions that the app has, and apps have none for queries.
        return TRAIN if known is NodeKind.MOD and kind == QUERY else kind, content

    def for_client(self, order: Order, client: int) -> tuple[Local, dict[str, Any]]:
        work, settings = super().for_client(order, client)
        if order.train and self.roster.kind_of(client) is not NodeKind.COVEY:
            settings = self.plain.settings(order, settings)
        return work, settings

    def execute(self, grid: Grid, order: Order) -> Replies:
        if not order.train and self.plain.asked_losses(order):
            require_plain_order(order, LOSSES)
            return self._surveyed(grid, order)
        return super().execute(grid, order)

    def reply_in(self, order: Order, position: int, answer: Message | None) -> Reply | Fault:
        client = int(order.clients[position])
        if client in self._unable:
            return Fault(client, self._unable[client])
        return super().reply_in(self._without_losses(order), position, answer)

    def checked(self, order: Order, position: int, content: RecordDict) -> Reply | Fault:
        if self.roster.kind_of(int(order.clients[position])) is NodeKind.PLAIN:
            return self.plain.reply(order, position, content, self.limit)
        return super().checked(order, position, content)

    def completed(self, grid: Grid, order: Order, replies: list[Reply], left: float) -> list[Reply]:
        asked = self.plain.asked_losses(order)
        if not asked or not replies:
            return replies
        found = self._losses(grid, order, self.plain.models_to_evaluate(order, replies), left)
        return [
            replace(reply, probes={**reply.probes, **measured_by(asked, found.get(reply.client, {}))})
            for reply in replies
        ]

    def scores_in(self, answer: Message) -> PlainScores | None:
        """Return a client's report of a model that it evaluated, with Covey or without; None if it makes no sense."""
        if (told := reported(answer)) is not None:
            samples, loss, value = told
            metric = reported_metric(answer)
            if metric is not None:
                return PlainScores(samples, loss, None, {metric.name: value})
            return PlainScores(samples, loss, value, {})
        if not answer.has_content() or REPLY in answer.content.metric_records:
            return None
        try:
            scores = self.plain.names.scored(answer.content)
        except Exception:  # whatever a client sends, it must not end the run
            return None
        finite = scores.loss is None or math.isfinite(scores.loss)
        return scores if finite and scores.samples > 0 else None

    def _speaks_plain(self, kind: NodeKind, order: Order, *, evaluate: bool) -> bool:
        """True if a client is asked as Flower's own strategies ask: it has no Covey, or its own function evaluates."""
        own_function = kind is NodeKind.MOD and evaluate and not order.resident and order.trainer is None
        return kind is NodeKind.PLAIN or own_function

    def _without_losses(self, order: Order) -> Order:
        """Return the order without the measurements that are made by requests to evaluate."""
        elsewhere = self.plain.asked_losses(order)
        return replace(order, probes=tuple(probe for probe in order.probes if probe not in elsewhere))

    def _surveyed(self, grid: Grid, order: Order) -> Replies:
        """Return the losses of clients that only measure, by requests to evaluate."""
        begin = time.monotonic()
        models = [(client, "before", order.start_of(place)) for place, client in enumerate(order.clients.tolist())]
        found = self._losses(grid, order, models, self.timeout)
        probes, replies, faults = self.plain.asked_losses(order), [], []
        for client, _, state in models:
            if client in found:
                samples = found[client]["before"][0]
                replies.append(Reply(client, state, samples, UNTOLD, measured_by(probes, found[client])))
            else:
                faults.append(Fault(client, "its evaluation tells no loss"))
        waited = time.monotonic() - begin
        gathering = stack_replies(order, replies, tuple(faults), order.start.shape[-1])
        return gathering.timed({reply.client: waited for reply in replies}, waited)

    def _losses(
        self, grid: Grid, order: Order, models: Sequence[tuple[int, str, Tensor]], left: float
    ) -> dict[int, dict[str, Loss]]:
        """Return client → name → samples and loss, of models that clients evaluate."""
        asked: list[tuple[Message, int, str]] = []
        for client, name, state in models:
            one = Order(order.round, np.array([client]), state, order.work, train=False)
            asked += [(message, client, name) for message in self.messages(one, evaluate=True)]
        found: dict[int, dict[str, Loss]] = {}
        answers = grid.send_and_receive([message for message, _, _ in asked], timeout=left) if asked else ()
        said = {answer.metadata.reply_to_message_id: answer for answer in answers}
        for message, client, name in asked:
            answer = said.get(message.metadata.message_id)
            loss = None if answer is None else loss_of(self.scores_in(answer))
            if loss is not None:
                found.setdefault(client, {})[name] = loss
        return found
