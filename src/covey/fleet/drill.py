"""Drills: a site that misbehaves on purpose, to see that the fleet bears it.

The node's configuration names a file, `drill="drill.txt"`, in the folder with the site's samples. Its lines say what
happens in which round (`nan 2`) or in every one (`sleep *`). A site without that setting never looks for one.

    nan        the model is full of NaN                huge       an array of a hundred megabytes is enclosed
    shape      the model has another shape             negative   the number of samples is below zero
    nothing    the answer is empty                     garbage    the model's bytes are not numbers
    sleep      no answer for `sleep N SECONDS`         error      the app raises
    crash      the process that answers is killed
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from covey.flower.wire import REPLY, as_array, order_instructions

KINDS = ("nan", "shape", "huge", "negative", "nothing", "garbage", "sleep", "error", "crash")

HUGE = 100_000_000
"""Bytes of the array that is enclosed."""

_ARRAYS = f"{REPLY}.arrays"


def drilled(message: Message, context: Context, answer: Message) -> Message:
    """The answer, or what a drill makes of it."""
    name = context.node_config.get("drill")
    if not name:
        return answer
    round = int(order_instructions(message.content)["round"])
    for kind, *rest in _lines(Path(str(context.node_config["folder"])) / str(name)):
        if kind in KINDS and rest and rest[0] in ("*", str(round)):
            return _spoiled(kind, answer, message, float(rest[1]) if len(rest) > 1 else 3600.0)
    return answer


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.split()]
    except OSError:
        return []


def _spoiled(kind: str, answer: Message, message: Message, seconds: float) -> Message:
    content = answer.content
    arrays = content.array_records.get(_ARRAYS, ArrayRecord())
    state = arrays.get("state")
    if kind == "nothing":
        return Message(RecordDict(), reply_to=message)
    if kind == "error":
        raise RuntimeError("the sensor is unplugged")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "sleep":
        time.sleep(seconds)
    if kind == "negative":
        content[REPLY] = MetricRecord({**content.metric_records[REPLY], "samples": -5})
    if kind == "huge":
        content[_ARRAYS] = ArrayRecord({**arrays, "more": as_array(np.zeros(HUGE, dtype=np.uint8))})
    if state is not None and kind in ("nan", "shape", "garbage"):
        values = state.numpy()
        content[_ARRAYS] = ArrayRecord({**arrays, "state": _broken(kind, values)})
    return answer


def _broken(kind: str, values: NDArray[Any]) -> Array:
    if kind == "nan":
        return as_array(np.full_like(values, np.nan))
    if kind == "shape":
        return as_array(values[:-1])
    made = as_array(values)
    return Array(made.dtype, made.shape, made.stype, b"garbage" * 10)
