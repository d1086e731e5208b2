"""One round as a line of `metrics.jsonl`."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, cast

from covey.arrays import FloatArray
from covey.core.messages import Fault, Order
from covey.core.replies import Replies
from covey.core.scores import ClientScore, EvaluationScores, finite
from covey.storage import misfit, read_json

TIMINGS = ("seconds", "probe_seconds")
"""Fields of a record that differ between two runs of the same seed."""


class FaultRecord(TypedDict):
    """A reply or a measurement that was lost."""

    client: int
    reason: str


class RefusedNode(TypedDict):
    """A node that connected with a key of no site: the name under which it was registered, and the key."""

    name: str
    key: str
    reason: str


class ClientLoss(TypedDict):
    """Loss of the sent model on the samples of the round's clients: mean, variance, highest minus lowest."""

    mean: float
    variance: float
    gap: float


class RoundRecord(TypedDict, total=False):
    """A round's line. It has scores if the round was evaluated, figures if the method has any, and so on."""

    round: int
    accuracy: float | None
    score: float | None
    metric: str
    better: str
    metrics: dict[str, float | None]
    client_score: ClientScore
    client_metrics: dict[str, ClientScore]
    loss: float | None
    class_accuracy: list[float]
    own_accuracy: float | None
    raw_accuracy: float | None
    raw_score: float | None
    raw_loss: float | None
    train_loss: float | None
    clients: list[int]
    cohort_skew: float | None
    dropped: list[FaultRecord]
    unmeasured: list[FaultRecord]
    unscored: list[FaultRecord]
    withheld: list[int]
    bytes_up: int
    bytes_down: int
    probe_bytes: dict[str, int]
    clock: float
    seconds: dict[str, float]
    probe_seconds: dict[str, float]
    client_loss: ClientLoss
    figures: dict[str, Any]
    attackers: list[int]
    away: list[int]
    resting: list[int]
    health: dict[str, dict[str, int]]
    refused: list[RefusedNode]


class _Written(TypedDict):
    """What every line has."""

    round: int
    clients: list[int]
    dropped: list[FaultRecord]
    bytes_up: int
    bytes_down: int
    seconds: dict[str, float]


def read_record(line: str) -> RoundRecord:
    """Read a round's line; ValueError says what is wrong with one that is no record."""
    record = read_json(line)
    for kind in (_Written, RoundRecord):
        if fault := misfit(record, kind, "its content"):
            raise ValueError(fault)
    found: RoundRecord = record
    if "accuracy" in found and found["accuracy"] is None:
        raise ValueError("its content.accuracy is None")
    return found


class Stopwatch:
    """Seconds by phase: `with watch("clients"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begin


def round_record(
    order: Order,
    replies: Replies,
    scores: EvaluationScores | None,
    skew: FloatArray | None,
    seconds: Mapping[str, float],
    clock: float = 0.0,
    asked: Sequence[tuple[Order, Replies]] = (),
) -> RoundRecord:
    """Return the round's line. `skew` is the true skew of each client `[clients]`, None where it is not known.

    `clock` is the simulated time at which the round began; `asked` are the surveys before it with their replies.
    """
    answers = [replies, *(answer for _, answer in asked)]
    probe_bytes: Counter[str] = Counter()
    probe_seconds: Counter[str] = Counter()
    for answer in answers:
        probe_bytes.update(answer.probe_bytes)
        probe_seconds.update(answer.probe_seconds)
    faults = [fault for answer in answers for fault in answer.faults]
    record: RoundRecord = {"round": order.round}
    record.update(cast(RoundRecord, scores or {}))
    rest: RoundRecord = {
        "train_loss": finite(replies.train_loss) if order.train else None,
        "clients": order.clients.tolist(),
        "cohort_skew": None if skew is None or not len(order.clients) else float(skew[order.clients].mean()),
        "dropped": [_fault_record(fault) for fault in faults if fault.measurement is None],
        "unmeasured": [_fault_record(fault) for fault in faults if fault.measurement is not None],
        "withheld": replies.withheld.tolist(),
        "bytes_up": sum(answer.bytes_up for answer in answers),
        "bytes_down": order.bytes_down() + sum(survey.bytes_down() for survey, _ in asked),
        "probe_bytes": dict(probe_bytes),
        "clock": clock + sum(answer.round_seconds for answer in answers),
        "seconds": {phase: round(value, 6) for phase, value in seconds.items()},
        "probe_seconds": {probe: round(value, 6) for probe, value in probe_seconds.items()},
    }
    record.update(rest)
    if fairness := client_loss(replies):
        record["client_loss"] = fairness
    return record


def client_loss(replies: Replies) -> ClientLoss | None:
    """Return how evenly the model that was sent serves the round's clients; None where they have not measured it.

    Mean and variance of its losses on each client's own samples, and the gap from the lowest to the highest.
    """
    for probe, field in (("losses", "before"), ("utility", "loss")):
        rows = replies.observed(probe)
        if len(rows):
            losses = replies.probes[probe][field].double().cpu().numpy()[rows]
            return {
                "mean": float(losses.mean()),
                "variance": float(losses.var()),
                "gap": float(losses.max() - losses.min()),
            }
    return None


def _fault_record(fault: Fault) -> FaultRecord:
    return {"client": fault.client, "reason": fault.reason}


def privacy_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ε and δ of a round's model, and whom they protect; empty if it has none."""
    figures = record.get("figures", {})
    found = {name: float(figures[name]) for name in ("epsilon", "delta") if isinstance(figures.get(name), (int, float))}
    protects = {"protects": str(figures["protects"])} if "protects" in figures else {}
    return {**found, **protects} if len(found) == 2 else {}
