"""The grid of a fleet's run: answers are limited in size and time, and a bad one is lost alone."""

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import httpx
from flwr.app import Error, Message, Metadata

from covey.flower.private_api import (
    ConfirmMessageReceivedRequest,
    HttpGrid,
    ObjectPullError,
    ObjectTree,
    ProtobufClientInterceptor,
    ProtoMessage,
    PullAppMessagesRequest,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    make_pull_object_fn_protobuf,
    make_simple_http_retry_invoker,
    pull_objects,
    set_message_id,
)

LIMIT = 64 << 20
"""Default limit of an answer's bytes."""

OPENING = 60.0
"""Seconds within which a run must be opened, or a SuperLink that is away return."""

UNUSABLE = 1000
"""Error code of an answer that is too large, incomplete or unreadable; Flower's own codes are small numbers."""

_LOOKS = 3.0
"""Seconds between two checks of the connected nodes while waiting for answers."""

_UPLOAD = 30.0
"""Seconds within which an answer that has begun to arrive must be complete."""

_SIDE_BY_SIDE = 8
"""Answers that are read at the same time."""

_OVERDUE = 1000
"""Unanswered orders whose late answers are still discarded."""

_ENDED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
"""A SuperLink's answers to the server of a run that is over."""


GATE_MARK = "covey-gate"
"""Header of every answer that comes through the gate before a fleet's SuperLink."""


def control_token(secret: bytes) -> str:
    """Return the token that the server shows with each call, derived from its secret."""
    return hmac.new(secret, b"covey control", hashlib.sha256).hexdigest()


class ServerToken:
    """Shows the server's token with each call."""

    def __init__(self, secret: bytes) -> None:
        self._token = control_token(secret)

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Add the token to a call."""
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


class TooLarge(Exception):
    """An answer exceeds the limit of bytes."""


class Forged(Exception):
    """An answer states another sender or order than it was handed in with."""


class FleetGrid(HttpGrid):
    """Flower's grid for a server that trusts nobody: answers are limited in size, and a bad one is lost alone."""

    def __init__(
        self, address: str, authority: bytes, token: str, secret: bytes | None, poll: float, limit: int
    ) -> None:
        super().__init__(address, False, authority, token=token)
        self._secret = secret
        # Wait for a SuperLink that is away for a moment; if it stays away the run ends, and can be resumed.
        self._retry_invoker = make_simple_http_retry_invoker()
        self._retry_invoker.max_time = OPENING
        # Flower interrupts the process when a run is over; here the call fails, and the job says why.
        hopeless = self._retry_invoker.should_giveup
        self._retry_invoker.should_giveup = lambda error: run_is_over(error) or bool(hopeless and hopeless(error))
        self._poll = poll
        self._limit = limit
        self._overdue: list[str] = []
        """Orders whose answers are late; these are discarded when they arrive."""

    def _connect(self) -> None:
        """Connect as Flower's grid does, and show the server's token with each call."""
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
            RuntimeTokenHttpInterceptor(self._token),
        ]
        if self._secret:
            interceptors.append(ServerToken(self._secret))
        self._client = RuntimeHttpClient.from_server_address(
            self._addr, False, self._cert, interceptors, retry_invoker=self._retry_invoker
        )

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the answers that arrive in time, without waiting for nodes that leave."""
        sent = list(messages)
        begin = time.monotonic()
        waiting = dict(zip(self.push_messages(sent), (message.metadata.dst_node_id for message in sent), strict=True))
        waiting.pop("", None)
        answers: list[Message] = []
        looked = begin
        while waiting and (timeout is None or time.monotonic() - begin < timeout):
            left = _UPLOAD if timeout is None else timeout - (time.monotonic() - begin)
            found = self._pulled(list(waiting), min(max(left, 1.0), _UPLOAD))
            for answer in found:
                waiting.pop(answer.metadata.reply_to_message_id, None)
            answers += found
            if not waiting:
                break
            if time.monotonic() - looked > _LOOKS:
                looked = time.monotonic()
                there = set(self.get_node_ids())
                gone = [order for order, node in waiting.items() if node not in there]
                self._overdue += gone
                for order in gone:
                    del waiting[order]
            if not found:
                time.sleep(self._poll)
        self._overdue += list(waiting)
        self._discard_late()
        return answers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have arrived; one that is too large or unreadable becomes an error of its sender."""
        return self._pulled(message_ids, _UPLOAD)

    def _pulled(self, message_ids: Iterable[str], seconds: float) -> list[Message]:
        """Return the answers that have arrived, or errors after `seconds`; in threads, as one may hang."""
        found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        pairs = list(zip(found.messages_list, found.message_object_trees, strict=True))
        if not pairs:
            return []
        with ThreadPoolExecutor(min(len(pairs), _SIDE_BY_SIDE)) as threads:
            return list(threads.map(lambda pair: self._message(pair[0], pair[1], seconds), pairs))

    def _message(self, message: ProtoMessage, tree: ObjectTree, seconds: float) -> Message:
        name = message.metadata.message_id
        try:
            contents = self._contents(tree, seconds)
            self._confirm(name)
            inflated = cast(Message, inflate_object_from_contents(name, contents))
            # The SuperLink has checked whose answer this is, and not what it says of itself.
            if _addresses(inflated.metadata) != _addresses(message.metadata):
                raise Forged
        except httpx.TransportError:
            raise
        except Exception as error:  # whatever a client sends, it must not end the run
            if run_is_over(error):
                raise
            with suppress(httpx.HTTPStatusError):
                self._confirm(name)
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, TooLarge):
                reason = str(error)
            elif isinstance(error, Forged):
                reason = "its answer states another sender or order than it was handed in with"
            elif isinstance(error, ObjectPullError):
                reason = "its answer did not arrive whole"
            metadata = Metadata(
                run_id=message.metadata.run_id,
                message_id=name,
                src_node_id=message.metadata.src_node_id,
                dst_node_id=message.metadata.dst_node_id,
                reply_to_message_id=message.metadata.reply_to_message_id,
                group_id=message.metadata.group_id,
                created_at=message.metadata.created_at,
                ttl=message.metadata.ttl,
                message_type=message.metadata.message_type,
            )
            return make_message(metadata=metadata, error=Error(UNUSABLE, reason))
        set_message_id(inflated, name)
        return inflated

    def _contents(self, tree: ObjectTree, seconds: float) -> dict[str, bytes]:
        """Return the parts of an answer; raise `TooLarge` beyond the limit."""
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        lock, total = threading.Lock(), 0

        def bounded(part: str) -> bytes:
            nonlocal total
            content = pull(part)
            with lock:
                total += len(content)
                if total > self._limit:
                    raise TooLarge(f"its answer is larger than {self._limit:,} bytes")
            return content

        parts = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
        return pull_objects(parts, bounded, max_time=seconds)

    def _confirm(self, name: str) -> None:
        """Let the SuperLink forget an answer."""
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=name)
        self._runtime_client.ConfirmMessageReceived(request)

    def _discard_late(self) -> None:
        """Discard late answers unread, so that the SuperLink need not keep them."""
        if not self._overdue:
            return
        self._overdue = self._overdue[-_OVERDUE:]
        found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=self._overdue)).messages_list
        over = set()
        for message in found:
            over.add(message.metadata.reply_to_message_id)
            with suppress(httpx.HTTPStatusError):
                self._confirm(message.metadata.message_id)
        self._overdue = [order for order in self._overdue if order not in over]


def _addresses(metadata: Any) -> tuple[int, int, str]:
    """Return the sender of a message, its run, and the order that it answers."""
    return int(metadata.src_node_id), int(metadata.run_id), str(metadata.reply_to_message_id)


def run_is_over(error: BaseException) -> bool:
    """True if a call failed because the SuperLink regards the run as ended."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _ENDED
