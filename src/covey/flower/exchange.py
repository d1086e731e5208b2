"""The server's side of the wire: turn orders into messages and answers into replies. No answer is trusted.

A client that answers with an error, with garbage or not at all loses its own reply: a `Fault` says why.
"""

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from flwr.app import Message, Metadata, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from covey.config.sections import Local
from covey.core.interfaces import Probe
from covey.core.messages import Fault, Order, Reply
from covey.core.replies import Replies, stack_replies
from covey.errors import Refusal
from covey.flower.node_memory import used_now
from covey.flower.printable_text import printable
from covey.flower.private_api import ErrorCode
from covey.flower.roster import Roster
from covey.flower.wire import (
    EVALUATE,
    QUERY,
    REPLY,
    TRAIN,
    Attachments,
    Shared,
    describe,
    digest,
    pack_order,
    unpack_answer,
)

Configure = Callable[[int, str], Mapping[str, Any]]
"""`configure(round, client's name)`: settings for one client. Those of local training (`epochs`, `rate`, …) override
the method's; all of them are passed to a training function of the user's own."""

LACKING = "covey.lacking"
"""A record in the reply of a client that lost arrays of earlier rounds; the order is sent again, in full."""

LIMIT = 1 << 30
"""Default limit of an answer's arrays, in bytes."""

_LOCAL = {spec.name for spec in fields(Local)}


class Exchange:
    """Sends orders over a grid and reads the answers. Models that a client holds already are not sent again."""

    def __init__(
        self,
        roster: Roster,
        *,
        seed: int,
        job: Callable[[int], str] | None = None,
        simulated: bool = False,
        timeout: float = 3600.0,
        configure: Configure | None = None,
        run: str | None = None,
        limit: int = LIMIT,
    ) -> None:
        self.roster = roster
        self.run = secrets.token_hex(8) if run is None else run
        """Identifies the run to clients; they forget everything of any other run."""
        self.timeout = timeout
        """Seconds that a round waits for answers."""
        self.limit = limit
        self.settings: Mapping[str, Any] = {}
        """Settings for all clients, for training functions of users' own."""
        self._seed = seed
        self._job = job
        self._simulated = simulated
        self._configure = configure
        self.holds: dict[int, list[str]] = {}
        """Client → digests of the models that it holds, least recently used first."""
        self._sent: list[tuple[Metadata, int]] = []
        """The round's messages and the client that each went to."""
        self._kept: dict[int, set[str]] = {}
        """Client → digests of the arrays that probes keep there (in a simulation)."""
        self.unscored: list[Fault] = []
        """Clients that answered the last evaluation with an error, such as those that decline it."""

    def messages(self, order: Order, again: Sequence[int] | None = None, *, evaluate: bool = False) -> list[Message]:
        """Return the order as messages to its clients, or only to clients in `again`, which have lost their arrays."""
        if again is not None:
            for client in again:
                self.holds.pop(client, None)
                self._kept.pop(client, None)
        wanted = set(order.clients.tolist()) if again is None else set(again)
        messages = []
        self._sent = [] if again is None else self._sent
        shared: Shared = {}
        for position, client in enumerate(order.clients.tolist()):
            node = self.roster.node_of(client)
            if client in wanted and node is not None:
                content = self.content_for(order, position, shared, evaluate=evaluate)
                kind = EVALUATE if evaluate else TRAIN if order.train else QUERY
                message = Message(content, node, kind, ttl=self.timeout, group_id=str(order.round))
                self._sent.append((message.metadata, client))
                messages.append(message)
        return messages

    def content_for(
        self, order: Order, position: int, shared: Shared | None = None, *, evaluate: bool = False
    ) -> RecordDict:
        """Return the content of one client's message."""
        client = int(order.clients[position])
        held = order.resident or order.held
        # Only methods whose models stay with clients have arrays there.
        attached = Attachments(
            {*self.holds.get(client, ()), *self._kept.get(client, ())}, {} if shared is None else shared
        )
        probes = [probe.for_client(client) for probe in order.probes]
        needed = evaluate or order.train or any(probe.uses_model for probe in probes)
        own = (order.train or evaluate) and order.resident and not self._simulated and client in self.holds
        start = None if own or not needed else attached.refer("state", order.start_of(position))
        anchor = order.anchor if order.anchor is None or order.anchor.dim() == 1 else order.anchor[position]
        work, settings = self._for_client(order, client)
        instructions = {
            "run": self.run,
            "job": self._job(client) if self._job else "",
            "seed": self._seed,
            "round": order.round,
            "client": client,
            "start": start,
            "own": own,
            "anchor": None if anchor is None else attached.refer("anchor", anchor),
            "work": work.as_message(),
            "probes": [self._described(probe, attached) for probe in probes],
            "train": order.train,
            "gate": None if order.gate is None else asdict(order.gate),
            "holdout": order.holdout,
            "returns": order.returns_model,
            "holds": held and needed and not evaluate,
        }
        return pack_order(instructions, attached.arrays, settings)

    def _for_client(self, order: Order, client: int) -> tuple[Local, dict[str, Any]]:
        own = dict(self._configure(order.round, self.roster.names[client])) if self._configure else {}
        work = replace(order.work, **{name: value for name, value in own.items() if name in _LOCAL})
        return work, {**self.settings, **own} if order.train else {}

    def _described(self, probe: Probe, attached: Attachments) -> Any:
        """Return a probe as JSON. Fields kept on clients are named by their round: the server lacks their values."""
        described = describe(probe, probe.name, attached.refer)
        for name in probe.kept if not self._simulated else ():
            t = getattr(probe, name, None)
            if t is not None:
                described["options"][name] = {"~ndarray": {"held": f"{probe.name}.{name}@{int(t[0])}"}}
                attached.arrays.pop(f"{probe.name}.{name}", None)
        return described

    def execute(self, grid: Grid, order: Order) -> Replies:
        """Send an order, wait for the answers, and read them."""
        begin = time.monotonic()
        sent = self.messages(order)
        answers = list(grid.send_and_receive(sent, timeout=self.timeout)) if sent else []
        return self.read(grid, order, answers, self.timeout - (time.monotonic() - begin))

    def scores(self, grid: Grid, order: Order) -> dict[int, tuple[int, float, float]]:
        """Return client → samples, loss and accuracy that it reports; senseless reports are left out.

        `unscored` then says who declined, and why.
        """
        sent = self.messages(order, evaluate=True)
        found = self._by_client(grid.send_and_receive(sent, timeout=self.timeout)) if sent else {}
        self.unscored = [
            Fault(client, declined(found[client])) for client in sorted(found) if found[client].has_error()
        ]
        read = {client: reported(found[client]) for client in sorted(found)}
        return {client: scores for client, scores in read.items() if scores is not None}

    def read(self, grid: Grid, order: Order, answers: Iterable[Message], left: float | None = None) -> Replies:
        """Return the replies in client order; ask clients that lost arrays once more, in the time left."""
        found = self._by_client(answers)
        lacking = [client for client, answer in found.items() if _lacks(answer)]
        if lacking and (left is None or left > 0):
            again = self.messages(order, lacking)
            found |= self._by_client(grid.send_and_receive(again, timeout=self.timeout if left is None else left))
        replies: list[Reply] = []
        faults: list[Fault] = []
        seconds: list[float] = []
        for position, client in enumerate(order.clients.tolist()):
            result = self._reply(order, position, found.get(client))
            if isinstance(result, Fault):
                faults.append(result)
            else:
                replies.append(result)
                seconds.append(self._seconds(found[client]))
        gathering = stack_replies(order, replies, tuple(faults), order.start.shape[-1])
        times = dict(zip((reply.client for reply in replies), seconds, strict=True))
        return gathering.timed(times, max(seconds, default=0.0))

    def _by_client(self, answers: Iterable[Message]) -> dict[int, Message]:
        """Return the first answer to each message, by the client that was asked, whatever sender the answer states."""
        asked = {metadata.message_id: client for metadata, client in self._sent if metadata.message_id}
        found: dict[int, Message] = {}
        for answer in answers:
            client = asked.get(answer.metadata.reply_to_message_id)
            if client is None and not asked:
                client = self.roster.client_of(answer.metadata.src_node_id)
            if client is not None:
                found.setdefault(client, answer)
        return found

    def _seconds(self, answer: Message) -> float:
        """Return the seconds between order and answer: Flower subtracts them from the answer's time to live."""
        taken = self.timeout - answer.metadata.ttl
        return min(max(taken, 0.0), self.timeout) if math.isfinite(taken) else self.timeout

    def _reply(self, order: Order, position: int, answer: Message | None) -> Reply | Fault:
        client = int(order.clients[position])
        code = answer.error.code if answer is not None and answer.has_error() else None
        if answer is None or code in _EXPIRED or code == ErrorCode.NODE_UNAVAILABLE:
            # The SuperLink may notice an expired order, or a node that left, before the time-out here.
            there = self.roster.node_of(client) is not None and code != ErrorCode.NODE_UNAVAILABLE
            return Fault(client, f"no answer within {self.timeout:g} seconds" if there else "it cannot be reached")
        if answer.has_error():
            return Fault(client, declined(answer))
        if _lacks(answer):
            return Fault(client, "it lost arrays of earlier rounds")
        try:
            return self._checked(order, position, answer.content)
        except Exception as error:  # whatever a client sends, it must not end the run
            # Operators get Covey's own sentences, not what libraries advise ("load it unsafely").
            why = _short(str(error)) if isinstance(error, Refusal) else type(error).__name__
            return Fault(client, f"its answer cannot be read: {why}")

    def _checked(self, order: Order, position: int, content: RecordDict) -> Reply | Fault:
        client = int(order.clients[position])
        if REPLY not in content.metric_records:
            return Fault(client, "its answer is not one of Covey's")
        size = sum(len(array.data) for record in content.array_records.values() for array in record.values())
        if size > self.limit:
            return Fault(client, f"its answer is larger than {self.limit:,} bytes")
        probes = [probe.for_client(client) for probe in order.probes]
        answer = unpack_answer(content, {probe.name: None for probe in probes})
        for probe in probes:
            for name in probe.kept:
                answer.measured.get(probe.name, {}).pop(name, None)
        if order.gate is not None and order.gate.field not in answer.measured.get(order.gate.probe, {}):
            return Fault(client, f"its {order.gate.probe} is missing, on which it depends whether it sends its model")
        # Only simulated clients send the arrays that they hold; from others they are ignored.
        carried = answer.carried if self._simulated else {}
        state = order.start_of(position)
        if order.train:
            sent = carried.get("state", state) if order.resident else answer.state
            if sent is None and order.sends_model(answer.measured):
                return Fault(client, "it sent no model")
            if sent is not None and sent.shape != state.shape:
                return Fault(client, f"its model has the shape {tuple(sent.shape)} and not {tuple(state.shape)}")
            if sent is not None and sent.dtype != state.dtype:
                return Fault(client, f"its model is of type {sent.dtype} and not {state.dtype}")
            state = state if sent is None else sent
        kept = self._kept_by(order, probes, carried)
        self._account(order, position, state, kept)
        return Reply(client, state, answer.samples, answer.loss, answer.measured, kept)

    def _kept_by(
        self, order: Order, probes: Sequence[Probe], carried: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Return the arrays that a simulated client keeps; for a real client, the round that they are from."""
        mark = torch.tensor([order.round])
        return {
            probe.name: {name: carried.get(f"{probe.name}.{name}", mark) for name in probe.kept}
            for probe in probes
            if probe.kept
        }

    def _account(self, order: Order, position: int, state: Tensor, kept: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Record which models the client holds now, by the same rule as the client."""
        client = int(order.clients[position])
        if self._simulated and kept:
            held = {digest(value) for values in kept.values() for value in values.values()}
            self._kept[client] = held
        uses = order.train or any(probe.uses_model for probe in order.probes)
        if (order.resident or order.held) and uses:
            models = used_now(self.holds.get(client, []), digest(order.start_of(position)))
            if order.train and bool(torch.isfinite(state).all()):
                models = used_now(models, digest(state))
            self.holds[client] = models


def reported(reply: Message) -> tuple[int, float, float] | None:
    """Return the samples, loss and accuracy that a client reports, or None where they make no sense."""
    if not reply.has_content() or REPLY not in reply.content.metric_records:
        return None
    record = reply.content.metric_records[REPLY]
    values = [record.get(name) for name in ("samples", "loss", "accuracy")]
    numbers = [float(value) for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    if len(numbers) < 3 or not 1 <= numbers[0] < 1 << 53 or not 0 <= numbers[2] <= 1:
        return None
    return int(numbers[0]), numbers[1], numbers[2]


def declined(answer: Message) -> str:
    """Return why a client answered with an error."""
    return f"it answered with an error: {_reason(answer.error.reason)}"


def _lacks(answer: Message) -> bool:
    return answer.has_content() and LACKING in answer.content.config_records


_EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""A SuperLink's codes for an expired order and an expired answer. Flower's own grid also uses the first for an answer
that was never uploaded in full."""


_WRAPPED = re.compile(r"<class '(?:[^']*\.)?([^'.]+)'>:<'(.*)'>", re.DOTALL)
"""Flower's report of an exception; from a simulated node, the whole trace takes the place of the message."""

_FROM_APP = "Exception ClientAppException occurred. Message: "


def _reason(text: str | None) -> str:
    """Return the reason of a client's error, without Flower's wrapping."""
    wrapped = _WRAPPED.fullmatch((text or "").strip())
    if wrapped is None:
        return _short(text)
    kind, message = wrapped[1], wrapped[2].strip()
    return _short(message).removeprefix(_FROM_APP) if "\n" in message else _short(f"{kind}: {message}")


def _short(text: str | None) -> str:
    """Return the last line of a message that a client sent, printable and cut to 200 characters."""
    lines = [line for part in (text or "").splitlines() if (line := printable(part).strip())]
    line = lines[-1] if lines else "no reason given"
    return line if len(line) <= 200 else f"{line[:197]}..."
