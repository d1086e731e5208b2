"""The round loop. Every method on every runtime goes through here."""

import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.core.checkpoint import copied_to_host
from covey.core.garbage import old_objects_spared
from covey.core.interfaces import JointWork, Method, Runtime
from covey.core.messages import Order
from covey.core.replies import Replies, checked
from covey.core.round_record import RoundRecord, Stopwatch, round_record
from covey.core.scores import EvaluationScores, Scores, raw_scores, summary
from covey.core.server_chain import Averaged
from covey.environment.truth import Truth
from covey.errors import require

OnRound = Callable[[dict[str, Any]], None]
"""Called with each round's record (see `RoundRecord`) when the round ends."""


@dataclass(frozen=True, eq=False)
class Survey:
    """Request: execute an order that comes before the round's own."""

    order: Order


@dataclass(frozen=True, eq=False)
class Scoring:
    """Request: score models `[m, d]` on the test set."""

    models: Tensor


@dataclass(frozen=True, eq=False)
class Joint:
    """Request and barrier: every run has aggregated its round; work that runs can share is done here."""

    works: Sequence[JointWork]
    replies: Replies
    """The round's replies as the method has believed them, without models."""


@dataclass(frozen=True)
class Unreachable:
    """Signal: no client can be reached; the round is skipped without a record."""

    t: int


Request = Survey | Order | Scoring | Joint | Unreachable
Answer = Replies | Scores | None


class RoundWriter(Protocol):
    """Keeps the records of finished rounds and the method's state."""

    rounds_done: int
    clock: float

    def state_due(self, state: Callable[[], State], *, now: bool = True) -> State | None:
        """Return the method's state if it is to be kept with the round that has ended: now, or when one is due."""
        ...

    def write(self, record: RoundRecord, state: State | None) -> None:
        """Keep a finished round, and the method's state if there is one."""
        ...


@dataclass(frozen=True, eq=False)
class LoopRun:
    """One run as the loop sees it."""

    method: Method
    runtime: Runtime
    records: RoundWriter
    truth: Truth | None
    """The clients' true class shares and skew; None where nobody knows them."""
    rounds: int
    evaluate_every: int = 1
    """Rounds between evaluations on the test set; 0 never evaluates."""
    on_round: OnRound | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every and self.truth is None:
            raise ValueError("A run that evaluates needs the truth about its clients; without it, evaluate_every is 0.")


Work = Callable[[], None]
"""Something to do once, now or later."""


def round_loop(
    run: LoopRun, stop: Callable[[], bool], postponed: list[Work] | None = None
) -> Generator[Request, Any, None]:
    """Run the rounds that the records do not hold yet.

    Each round yields its requests in turn (a survey if the method has one, the order, joint work, scoring) and is sent
    their answers. With a list `postponed`, it receives the writing of every round but the last, which is to be done
    before the next request is answered.
    """
    method, runtime, records = run.method, run.runtime, run.records
    for t in range(records.rounds_done + 1, run.rounds + 1):
        watch = Stopwatch()
        with watch("selection"):
            reachable = runtime.available(t)
        if not len(reachable):
            yield Unreachable(t)
            continue
        surveys = yield from _survey(method, t, reachable, watch)
        with watch("selection"):
            order = method.order(t, reachable)
            require(
                isinstance(order, Order),
                f"The method {type(method).__name__} must return the round's covey.Order, not {order!r:.60}.",
            )
        replies = yield order
        watch.seconds["clients"] = replies.wall_seconds + sum(answers.wall_seconds for _, answers in surveys)
        with watch("aggregation"):
            replies = method.screened(t, checked(replies))
            method.absorb(t, replies)
        # A cohort's states may be the largest thing in memory: they go before other runs are waited for.
        replies = replies.for_records()
        watch.seconds["aggregation"] += (yield Joint(method.joint_work(), replies)) or 0.0
        scores = None
        if run.evaluate_every and (t % run.evaluate_every == 0 or t == run.rounds):
            raw = method.raw_model() if isinstance(method, Averaged) else None
            served = method.models()
            scored = yield Scoring(served if raw is None else torch.cat([served, raw[None]]))
            watch.seconds["evaluation"] = scored.wall_seconds
            with watch("evaluation"):
                assert run.truth is not None
                scores = summary(scored.first(len(served)), run.truth, method.model_of_client)
                scores |= {} if raw is None else raw_scores(scored)
        stopping = stop()
        last = stopping or t == run.rounds
        ended = EndedRound(order, replies, surveys, scores, watch.seconds, method.figures())
        state = records.state_due(method.state_dict, now=last)
        if last or postponed is None:
            _write(run, ended, state)
        else:
            # The next order changes the method's state.
            postponed.append(partial(_write, run, ended, None if state is None else copied_to_host(state)))
        del replies, surveys, ended, state
        if stopping:
            return


@dataclass(frozen=True, eq=False)
class EndedRound:
    """What the record of a round is made of."""

    order: Order
    replies: Replies
    surveys: Sequence[tuple[Order, Replies]]
    scores: EvaluationScores | None
    seconds: Mapping[str, float]
    figures: Mapping[str, object]


def _write(run: LoopRun, ended: EndedRound, state: State | None) -> None:
    """Write a round's record and the method's state, if it is due, and show the record to `on_round`."""
    skew = None if run.truth is None else run.truth.skew
    about = ended.order, ended.replies, ended.scores, skew, ended.seconds, run.records.clock, ended.surveys
    record = round_record(*about)
    if ended.figures:
        record["figures"] = dict(ended.figures)
    record = run.runtime.annotate(record)
    run.records.write(record, state)
    if run.on_round:
        run.on_round(cast(dict[str, Any], record))


def _survey(
    method: Method, t: int, reachable: IntArray, watch: Stopwatch
) -> Generator[Request, Any, Sequence[tuple[Order, Replies]]]:
    """Execute the method's survey before round `t`, and return it with its checked replies; empty if it has none."""
    with watch("selection"):
        survey = method.survey(t, reachable)
    if survey is None:
        return ()
    replies = checked((yield Survey(survey)))
    with watch("selection"):
        method.surveyed(t, replies)
    return ((survey, replies),)


def run_in_lockstep(runs: Sequence[LoopRun], stop: Callable[[], bool] = lambda: False) -> None:
    """Advance runs together: requests of all runs are executed at once if their runtimes can.

    Joint work comes first, then scores, surveys and training, so that runs stay in step if only some of them request
    one of these. A run that ends leaves the others; once `stop` returns True, each ends after its round.

    On a runtime that `overlaps`, a round is written while the device computes the next one.
    """
    stopping = False
    postponed: list[Work] = []

    def write_ended() -> None:
        """Write the rounds that have ended. After an error nothing more is written."""
        works = postponed.copy()
        postponed.clear()
        for work in works:
            work()

    loops = [round_loop(run, lambda: stopping, postponed if run.runtime.overlaps else None) for run in runs]
    overlaps = any(run.runtime.overlaps for run in runs)
    with ExitStack() as stack:
        # Whatever ends the runs.
        stack.callback(write_ended)
        waiting = {number: request for number, loop in enumerate(loops) if (request := next(loop, None)) is not None}
        while waiting:
            first = min(map(_precedence, waiting.values()))
            numbers = [number for number in sorted(waiting) if _precedence(waiting[number]) == first]
            begin = time.perf_counter()
            answers = _answers([(runs[number].runtime, waiting[number]) for number in numbers], write_ended)
            share = (time.perf_counter() - begin) / len(numbers)
            write_ended()
            if overlaps and first is Precedence.TRAINING:
                # The step is compiled by now.
                overlaps = False
                stack.enter_context(old_objects_spared())
            # One look for all runs, where a round may end: each looks into the folders of all.
            stopping = stop() if first <= Precedence.SCORING else stopping
            for number, answer in zip(numbers, answers, strict=True):
                try:
                    joint = isinstance(waiting[number], Joint)
                    waiting[number] = loops[number].send(share if joint else _with_wall_seconds(answer, share))
                except StopIteration:
                    del waiting[number]


def _with_wall_seconds(answer: Answer, seconds: float) -> Answer:
    """Return the answer with the real time that it took."""
    if isinstance(answer, Replies):
        return replace(answer, timing=replace(answer.timing, wall_seconds=seconds))
    return None if answer is None else replace(answer, wall_seconds=seconds)


class Precedence(IntEnum):
    """The order in which requests of runs in lockstep are answered, lowest first."""

    JOINT_WORK = 0
    SCORING = 1
    MEASURING = 2
    TRAINING = 3


def _precedence(request: Request) -> Precedence:
    if isinstance(request, Joint | Unreachable):
        return Precedence.JOINT_WORK
    if isinstance(request, Scoring):
        return Precedence.SCORING
    return Precedence.TRAINING if _order(request).train else Precedence.MEASURING


def _order(request: Survey | Order) -> Order:
    return request.order if isinstance(request, Survey) else request


def _answers(requests: Sequence[tuple[Runtime, Request]], meanwhile: Work) -> Sequence[Answer]:
    """Answer requests of one precedence: those of runtimes of one group as one. A device may work `meanwhile`."""
    perform_jointly([work for _, request in requests if isinstance(request, Joint) for work in request.works])
    answers: list[Answer] = [None] * len(requests)
    groups: dict[Hashable, list[int]] = {}
    for number, (runtime, request) in enumerate(requests):
        if isinstance(request, Survey | Order | Scoring):
            groups.setdefault((runtime.group, isinstance(request, Scoring)), []).append(number)
    for numbers in groups.values():
        runtime = requests[numbers[0]][0]
        orders, scorings = [], []
        for one, request in (requests[number] for number in numbers):
            if isinstance(request, Survey | Order):
                orders.append((one, _order(request)))
            elif isinstance(request, Scoring):
                scorings.append((one, request.models))
        overlapping = (meanwhile,) if runtime.overlaps else ()
        found: Sequence[Answer] = (
            runtime.execute_many(orders, *overlapping) if orders else runtime.evaluate_many(scorings)
        )
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
    return answers


def perform_jointly(works: Sequence[JointWork]) -> None:
    """Perform work of many runs: of one class and with equal keys at once."""
    groups: dict[Hashable, list[JointWork]] = {}
    for work in works:
        groups.setdefault((type(work), work.key), []).append(work)
    for together in groups.values():
        type(together[0]).perform(together)
