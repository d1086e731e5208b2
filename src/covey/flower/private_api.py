"""Everything that Covey uses of Flower beyond its public interface.

Flower's public interface is `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.simulation`. A fleet needs more:
it opens runs on a SuperLink, serves them from its own process, and answers for a SuperNode. Names from other modules of
Flower may change with any of its releases, so they are listed here (`PRIVATE`) and imported from here alone, each when
it is first used. A test names those that an installed Flower lacks.
"""

from collections.abc import Sequence
from importlib import import_module
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flwr.app import Message as AppMessage
    from flwr.app.message import make_message as make_message
    from flwr.app.message import remove_content_from_message as remove_content_from_message
    from flwr.cli.build import build_fab_from_disk as build_fab_from_disk
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.common.constant import Status as Status
    from flwr.common.constant import SubStatus as SubStatus
    from flwr.common.serde import fab_to_proto as fab_to_proto
    from flwr.common.serde import message_from_proto as message_from_proto
    from flwr.common.serde import message_to_proto as message_to_proto
    from flwr.common.serde import recorddict_from_proto as recorddict_from_proto
    from flwr.common.serde import recorddict_to_proto as recorddict_to_proto
    from flwr.common.serde import run_from_proto as run_from_proto
    from flwr.proto.control_pb2 import ListNodesRequest as ListNodesRequest
    from flwr.proto.control_pb2 import ListRunsRequest as ListRunsRequest
    from flwr.proto.control_pb2 import RegisterNodeRequest as RegisterNodeRequest
    from flwr.proto.control_pb2 import StartRunRequest as StartRunRequest
    from flwr.proto.control_pb2 import StopRunRequest as StopRunRequest
    from flwr.proto.control_pb2 import UnregisterNodeRequest as UnregisterNodeRequest
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest as DeactivateNodeRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest as ConfirmMessageReceivedRequest
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.message_pb2 import ObjectTree as ObjectTree
    from flwr.proto.node_pb2 import NodeInfo as NodeInfo
    from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
    from flwr.proto.runtime_pb2 import AcquireTaskRequest as AcquireTaskRequest
    from flwr.proto.runtime_pb2 import AcquireTaskResponse as AcquireTaskResponse
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest as PullAppMessagesRequest
    from flwr.proto.runtime_pb2 import PullTaskInputRequest as PullTaskInputRequest
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest as PushTaskOutputRequest
    from flwr.supercore.constant import TaskType as TaskType
    from flwr.supercore.control import ControlHttpClient as ControlHttpClient
    from flwr.supercore.fab import Fab as Fab
    from flwr.supercore.heartbeat import HeartbeatSender as HeartbeatSender
    from flwr.supercore.heartbeat import make_task_heartbeat_fn_http as make_task_heartbeat_fn_http
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree as iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_pull_object_fn_protobuf as make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError as ObjectPullError
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate_object_from_contents
    from flwr.supercore.inflatable.inflatable_utils import pull_objects as pull_objects
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor as RuntimeTokenHttpInterceptor
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor as RuntimeVersionHttpInterceptor
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor as SuperExecAuthHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes as public_key_to_bytes
    from flwr.supercore.protobuf.client import ProtobufClientInterceptor as ProtobufClientInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker as make_simple_http_retry_invoker
    from flwr.supercore.run import Run as FlowerRun
    from flwr.supercore.runtime import RuntimeHttpClient as RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.superlink import extensions as superlink_extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink as flower_superlink
    from flwr.superlink.grid import HttpGrid as HttpGrid
    from flwr.superlink.servicer.fleet import fleet_handlers as fleet_handlers
    from flwr.supernode import start_client_internal as start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode as flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient as FleetHttpClient
    from flwr.supernode.fleet_http_connection import http_request_response as http_request_response
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor as NodeAuthHttpInterceptor
    from flwr.supernode.runtime.run_clientapp import pull_task_input as pull_task_input
    from flwr.supernode.runtime.run_clientapp import push_message as push_message
    from flwr.supernode.runtime.run_clientapp import push_task_output as push_task_output


class PrivateName(NamedTuple):
    """A name that Flower does not promise to keep."""

    module: str
    name: str
    use: str
    members: Sequence[str] = ()
    """Attributes of it that Covey relies on."""


_CONTROL, _RUNTIME = "flwr.proto.control_pb2", "flwr.proto.runtime_pb2"
_INFLATABLE, _SERDE = "flwr.supercore.inflatable", "flwr.common.serde"

__all__ = ["FlowerRun", "ProtoMessage", "ProtoRecordDict", "superlink_extensions"]

PRIVATE: dict[str, PrivateName] = {
    # Messages and records as bytes, and their metadata.
    "message_from_proto": PrivateName(_SERDE, "message_from_proto", "read a message from bytes"),
    "message_to_proto": PrivateName(_SERDE, "message_to_proto", "write a message as bytes"),
    "recorddict_from_proto": PrivateName(_SERDE, "recorddict_from_proto", "read a site's memory"),
    "recorddict_to_proto": PrivateName(_SERDE, "recorddict_to_proto", "write a site's memory"),
    "ProtoMessage": PrivateName("flwr.proto.message_pb2", "Message", "a message as bytes"),
    "ProtoRecordDict": PrivateName("flwr.proto.recorddict_pb2", "RecordDict", "a site's memory as bytes"),
    "make_message": PrivateName("flwr.app.message", "make_message", "an error in the place of an unusable answer"),
    "remove_content_from_message": PrivateName(
        "flwr.app.message", "remove_content_from_message", "note whose order is being answered"
    ),
    "ErrorCode": PrivateName(
        "flwr.common.constant",
        "ErrorCode",
        "tell expired orders and nodes that left from other errors",
        (
            "MESSAGE_UNAVAILABLE",
            "REPLY_MESSAGE_UNAVAILABLE",
            "NODE_UNAVAILABLE",
            "CLIENT_APP_CRASHED",
            "CLIENT_APP_RAISED_EXCEPTION",
        ),
    ),
    "TaskIdentity": PrivateName(
        "flwr.supercore.task_identity",
        "TaskIdentity",
        "send messages as a run's server or node",
        ("run_id", "node_id", "task_id"),
    ),
    "FlowerRun": PrivateName("flwr.supercore.run", "Run", "the run of a grid in this process", ("create_empty",)),
    # A server's side of a SuperLink.
    "ControlHttpClient": PrivateName("flwr.supercore.control", "ControlHttpClient", "register nodes, open runs"),
    "ListNodesRequest": PrivateName(_CONTROL, "ListNodesRequest", "list registered nodes"),
    "ListRunsRequest": PrivateName(_CONTROL, "ListRunsRequest", "find runs whose server died"),
    "RegisterNodeRequest": PrivateName(_CONTROL, "RegisterNodeRequest", "register a site's key"),
    "StartRunRequest": PrivateName(_CONTROL, "StartRunRequest", "open a run"),
    "StopRunRequest": PrivateName(_CONTROL, "StopRunRequest", "end a run"),
    "UnregisterNodeRequest": PrivateName(_CONTROL, "UnregisterNodeRequest", "remove a site's key"),
    "NodeInfo": PrivateName("flwr.proto.node_pb2", "NodeInfo", "a registered node"),
    "Status": PrivateName("flwr.common.constant", "Status", "tell runs that have ended", ("FINISHED",)),
    "build_fab_from_disk": PrivateName("flwr.cli.build", "build_fab_from_disk", "pack the app that opens a run"),
    "Fab": PrivateName("flwr.supercore.fab", "Fab", "the app that opens a run"),
    "fab_to_proto": PrivateName(_SERDE, "fab_to_proto", "send the app that opens a run"),
    "run_from_proto": PrivateName(_SERDE, "run_from_proto", "read the run that was opened"),
    "public_key_to_bytes": PrivateName(
        "flwr.supercore.primitives.asymmetric", "public_key_to_bytes", "name a site by its key"
    ),
    # The SuperLink itself.
    "flower_superlink": PrivateName("flwr.superlink.cli.flower_superlink", "flower_superlink", "run a SuperLink"),
    "superlink_extensions": PrivateName(
        "flwr.superlink", "extensions", "put a gate before a SuperLink", ("get_middleware",)
    ),
    "fleet_handlers": PrivateName(
        "flwr.superlink.servicer.fleet", "fleet_handlers", "have nodes answer for themselves alone", ("push_messages",)
    ),
    # Tasks: a server app or a client app that this process runs itself.
    "RuntimeHttpClient": PrivateName("flwr.supercore.runtime", "RuntimeHttpClient", "claim tasks, move messages"),
    "AcquireTaskRequest": PrivateName(_RUNTIME, "AcquireTaskRequest", "claim a task"),
    "AcquireTaskResponse": PrivateName(_RUNTIME, "AcquireTaskResponse", "a claimed task"),
    "PullTaskInputRequest": PrivateName(_RUNTIME, "PullTaskInputRequest", "read a server's task"),
    "PushTaskOutputRequest": PrivateName(_RUNTIME, "PushTaskOutputRequest", "report how a server's task ended"),
    "TaskType": PrivateName(
        "flwr.supercore.constant", "TaskType", "claim tasks of one kind", ("SERVER_APP", "CLIENT_APP")
    ),
    "SubStatus": PrivateName("flwr.common.constant", "SubStatus", "report how a task ended", ("COMPLETED", "FAILED")),
    "HeartbeatSender": PrivateName("flwr.supercore.heartbeat", "HeartbeatSender", "report that a task is alive"),
    "make_task_heartbeat_fn_http": PrivateName(
        "flwr.supercore.heartbeat", "make_task_heartbeat_fn_http", "report that a task is alive"
    ),
    "ProtobufClientInterceptor": PrivateName(
        "flwr.supercore.protobuf.client", "ProtobufClientInterceptor", "type of the interceptors"
    ),
    "RuntimeVersionHttpInterceptor": PrivateName(
        "flwr.supercore.interceptors", "RuntimeVersionHttpInterceptor", "state Flower's version with each call"
    ),
    "RuntimeTokenHttpInterceptor": PrivateName(
        "flwr.supercore.interceptors", "RuntimeTokenHttpInterceptor", "show a task's token with each call"
    ),
    "SuperExecAuthHttpInterceptor": PrivateName(
        "flwr.supercore.interceptors", "SuperExecAuthHttpInterceptor", "show the shared secret when claiming a task"
    ),
    "make_simple_http_retry_invoker": PrivateName(
        "flwr.supercore.retry", "make_simple_http_retry_invoker", "repeat calls while a SuperLink is away"
    ),
    # The grid: answers are read one by one, bounded in size and time.
    "HttpGrid": PrivateName("flwr.superlink.grid", "HttpGrid", "the grid over a SuperLink"),
    "PullAppMessagesRequest": PrivateName(_RUNTIME, "PullAppMessagesRequest", "look for answers"),
    "ConfirmMessageReceivedRequest": PrivateName(
        "flwr.proto.message_pb2", "ConfirmMessageReceivedRequest", "let the SuperLink forget an answer"
    ),
    "ObjectTree": PrivateName("flwr.proto.message_pb2", "ObjectTree", "the parts of an answer"),
    "iterate_object_tree": PrivateName(
        f"{_INFLATABLE}.inflatable_object", "iterate_object_tree", "list the parts of an answer"
    ),
    "make_pull_object_fn_protobuf": PrivateName(
        f"{_INFLATABLE}.inflatable_protobuf_utils", "make_pull_object_fn_protobuf", "read a part of an answer"
    ),
    "pull_objects": PrivateName(f"{_INFLATABLE}.inflatable_utils", "pull_objects", "read the parts of an answer"),
    "inflate_object_from_contents": PrivateName(
        f"{_INFLATABLE}.inflatable_utils", "inflate_object_from_contents", "put an answer together"
    ),
    "ObjectPullError": PrivateName(f"{_INFLATABLE}.inflatable_utils", "ObjectPullError", "notice a broken answer"),
    # A site's node.
    "flower_supernode": PrivateName("flwr.supernode.cli.flower_supernode", "flower_supernode", "run a SuperNode"),
    "start_client_internal": PrivateName(
        "flwr.supernode", "start_client_internal", "set a SuperNode's pace", ("time", "http_request_response")
    ),
    "http_request_response": PrivateName(
        "flwr.supernode.fleet_http_connection", "http_request_response", "note the number of a SuperNode"
    ),
    "FleetHttpClient": PrivateName("flwr.supernode.fleet_http_client", "FleetHttpClient", "sign a dead SuperNode off"),
    "DeactivateNodeRequest": PrivateName("flwr.proto.fleet_pb2", "DeactivateNodeRequest", "sign a dead SuperNode off"),
    "NodeAuthHttpInterceptor": PrivateName(
        "flwr.supernode.node_auth_http_interceptor", "NodeAuthHttpInterceptor", "sign calls with a site's key"
    ),
    "pull_task_input": PrivateName("flwr.supernode.runtime.run_clientapp", "pull_task_input", "fetch an order"),
    "push_message": PrivateName("flwr.supernode.runtime.run_clientapp", "push_message", "hand an answer over"),
    "push_task_output": PrivateName(
        "flwr.supernode.runtime.run_clientapp", "push_task_output", "report how a client's task ended"
    ),
}
"""Name here → its place in Flower and its use."""


NO_SUCH_QUERY = "No query function registered with name"
"""What Flower says of a query that an app does not have; a test asks it."""

SIMULATED_ERROR = "An exception was raised when processing a message by"
"""What Flower's simulation logs of every error of a client, before the error itself."""


def __getattr__(name: str) -> Any:
    """Import a private name when it is first used."""
    if name not in PRIVATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    entry = PRIVATE[name]
    found = _find(entry)
    if found is None:
        raise ImportError(
            f"This version of Flower has no {entry.module}.{entry.name}, which Covey needs to {entry.use}: install the "
            "one that Covey's extra 'flower' asks for."
        )
    globals()[name] = found
    return found


def _find(entry: PrivateName) -> Any:
    """Return the object that an entry names, or None if Flower lacks it."""
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("flwr."):
            raise
        return None
    if not hasattr(module, entry.name):
        try:
            return import_module(f"{entry.module}.{entry.name}")
        except ModuleNotFoundError:
            return None
    return getattr(module, entry.name)


def missing_names() -> list[str]:
    """List the private names, and members of them, that the installed Flower lacks."""
    missing = []
    for entry in PRIVATE.values():
        path, found = f"{entry.module}.{entry.name}", _find(entry)
        if found is None:
            missing.append(path)
        else:
            missing += [f"{path}.{member}" for member in entry.members if getattr_static(found, member, None) is None]
    return missing


def set_message_id(message: "AppMessage", identifier: str) -> None:
    """Give a message its identifier, which Flower's own grids set in this way, too."""
    message.metadata.__dict__["_message_id"] = identifier


TaskNumbers = tuple[Any, Any, Any]
"""Numbers of a run, a node and a task."""


def task_identity() -> TaskNumbers:
    """Return the run, node and task that this process sends messages as."""
    identity = __getattr__("TaskIdentity")
    return identity.run_id, identity.node_id, identity.task_id


def set_task_identity(run: Any, node: Any, task: Any) -> None:
    """Send messages as this task of a run, at this node, from now on."""
    identity = __getattr__("TaskIdentity")
    identity.run_id, identity.node_id, identity.task_id = run, node, task
