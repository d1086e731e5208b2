"""A site's processes: Flower's SuperNode, and beside it the worker that answers orders.

Flower starts a Python process for every message, which takes longer than most training. Here the libraries are loaded
once, and a fork answers each message. The worker runs the site's own app (`covey.fleet.site`) and no code that is sent
to it.

    python -m covey.fleet.node SITE_FOLDER [SITE_FOLDER ...]
"""

import fcntl
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from covey.errors import Refusal, require
from covey.fleet.certificates import read_authority
from covey.fleet.fleet_folder import Site
from covey.fleet.processes import end_with_parent, free_port
from covey.fleet.site import protection
from covey.fleet.superlink import ACQUIRE
from covey.flower.private_api import (
    AcquireTaskRequest,
    DeactivateNodeRequest,
    ErrorCode,
    FleetHttpClient,
    HeartbeatSender,
    NodeAuthHttpInterceptor,
    ProtobufClientInterceptor,
    ProtoMessage,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskType,
    flower_supernode,
    http_request_response,
    make_simple_http_retry_invoker,
    make_task_heartbeat_fn_http,
    message_from_proto,
    message_to_proto,
    pull_task_input,
    push_message,
    push_task_output,
    remove_content_from_message,
    set_task_identity,
    start_client_internal,
)
from covey.registry import import_path
from covey.storage import open_unlinked, replace_file
from covey.trust import also_search

PID = "node.pid"
"""File in a site's folder with its process ID, which is that of its group as well."""

NUMBER = "node.number"
"""File in a site's folder with the node's number at the server, while it is connected."""

ORDER_FILE = "order"
"""Prefix of the files in a site's folder that name the orders being answered."""

_GRACE = 1.5
"""Seconds that a SuperNode has to sign off from the server, by itself and when asked."""

_QUICK = 0.25
"""Seconds between two checks for orders on this machine, at most."""


def main(arguments: Sequence[str]) -> int:
    """Run the nodes of sites; several run in processes of their own, forked after the libraries are loaded."""
    sites = [Site.read(Path(argument)) for argument in arguments]
    require(bool(sites), "Say which site: its folder, with a site.toml.")
    # Models and apps of one's own, where the sites allow them.
    also_search(Path.cwd())
    require(hasattr(os, "fork"), "A site's node forks for each order, which this system cannot; use Linux or macOS.")
    torch.set_num_threads(1)
    if len(sites) == 1:
        return run_node(sites[0])
    nodes = [forked(partial(_separately, site)) for site in sites]

    def pass_on(number: int, frame: object) -> None:
        for node in nodes:
            with suppress(ProcessLookupError):
                os.kill(node, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    for _ in nodes:
        # In the order in which they end, so that none waits to be reaped.
        os.waitpid(-1, 0)
    return 0


def _separately(site: Site) -> int:
    os.setsid()
    log = open_unlinked(site.folder / "node.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return run_node(site)


def run_node(site: Site) -> int:
    """Connect a site to its fleet and answer orders until the SuperNode ends; return its exit code."""
    app = import_path(site.app, "app")
    require(isinstance(app, ClientApp), f"{site.app} is not a ClientApp.")
    if site.app == Site.app:
        # Check the options now, not at the first order.
        protection(site.settings)
    require(
        (site.folder / "node.key").is_file(),
        f"The site {site.name} has no key yet. Make one: covey fleet join {site.folder}",
    )
    read_authority(site.folder / "ca.crt")
    alone = open_unlinked(site.folder / "node.lock", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Refusal(f"The node of the site {site.name} runs already.") from None
    replace_file(site.folder / PID, str(os.getpid()).encode())
    port = site.port or free_port()
    supernode = forked(lambda: _supernode(site, port))
    ended = [0]

    def leave(number: int, frame: object) -> None:
        ended[0] = number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    try:
        return _work(site, app, port, supernode, lambda: bool(ended[0]))
    finally:
        _reap_all(supernode)
        with suppress(OSError):
            (site.folder / PID).unlink()


def _reap_all(supernode: int) -> None:
    """End the SuperNode, and reap every child."""
    # The signal that ends this process mostly reaches the SuperNode too; a second one would interrupt its sign-off.
    with suppress(ChildProcessError):
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.kill(supernode, number)
            end = time.monotonic() + _GRACE
            while time.monotonic() < end:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.02)


def forked(do: Callable[[], int]) -> int:
    """Fork a child process that does something and exits, at the latest with this process; return its ID."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent()
        code = do()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _supernode(site: Site, port: int) -> NoReturn:
    """Run Flower's SuperNode in this process, as its command does."""
    # Flower itself polls every 3 seconds.
    vars(start_client_internal).update(time=_Paced(site.poll), http_request_response=_noting_number(site))
    folder = site.folder
    _sign_off(site)
    configuration = " ".join(f"{key}={json.dumps(value)}" for key, value in site.settings.items())
    sys.argv = [
        "flower-supernode",
        *("--superlink", site.server),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "node.key")),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(folder / "secret")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", configuration),
    ]
    flower_supernode()
    sys.exit(0)


def _noting_number(site: Site) -> Callable[..., Any]:
    """Return Flower's connection to the server, extended to note the node's number there."""

    @contextmanager
    def connected(*arguments: Any) -> Iterator[Any]:
        with http_request_response(*arguments) as connection:
            replace_file(site.folder / NUMBER, str(connection[0]).encode())
            yield connection
        (site.folder / NUMBER).unlink(missing_ok=True)

    return connected


def _sign_off(site: Site) -> None:
    """Sign off for a process that died without doing so: a server refuses a node that it thinks is connected."""
    try:
        number = int((site.folder / NUMBER).read_text())
        key = load_ssh_private_key((site.folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        authority = (site.folder / "ca.crt").read_bytes()
        with FleetHttpClient.from_server_address(site.server, False, authority, interceptors) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=number))
    except (OSError, ValueError, httpx.HTTPError):
        # There was no such process, or the server does not know it; connecting will tell.
        pass


class _Paced:
    """The module `time`, with shorter sleeps."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def _work(site: Site, app: ClientApp, port: int, supernode: int, over: Callable[[], bool]) -> int:
    """Claim tasks from the SuperNode, and fork for each."""
    address = f"127.0.0.1:{port}"
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=site.secret, protected_methods=ACQUIRE),
    ]
    client = RuntimeHttpClient.from_server_address(address, True, None, interceptors)
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    parent = os.getppid()
    for left in site.folder.glob(f"{ORDER_FILE}-*"):
        left.unlink()
    tokens: dict[int, str] = {}
    while not over() and os.getppid() == parent:
        reaped, status = _reap()
        while reaped:
            if reaped == supernode:
                return os.waitstatus_to_exitcode(status)
            token, noted = tokens.pop(reaped, ""), order_file(site.folder, reaped)
            if token and status and noted.exists():
                forked(partial(answer_for_dead, address, token, noted, os.waitstatus_to_exitcode(status)))
            reaped, status = _reap()
        try:
            answer = client.AcquireTask(wanted)
            if answer.HasField("task") and answer.token:
                tokens[forked(partial(answer_task, address, str(answer.token), app, site.folder))] = str(answer.token)
                continue
        except httpx.HTTPError:
            # The SuperNode is not up yet, or about to end.
            pass
        time.sleep(min(site.poll, _QUICK))
    return 0


def _reap() -> tuple[int, int]:
    """Return a child that has ended, and how; (0, 0) if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def order_file(folder: Path, process: int) -> Path:
    """Return the file that names the order which a process answers; a late one may overlap with the next."""
    return folder / f"{ORDER_FILE}-{process}"


def answer_task(address: str, token: str, app: ClientApp, folder: Path) -> int:
    """Fetch an order from the SuperNode, have the app answer it, and hand over the answer.

    A file notes the order meanwhile: if this process is killed, another one answers for it.
    """
    noted = order_file(folder, os.getpid())
    client = _task_client(address, token)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    message, context, _, _ = pull_task_input(client)
    noted.write_bytes(message_to_proto(remove_content_from_message(message)).SerializeToString())
    status, details = SubStatus.COMPLETED, ""
    try:
        answer = app(message=message, context=context)
    except Exception as error:
        traceback.print_exc()
        # The server gets Covey's own sentences; messages of libraries may contain sample values.
        reason = str(error) if isinstance(error, Refusal) else "the site's log says more"
        status, details = SubStatus.FAILED, f"{type(error).__name__}: {reason}"
        answer = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details), reply_to=message)
    push_message(client, answer, context)
    push_task_output(client, context, status, details)
    noted.unlink(missing_ok=True)
    return 0


def answer_for_dead(address: str, token: str, noted: Path, code: int) -> int:
    """Report that the process which should have answered an order died; otherwise the SuperNode waits for a minute."""
    client = _task_client(address, token)
    message = message_from_proto(ProtoMessage.FromString(noted.read_bytes()))
    noted.unlink()
    run, node = message.metadata.run_id, message.metadata.dst_node_id
    set_task_identity(run, node, 0)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    reason = f"the process that trains {how}"
    answer = Message(Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=reason), reply_to=message)
    push_message(client, answer, Context(run, node, {}, RecordDict(), {}))
    push_task_output(client, None, SubStatus.FAILED, reason)
    return 0


def _task_client(address: str, token: str) -> RuntimeHttpClient:
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
        RuntimeTokenHttpInterceptor(token),
    ]
    return RuntimeHttpClient.from_server_address(
        address, True, None, interceptors, retry_invoker=make_simple_http_retry_invoker()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
