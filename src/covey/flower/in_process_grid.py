"""A grid in this process, for tests and first steps: a message is answered by calling the app.

Messages are serialised both ways, as on a real grid. Flower's own simulation is in `covey.flower.simulation`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from covey.flower.private_api import (
    FlowerRun,
    message_from_proto,
    message_to_proto,
    set_message_id,
    set_task_identity,
)


class InProcessGrid(Grid):
    """`apps[i]` (or one app for all) answers for the node with configuration `nodes[i]`.

    `run_config` is what apps read as `context.run_config`, in an app's folder the section `tool.flwr.app.config`.
    """

    def __init__(
        self,
        app: ClientApp | Sequence[ClientApp],
        nodes: int | Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        configurations: list[Mapping[str, Any]] = (
            [{"partition-id": number, "num-partitions": nodes} for number in range(nodes)]
            if isinstance(nodes, int)
            else list(nodes)
        )
        self.contexts = {
            1000 + number: Context(1, 1000 + number, dict(config), RecordDict(), dict(run_config or {}))
            for number, config in enumerate(configurations)
        }
        apps = [app] * len(configurations) if isinstance(app, ClientApp) else list(app)
        self.apps = dict(zip(self.contexts, apps, strict=True))
        self._run = FlowerRun.create_empty(1)
        self._replies: dict[str, Message] = {}
        set_task_identity(1, 1, 1)

    def set_run(self, run: FlowerRun) -> None:
        self._run = run

    @property
    def run(self) -> FlowerRun:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = str(uuid4())
            set_message_id(message, number)
            self._replies[number] = travelled(self._answer(travelled(message)))
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        # A real grid returns answers in any order; this one in reverse.
        return self.pull_messages(list(self.push_messages(messages))[::-1])

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            return self.apps[node](message, self.contexts[node])
        except Exception as error:
            return Message(Error(code=0, reason=f"{type(error).__name__}: {error}"), reply_to=message)


def travelled(message: Message) -> Message:
    """Return the message as it arrives: through bytes."""
    sent = message_to_proto(message)
    return message_from_proto(type(sent).FromString(sent.SerializeToString()))
