"""The server's side of the wire: turn orders into messages and answers into replies. No answer is trusted.

A client that answers with an error, with garbage or not at all loses its own reply: a `Fault` says why.
"""

import math
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
from covey.core.replies import TRAINER, Replies, stack_replies
from covey.core.trainer import KEPT, TrainerOrder
from covey.errors import Refusal
from covey.flower.answer_text import declined, short
from covey.flower.client_reports import reported
from covey.flower.node_memory import used_now
from covey.flower.private_api import ErrorCode
from covey.flower.roster import Roster
from covey.flower.trainer_memory import KEPT_BY_TRAINER, kept_name
from covey.flower.wire import (
    EVALUATE,
    QUERY,
    REPLY,
    TRAIN,
    Attachments,
    Shared,
    describe,
    describe_trainer,
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
        constants: str = "",
    ) -> None:
        self.roster = roster
        self._constants = constants
        """Digest of the model's frozen parts, which clients have themselves; empty if it has none."""
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
        """Client → digests of the arrays that probes and trainers keep there (in a simulation)."""
        self._forgetful: set[int] = set()
        """Clients that have lost what they kept for a trainer: the order visits them as if for the first time."""
        self._sent_packed: tuple[TrainerOrder, Tensor] | None = None
        self._shared: tuple[Tensor, Tensor] | None = None
        """The last model that was sent without a part, and what was sent of it."""
        self.unscored: list[Fault] = []
        """Clients that answered the last evaluation with an error, such as those that decline it."""

    def messages(self, order: Order, again: Sequence[int] | None = None, *, evaluate: bool = False) -> list[Message]:
        """Return the order as messages to its clients, or only to clients in `again`, which have lost their arrays."""
        self._forgetful = set() if again is None else set(again)
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
                kind, content = self.request(order, position, shared, evaluate=evaluate)
                message = Message(content, node, kind, ttl=self.timeout, group_id=str(order.round))
                self._sent.append((message.metadata, client))
                messages.append(message)
        return messages

    def request(self, order: Order, position: int, shared: Shared, *, evaluate: bool) -> tuple[str, RecordDict]:
        """Return the type and the content of one client's message."""
        kind = EVALUATE if evaluate else TRAIN if order.train else QUERY
        return kind, self.content_for(order, position, shared, evaluate=evaluate)

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
        start = None if own or not needed else attached.refer("state", self._start(order, position))
        anchor = order.anchor if order.anchor is None or order.anchor.dim() == 1 else order.anchor[position]
        work, settings = self.for_client(order, client)
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
        if self._constants:
            instructions["constants"] = self._constants
        if order.trainer is not None and (order.train or evaluate):
            instructions["trainer"] = self._trainer(order, order.trainer, client, attached)
        return pack_order(instructions, attached.arrays, settings)

    def _trainer(self, order: Order, trainer: TrainerOrder, client: int, attached: Attachments) -> dict[str, Any]:
        """Return a trainer's part of one client's message; what a real client keeps is named by its round."""
        sent = None
        if trainer.sent:
            sent = attached.refer("trainer.sent", self._packed(trainer))
        if self._is_first(trainer, client):
            return describe_trainer(trainer.ref, sent, None, 0)
        row = trainer.kept[client]
        kept = (
            attached.refer(KEPT_BY_TRAINER, row.values)
            if self._simulated
            else {"held": f"{kept_name(trainer.ref.name)}@{row.t}"}
        )
        return describe_trainer(trainer.ref, sent, kept, order.round - row.t)

    def _start(self, order: Order, position: int) -> Tensor:
        """Return the model to send: without the part that a client has kept, if there is one."""
        state, trainer = order.start_of(position), order.trainer
        if trainer is None or trainer.shared is None or self._is_first(trainer, int(order.clients[position])):
            return state
        if state.dim() == order.start.dim():
            # One model for all clients: made once.
            if self._shared is None or self._shared[0] is not order.start:
                self._shared = order.start, order.shared(state)
            return self._shared[1]
        return order.shared(state)

    def _is_first(self, trainer: TrainerOrder, client: int) -> bool:
        """True if a client has nothing that it kept for a trainer, or has lost it."""
        return client not in trainer.kept or (client in self._forgetful and not self._simulated)

    def _packed(self, trainer: TrainerOrder) -> Tensor:
        """Return what a trainer sends as one vector, made once for all clients of an order."""
        if self._sent_packed is None or self._sent_packed[0] is not trainer:
            values = [trainer.sent[name].reshape(-1) for name in trainer.ref.part.sent]
            self._sent_packed = trainer, torch.cat(values)
        return self._sent_packed[1]

    def for_client(self, order: Order, client: int) -> tuple[Local, dict[str, Any]]:
        """Return local training and the user's settings for one client."""
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
            result = self.reply_in(order, position, found.get(client))
            if isinstance(result, Fault):
                faults.append(result)
            else:
                replies.append(result)
                seconds.append(self._seconds(found[client]))
        replies = self.completed(grid, order, replies, self.timeout if left is None else left)
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

    def reply_in(self, order: Order, position: int, answer: Message | None) -> Reply | Fault:
        """Return a client's reply, or why there is none."""
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
            return self.checked(order, position, answer.content)
        except Exception as error:  # whatever a client sends, it must not end the run
            # Operators get Covey's own sentences, not what libraries advise ("load it unsafely").
            why = short(str(error)) if isinstance(error, Refusal) else type(error).__name__
            return Fault(client, f"its answer cannot be read: {why}")

    def completed(self, grid: Grid, order: Order, replies: list[Reply], left: float) -> list[Reply]:
        """Return the replies with what else the order asks for; `left` are the seconds that remain."""
        return replies

    def checked(self, order: Order, position: int, content: RecordDict) -> Reply | Fault:
        """Return the reply in a client's answer, or what is wrong with it; anything unreadable raises."""
        client = int(order.clients[position])
        if REPLY not in content.metric_records:
            return Fault(client, "its answer is not one of Covey's")
        if (fault := too_large(client, content, self.limit)) is not None:
            return fault
        probes = [probe.for_client(client) for probe in order.probes]
        trainer = () if order.trainer is None or not order.trainer.shapes else (TRAINER,)
        answer = unpack_answer(content, dict.fromkeys((*(probe.name for probe in probes), *trainer)))
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
            asked = order.shared(state)
            if sent is not None and sent.shape != asked.shape:
                return Fault(client, f"its model has the shape {tuple(sent.shape)} and not {tuple(asked.shape)}")
            if sent is not None and sent.dtype != state.dtype:
                return Fault(client, f"its model is of type {sent.dtype} and not {state.dtype}")
            state = state if sent is None else order.completed(state, sent)
        kept = self._kept_by(order, probes, carried)
        self._account(order, position, state, kept)
        return Reply(client, state, answer.samples, answer.loss, answer.measured, kept)

    def _kept_by(
        self, order: Order, probes: Sequence[Probe], carried: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Return the arrays that a simulated client keeps; for a real client, the round that they are from."""
        mark = torch.tensor([order.round])
        kept = {
            probe.name: {name: carried.get(f"{probe.name}.{name}", mark) for name in probe.kept}
            for probe in probes
            if probe.kept
        }
        if order.trainer is not None and order.train and order.trainer.ref.part.kept:
            kept[TRAINER] = {KEPT: carried.get(KEPT_BY_TRAINER, mark)}
        return kept

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


def too_large(client: int, content: RecordDict, limit: int) -> Fault | None:
    """Return the fault of an answer with too many bytes; None if it may be read."""
    size = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return Fault(client, f"its answer is larger than {limit:,} bytes") if size > limit else None


def _lacks(answer: Message) -> bool:
    return answer.has_content() and LACKING in answer.content.config_records


_EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""A SuperLink's codes for an expired order and an expired answer. Flower's own grid also uses the first for an answer
that was never uploaded in full."""
