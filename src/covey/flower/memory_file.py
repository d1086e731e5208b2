"""A client's memory in a file of its own: Flower's state of a node lasts for one Flower run, and not over restarts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context

from covey.errors import Refusal
from covey.flower.private_api import ProtoRecordDict, recorddict_from_proto, recorddict_to_proto
from covey.storage import open_unlinked, write_private


def recall(context: Context, path: Path | None) -> int:
    """Load a client's memory (its own model, what probes and trainers keep), and return a turn number for this order.

    The file counts, not the state that the node hands over: that one is lost when the node restarts, and may come from
    an order that ended late.
    """
    if path is None:
        return 0
    with _turns(path) as turns:
        turns["taken"] += 1
        if path.is_file():
            context.state = recorddict_from_proto(ProtoRecordDict.FromString(path.read_bytes()))
        return turns["taken"]


def remember(context: Context, path: Path | None, turn: int) -> None:
    """Write a client's memory, if it holds anything, unless a later order has done so already."""
    if path is None or not any(len(record) for record in context.state.array_records.values()):
        return
    with _turns(path) as turns:
        if turn < turns["written"]:
            return
        beside = path.with_name(f"{path.name}.part")
        beside.unlink(missing_ok=True)
        write_private(beside, recorddict_to_proto(context.state).SerializeToString())
        beside.replace(path)
        turns["written"] = turn


@contextmanager
def _turns(path: Path) -> Iterator[dict[str, int]]:
    """Lock a client's memory; yield the last turn taken, and the turn of the order that wrote last.

    A server that gives up on an order sends the next one, so two may be in progress.
    """
    try:
        import fcntl
    except ImportError:
        raise Refusal("A client's memory needs file locks, which this system lacks; use Linux or macOS.") from None
    handle = open_unlinked(path.with_name(f"{path.name}.turns"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        found = [int(word) for word in os.read(handle, 64).split()]
        turns = dict(zip(("taken", "written"), found or (0, 0), strict=True))
        yield turns
        # A fixed number of bytes, in place: a process that is killed leaves no partial write.
        os.pwrite(handle, b"%020d %020d" % (turns["taken"], turns["written"]), 0)
    finally:
        os.close(handle)
