"""What a node's app knows of Covey: found out by asking, without an error on a node that knows it.

A Covey app answers the query `who`. Any other app has no such query, and Flower says so before any of its code runs.
An app with Covey's mod answers a request to evaluate that carries the question among its settings, which other apps
answer like any request to evaluate.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from covey.flower.answer_text import declined
from covey.flower.private_api import NO_SUCH_QUERY, SIMULATED_ERROR
from covey.flower.wire import EVALUATE, WHO

IDENTITY = "covey.identity"
"""Name of the record with a node's name."""

ASKED = "covey.who"
"""Name of the setting that asks an app for Covey's mod."""


_LATE = 60.0
"""Seconds for which a question stays valid when nobody waits for its answer any more.

Flower logs an error for each answer to a message that has expired, and a simulation's engine starts with the first.
"""


class NodeKind(Enum):
    """What a node's app knows of Covey."""

    COVEY = "covey"
    """`covey.flower.client_app`."""
    MOD = "mod"
    """An app of its own, with `covey.flower.mod`."""
    PLAIN = "plain"
    """An app that knows nothing of Covey."""


def ask_who(grid: Grid, nodes: Collection[int], limit: float) -> tuple[dict[int, str], set[int], dict[int, str]]:
    """Return the names that nodes state, the nodes whose apps know no such question, and the errors of others."""
    asked = [Message(RecordDict(), dst_node_id=node, message_type=WHO, ttl=limit + _LATE) for node in nodes]
    stated, plain, failed = {}, set(), {}
    with _unknown_query_is_no_error():
        for answer in grid.send_and_receive(asked, timeout=limit):
            name = stated_name(answer)
            if name is not None:
                stated[answer.metadata.src_node_id] = name
            elif answer.has_content() or NO_SUCH_QUERY in (answer.error.reason or ""):
                plain.add(answer.metadata.src_node_id)
            else:
                failed[answer.metadata.src_node_id] = declined(answer)
    return stated, plain, failed


def ask_for_mod(
    grid: Grid, nodes: Collection[int], question: RecordDict, limit: float
) -> tuple[dict[int, str], dict[int, Message]]:
    """Return the names that nodes with the mod state, and the others' answers to a request to evaluate."""
    asked = [Message(question, dst_node_id=node, message_type=EVALUATE, ttl=limit + _LATE) for node in nodes]
    stated, others = {}, {}
    for answer in grid.send_and_receive(asked, timeout=limit):
        name = stated_name(answer)
        if name is None:
            others[answer.metadata.src_node_id] = answer
        else:
            stated[answer.metadata.src_node_id] = name
    return stated, others


def stated_name(answer: Message) -> str | None:
    """Return the name in a node's answer, as it was written; None if it states none."""
    record = answer.content.config_records.get(IDENTITY) if answer.has_content() else None
    return str(record["name"]) if record is not None and "name" in record else None


def identity(context: Context) -> RecordDict:
    """Return the name that a node states."""
    given = context.node_config
    name = given.get("client", given.get("partition-id", context.node_id))
    return RecordDict({IDENTITY: ConfigRecord({"name": str(name)})})


def asks_for_mod(message: Message) -> bool:
    """True if a message asks whether its app has the mod."""
    return any(ASKED in record for record in message.content.config_records.values())


def mod_question(content: RecordDict, config: str) -> RecordDict:
    """Return a request to evaluate that asks for the mod as well."""
    settings: Mapping[str, object] = content.config_records[config]
    return RecordDict({**content, config: ConfigRecord({**settings, ASKED: True})})  # type: ignore[dict-item]


def _drop_unknown(record: logging.LogRecord) -> bool:
    """Drop what a simulation logs when an app does not know the question; anything else passes."""
    return NO_SUCH_QUERY not in record.getMessage()


def _drop_heading(record: logging.LogRecord) -> bool:
    """Drop the line that a simulation logs before any error of a client."""
    return SIMULATED_ERROR not in record.getMessage()


@contextmanager
def _unknown_query_is_no_error() -> Iterator[None]:
    """Keep the answer of apps without Covey out of a simulation's log, also where it comes late."""
    log = logging.getLogger("flwr")
    log.addFilter(_drop_unknown)
    log.addFilter(_drop_heading)
    try:
        yield
    finally:
        log.removeFilter(_drop_heading)
