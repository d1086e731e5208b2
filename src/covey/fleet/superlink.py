"""The connection to a SuperLink: register sites, open a run, and hand its grid to Covey's round loop.

A SuperLink started with `--isolation process` leaves running server apps to others. Covey is the server app here: it
opens a run, claims its task, and sends orders from this process until the run ends.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from covey.core.printable_text import printable
from covey.errors import Refusal, require
from covey.fleet.certificates import read_authority
from covey.fleet.fleet_grid import GATE_MARK, LIMIT, OPENING, FleetGrid, ServerToken
from covey.flower.private_api import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    ControlHttpClient,
    Fab,
    HeartbeatSender,
    ListNodesRequest,
    ListRunsRequest,
    NodeInfo,
    ProtobufClientInterceptor,
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
    UnregisterNodeRequest,
    build_fab_from_disk,
    fab_to_proto,
    make_task_heartbeat_fn_http,
    run_from_proto,
    set_task_identity,
)
from covey.flower.public_keys import public_bytes

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
"""Calls that need the shared secret."""


@dataclass(frozen=True)
class Link:
    """A SuperLink's address, and the credentials of its server."""

    address: str
    """`host:port`"""
    authority: Path
    """The certificate of the authority that signed the SuperLink's."""
    secret: bytes | None = None
    """The server's secret, with which it claims its tasks and controls the SuperLink."""

    def register(self, sites: Iterable[tuple[str, Path]], *, replace: bool = False) -> dict[str, int]:
        """Register sites by their public keys (OpenSSH files); return the number of each one's node.

        A key that is already registered under its name stays; a name or a key of another site is refused. With
        `replace`, other keys of these names are removed.
        """
        with self._control() as control:
            known = {node.public_key: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
            found = {}
            for name, path in sites:
                public = public_bytes(path)
                for node in known.values():
                    if node.name == name and node.public_key != public and not node.unregistered_at:
                        require(
                            replace,
                            f"The site {name} is registered with another key than the pinned one. To remove the other "
                            "from the SuperLink: covey fleet register FOLDER --replace",
                        )
                        control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
                if (node := known.get(public)) is None:
                    answer = control.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
                    found[name] = int(answer.node_id)
                    continue
                require(
                    not node.unregistered_at,
                    f"The key of the site {name} was removed from the SuperLink, which takes none twice. The site "
                    "makes another (covey fleet join SITE --replace), and you accept that (covey fleet accept).",
                )
                require(
                    node.name == name,
                    f"The key of the site {name} is registered as {printable(node.name)}: give each site a pair of "
                    "keys of its own, or call the site by that name.",
                )
                found[name] = int(node.node_id)
        return found

    def remove(self, name: str, key: bytes | None) -> int:
        """Remove all nodes of a name, and that of a key, for good; return how many there were."""
        nodes = [node for node in self.nodes() if node.name == name or node.public_key == key]
        with self._control() as control:
            for node in nodes:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        return len(nodes)

    def nodes(self) -> list[NodeInfo]:
        """Return the registered nodes, connected or not."""
        with self._control() as control:
            return [node for node in control.ListNodes(ListNodesRequest()).nodes_info if not node.unregistered_at]

    def open_to_all(self) -> str | None:
        """Return a warning if the SuperLink has no gate before it, which would mark its answers; None if it has one."""
        answers = _Answers()
        with self._control(answers) as control:
            control.ListRuns(ListRunsRequest())
        if answers.marked:
            return None
        return (
            f"The SuperLink at {self.address} was not started by covey fleet link of this version. Without the gate, "
            "whoever reaches its port can register nodes and stop runs, and nodes can hand in answers of others."
        )

    def stop_runs(self) -> None:
        """End runs whose server died: nodes would wait for orders that were never sent in full."""
        with self._control() as control:
            for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
                if run.status.status != Status.FINISHED:
                    with suppress(httpx.HTTPStatusError):
                        control.StopRun(StopRunRequest(run_id=number))

    def stopped(self, run: int) -> bool:
        """True if somebody stopped a run, other than its server."""
        with self._control() as control:
            found = control.ListRuns(ListRunsRequest(run_id=run)).run_dict.get(run)
        return found is not None and found.status.sub_status == SubStatus.STOPPED

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
            interceptors.append(ServerToken(self.secret))
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=ACQUIRE))
        end = time.monotonic() + OPENING
        with self._reachable():
            client = RuntimeHttpClient.from_server_address(
                self.address, False, read_authority(self.authority), interceptors
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
    def _control(self, *more: ProtobufClientInterceptor) -> Iterator[ControlHttpClient]:
        with self._reachable():
            interceptors: list[ProtobufClientInterceptor] = [
                *more,
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
            ]
            if self.secret:
                interceptors.append(ServerToken(self.secret))
            client = ControlHttpClient.from_server_address(
                self.address, False, read_authority(self.authority), interceptors
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
            reason = printable(error.response.text).strip()[:300] or error.response.reason_phrase
            raise Refusal(f"The SuperLink at {self.address} refused: {reason}") from error


class _Answers:
    """Notes whether a SuperLink's last answer came through the gate."""

    marked = False

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        answer = call_next(context)
        self.marked = GATE_MARK in answer.headers
        return answer


def _heartbeat(grid: FleetGrid) -> Callable[[], bool]:
    """Return what reports that the server is alive. A run that is over is noticed by the next call of the grid."""
    beat = make_task_heartbeat_fn_http(grid._runtime_client)

    def unless_over() -> bool:
        try:
            return beat()
        except httpx.HTTPStatusError:
            return True

    return unless_over


@contextmanager
def _opened(link: Link, token: str, poll: float, limit: int) -> "Iterator[FleetGrid]":
    """Open the grid of a claimed run; report to the SuperLink that the server is alive, and how it ended."""
    grid = FleetGrid(link.address, read_authority(link.authority), token, link.secret, poll, limit)
    heartbeat = HeartbeatSender(_heartbeat(grid))
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
