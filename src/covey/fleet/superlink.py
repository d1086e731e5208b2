"""The connection to a SuperLink: register sites, open a run, and hand its grid to Covey's round loop.

A SuperLink started with `--isolation process` leaves running server apps to others. Covey is the server app here: it
opens a run, claims its task, and sends orders from this process until the run ends.
"""

import hashlib
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Error, Message, Metadata

from covey.errors import Refusal, require
from covey.flower.private_api import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    ConfirmMessageReceivedRequest,
    ControlHttpClient,
    Fab,
    HeartbeatSender,
    HttpGrid,
    ListNodesRequest,
    ListRunsRequest,
    NodeInfo,
    ObjectPullError,
    ObjectTree,
    ProtobufClientInterceptor,
    ProtoMessage,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    Status,
    StopRunRequest,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskType,
    build_fab_from_disk,
    fab_to_proto,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    make_pull_object_fn_protobuf,
    make_simple_http_retry_invoker,
    make_task_heartbeat_fn_http,
    public_key_to_bytes,
    pull_objects,
    run_from_proto,
    set_message_id,
    set_task_identity,
)

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
"""Calls that need the shared secret."""

LIMIT = 64 << 20
"""Default limit of an answer's bytes."""

UNUSABLE = 1000
"""Error code of an answer that is too large, incomplete or unreadable; Flower's own codes are small numbers."""

_OPENING = 60.0
"""Seconds within which a run must be opened."""

_LOOKS = 3.0
"""Seconds between two checks of the connected nodes while waiting for answers."""

_UPLOAD = 30.0
"""Seconds within which an answer that has begun to arrive must be complete."""

_SIDE_BY_SIDE = 8
"""Answers that are read at the same time."""

_OVERDUE = 1000
"""Unanswered orders whose late answers are still discarded."""


@dataclass(frozen=True)
class Link:
    """A SuperLink's address, and the credentials of its server."""

    address: str
    """`host:port`"""
    authority: Path
    """The certificate of the authority that signed the SuperLink's."""
    secret: bytes | None = None
    """The secret with which a server app claims its task."""

    def register(self, sites: Iterable[tuple[str, Path]]) -> dict[str, int]:
        """Register sites by their public keys (OpenSSH files); return the number of each one's node.

        A key that is already registered under its name stays; a name or a key of another site is refused.
        """
        with self._control() as control:
            known = {node.public_key: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
            numbers = {node.name: node.node_id for node in known.values() if not node.unregistered_at}
            found = {}
            for name, path in sites:
                public = public_bytes(path)
                node = known.get(public)
                if node is not None:
                    require(
                        not node.unregistered_at,
                        f"The key of the site {name} was removed from the SuperLink, which takes none twice. Give the "
                        f"site another pair of keys, and {path} the public one: "
                        "ssh-keygen -t ecdsa -b 384 -N '' -f node.key",
                    )
                    require(
                        node.name == name,
                        f"The key of the site {name} is registered as {node.name}: give each site a pair of keys of "
                        "its own, or call the site by that name.",
                    )
                    found[name] = int(node.node_id)
                    continue
                require(
                    name not in numbers,
                    f"The site {name} is registered with another key. Remove that one first: "
                    f"flwr supernode unregister {numbers.get(name, '')}",
                )
                answer = control.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
                found[name] = int(answer.node_id)
        return found

    def nodes(self) -> list[NodeInfo]:
        """Return the registered nodes, connected or not."""
        with self._control() as control:
            return [node for node in control.ListNodes(ListNodesRequest()).nodes_info if not node.unregistered_at]

    def stop_runs(self) -> None:
        """End runs whose server died: nodes would wait for orders that were never sent in full."""
        with self._control() as control:
            for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
                if run.status.status != Status.FINISHED:
                    with suppress(httpx.HTTPStatusError):
                        control.StopRun(StopRunRequest(run_id=number))

    @contextmanager
    def grid(self, app: Path, *, poll: float = 0.5, limit: int = LIMIT) -> "Iterator[FleetGrid]":
        """Open a run of a Flower app with this process as its server, and close it at the end."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._control() as control:
            run = int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
        try:
            token = self._claimed(run)
            with _opened(self, token, poll, limit) as grid:
                yield grid
        except BaseException:
            with suppress(httpx.HTTPError, Refusal), self._control() as control:
                control.StopRun(StopRunRequest(run_id=run))
            raise

    def _claimed(self, run: int) -> str:
        """Return the token of a run's server task; tasks of runs whose server died earlier are dropped."""
        interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if self.secret:
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=ACQUIRE))
        end = time.monotonic() + _OPENING
        with self._reachable():
            client = RuntimeHttpClient.from_server_address(
                self.address, False, self.authority.read_bytes(), interceptors
            )
            try:
                while time.monotonic() < end:
                    wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
                    answer: AcquireTaskResponse = client.AcquireTask(wanted)
                    if answer.HasField("task") and answer.token:
                        if answer.task.run_id == run:
                            return str(answer.token)
                    else:
                        time.sleep(0.2)
            finally:
                client.close()
        raise Refusal(
            f"The SuperLink at {self.address} gave the run to another server. Start it with --isolation process, and "
            "run one server at a time."
        )

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        with self._reachable():
            client = ControlHttpClient.from_server_address(
                self.address,
                False,
                self.authority.read_bytes(),
                [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )
            try:
                yield client
            finally:
                client.close()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Turn errors of the connection into refusals."""
        try:
            yield
        except httpx.TransportError as error:
            raise Refusal(f"The SuperLink at {self.address} cannot be reached: {error}.") from error
        except httpx.HTTPStatusError as error:
            reason = error.response.text.strip()[:300] or error.response.reason_phrase
            raise Refusal(f"The SuperLink at {self.address} refused: {reason}") from error


@contextmanager
def _opened(link: Link, token: str, poll: float, limit: int) -> "Iterator[FleetGrid]":
    """Open the grid of a claimed run; report to the SuperLink that the server is alive, and how it ended."""
    grid = FleetGrid(link, token, poll, limit)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(grid._runtime_client))
    status, details = SubStatus.FAILED, "stopped"
    try:
        heartbeat.start()
        task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        set_task_identity(task.run.run_id, task.context.node_id, task.task_id)
        grid.set_run(run_from_proto(task.run))
        yield grid
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        details = f"{type(error).__name__}: {error}"
        raise
    finally:
        grid._retry_invoker.max_tries = 1
        with suppress(httpx.HTTPError):
            grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        with suppress(RuntimeError):
            heartbeat.stop()
        grid.close()


class TooLarge(Exception):
    """An answer exceeds the limit of bytes."""


class FleetGrid(HttpGrid):
    """Flower's grid for a server that trusts nobody: answers are limited in size, and a bad one is lost alone."""

    def __init__(self, link: Link, token: str, poll: float, limit: int) -> None:
        super().__init__(link.address, False, link.authority.read_bytes(), token=token)
        # Wait for a SuperLink that is away for a moment; if it stays away the run ends, and can be resumed.
        self._retry_invoker = make_simple_http_retry_invoker()
        self._retry_invoker.max_time = _OPENING
        self._poll = poll
        self._limit = limit
        self._overdue: list[str] = []
        """Orders whose answers are late; these are discarded when they arrive."""

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
        except httpx.TransportError:
            raise
        except Exception as error:  # whatever a client sends, it must not end the run
            with suppress(httpx.HTTPStatusError):
                self._confirm(name)
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, TooLarge):
                reason = str(error)
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


def public_bytes(path: Path) -> bytes:
    """Return a public key from an OpenSSH file, in the SuperLink's form."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Refusal(f"The public key {path} cannot be read: {error}.") from error
    require(isinstance(key, ec.EllipticCurvePublicKey), f"The key {path} is not one of an elliptic curve.")
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return public_key_to_bytes(key)
