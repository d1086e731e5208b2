"""Fault injection: a site misbehaves on purpose (a drill), to test that the fleet tolerates it.

The node's configuration names a file, `drill="drill.txt"`, in the folder with the site's samples. Each line names a
fault and its round (`nan 2`), or every round (`sleep *`). A site without that setting never looks for the file.

    nan        the model is full of NaN                huge       an array of a hundred megabytes is attached
    shape      the model has another shape             negative   the number of samples is below zero
    nothing    the answer is empty                     garbage    the model's bytes are not numbers
    sleep      no answer for `sleep N SECONDS`         error      the app raises
    crash      the process that answers is killed
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from covey.errors import require
from covey.flower.wire import REPLY, as_array, order_instructions

KINDS = ("nan", "shape", "huge", "negative", "nothing", "garbage", "sleep", "error", "crash")

HUGE = 100_000_000
"""Bytes of the attached array."""

_ARRAYS = f"{REPLY}.arrays"


@dataclass(frozen=True)
class InjectedFault:
    """A fault to inject: which client misbehaves, how, and in which round (None: in every one)."""

    client: int
    kind: str
    round: int | None

    @classmethod
    def of(cls, text: str, clients: int, rounds: range) -> "InjectedFault":
        """Parse `SITE:KIND:ROUND`, for a fleet with `clients` sites and a run with these rounds left."""
        site, kind, when = [*text.split(":"), "", ""][:3]
        every = when in ("", "*")
        require(
            text.count(":") <= 2 and site.isdecimal() and kind in KINDS and (every or when.isdecimal()),
            f"A drill is SITE:KIND:ROUND, such as 2:nan:1, with a kind of {', '.join(KINDS)}; not '{text}'.",
        )
        require(
            int(site) < clients,
            f"The drill '{text}' is for a site that is not there: the sites are 0 to {clients - 1}.",
        )
        require(len(rounds) > 0, f"The drill '{text}' comes too late: all rounds are done.")
        require(
            every or int(when) in rounds,
            f"The drill '{text}' is for a round that will not be run: the rounds are {rounds.start} to "
            f"{rounds.stop - 1}.",
        )
        return cls(int(site), kind, None if every else int(when))

    @property
    def line(self) -> str:
        """The line of the site's file."""
        return f"{self.kind} {'*' if self.round is None else self.round}\n"

    def missed(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why it did not take place in the rounds of these records; None if it did."""
        due = [row for row in rows if self.round in (None, row["round"])]
        if any(self.client in (*row["clients"], *(fault["client"] for fault in row["dropped"])) for row in due):
            return None
        why = "the run ended before"
        if due:
            why = next((name for name in ("away", "resting") if self.client in due[0][name]), "not invited")
            why = f"the site was {why}"
        when = "in any round" if self.round is None else f"in round {self.round}"
        return f"The drill {self.kind} of site {self.client} {when} did not take place: {why}."


def inject_fault(message: Message, context: Context, answer: Message) -> Message:
    """Return the answer, altered if a fault is due."""
    name = context.node_config.get("drill")
    if not name:
        return answer
    t = int(order_instructions(message.content)["round"])
    for kind, *rest in _lines(Path(str(context.node_config["folder"])) / str(name)):
        if kind in KINDS and rest and rest[0] in ("*", str(t)):
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
