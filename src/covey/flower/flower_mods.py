"""Flower's mods around Covey's training: they see the model that is sent and settings, as around a quickstart's app.

A mod wraps a function from message to reply. It gets the arrays by name, each by itself, and one record of settings and
one of metrics; so Flower's own mods (clipping, local differential privacy, sizes of arrays) work unchanged. They see no
measurement of a probe.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from covey.client.local_work import ClientResult
from covey.errors import Refusal, require
from covey.flower.answer_text import reason_of
from covey.flower.named_arrays import NamedArrays
from covey.flower.plain_messages import PlainClients
from covey.flower.wire import NodeTask

AppFunction = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, AppFunction], Message]
"""A Flower mod."""

Perform = Callable[[NodeTask, Tensor], tuple[Tensor, ClientResult]]
"""Training and measuring: a task and the model received → the trained model, and what was measured."""
Around = Callable[[NodeTask, Tensor, Perform], tuple[Tensor, Tensor, ClientResult]]
"""The same with mods around it: the model to send comes first."""

_NAMES = PlainClients()


def mods_around(mods: Sequence[Mod], message: Message, context: Context, arrays: NamedArrays) -> Around:
    """Return how a client trains with mods around it, for one message."""

    def around(task: NodeTask, received: Tensor, perform: Perform) -> tuple[Tensor, Tensor, ClientResult]:
        done: list[tuple[Tensor, ClientResult]] = []

        def train(asked: Message, context: Context) -> Message:
            content = asked.content
            given = arrays.read(_only(content, "a mod"))
            settings: dict[str, Any] = dict(content.config_records[_NAMES.config])
            trained, result = perform(replace(task, settings={**task.settings, **settings}), given)
            done.append((trained, result))
            metrics = MetricRecord({"train_loss": result.loss, _NAMES.samples: result.samples})
            return Message(RecordDict({_NAMES.arrays: arrays.record(trained), "metrics": metrics}), reply_to=asked)

        settings = {"server-round": task.round, "lr": task.work.rate_at(task.round, 0), **task.settings}
        content = RecordDict({_NAMES.arrays: arrays.record(received), _NAMES.config: ConfigRecord(settings)})
        reply = call_app(message, context, content, chained(mods, train))
        require(bool(done), "A mod of this client answered in the place of its training.")
        return (arrays.read(_only(reply, "a mod")), *done[0])

    return around


def chained(mods: Sequence[Mod], function: AppFunction) -> AppFunction:
    """Return the function with mods around it, the first outermost."""
    for one in reversed(mods):
        function = partial(_called, one, function)
    return function


def _called(mod: Mod, function: AppFunction, message: Message, context: Context) -> Message:
    return mod(message, context, function)


def call_app(message: Message, context: Context, content: RecordDict, function: AppFunction) -> RecordDict:
    """Call an app's function with other content in the place of a message's; return what it replies, or raise."""
    order = message.content
    message.content = content
    try:
        reply = function(message, context)
    finally:
        message.content = order
    if reply.has_error():
        raise Refusal(reason_of(reply.error.reason))
    return reply.content


def _only(content: RecordDict, who: str) -> ArrayRecord:
    """Return the only record of arrays."""
    records = list(content.array_records.values())
    require(len(records) == 1, f"{who} left {len(records)} records of arrays, and a model is one.")
    return records[0]
