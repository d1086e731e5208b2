"""The round loop. Every method on every runtime goes through here."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from covey.evaluation import Scores, summary
from covey.federations import Truth
from covey.messages import Order, Replies, checked
from covey.records import Records, Stopwatch, round_record
from covey.roles import Method, Runtime

OnRound = Callable[[dict[str, object]], None]


@dataclass(frozen=True, eq=False)
class Scoring:
    """Models to be scored on the test set: `[m, d]`."""

    models: Tensor


@dataclass(frozen=True)
class Pause:
    """Nothing is asked for: games in lockstep wait here until all have learned from a round, and may think as one."""


Request = Order | Scoring
Answer = Replies | Scores
Execute = Callable[[Sequence[tuple[Runtime, Request]]], list[Answer]]
"""Answers to requests of one kind, of many runs."""


@dataclass(frozen=True, eq=False)
class Game:
    """Everything that a run's rounds need."""

    method: Method
    runtime: Runtime
    records: Records
    truth: Truth
    rounds: int
    evaluate_every: int = 1
    on_round: OnRound | None = None


def rounds(game: Game, stop: Callable[[], bool]) -> Generator[Request | Pause, Any, None]:
    """The rounds that the records do not hold yet: each yields its order, is sent the replies, and is written.

    What it needs besides, a survey before and scores after, it yields as well.
    """
    method, runtime, records = game.method, game.runtime, game.records
    for t in range(records.rounds_done + 1, game.rounds + 1):
        watch = Stopwatch()
        asked: list[tuple[Order, Replies]] = []
        with watch("selection"):
            reachable = runtime.available(t)
            survey = method.survey(t, reachable)
        if survey is not None:
            asked.append((survey, checked((yield survey))))
        with watch("selection"):
            for _, answers in asked:
                method.surveyed(t, answers)
            order = method.order(t, reachable)
        replies = yield order
        watch.seconds["clients"] = replies.wall_seconds + sum(answers.wall_seconds for _, answers in asked)
        with watch("aggregation"):
            replies = checked(replies)
            method.absorb(t, replies)
        # A cohort's states may be the largest thing in memory: they go before others are waited for.
        replies = replies.for_records()
        yield Pause()
        scores = None
        if t % game.evaluate_every == 0 or t == game.rounds:
            scored = yield Scoring(method.models())
            watch.seconds["evaluation"] = scored.wall_seconds
            with watch("evaluation"):
                scores = summary(scored, game.truth, method.model_of_client)
        record = round_record(order, replies, scores, game.truth.skew, watch.seconds, records.clock, asked)
        record |= {"figures": figures} if (figures := method.figures()) else {}
        if (annotate := getattr(runtime, "annotated", None)) is not None:
            record = annotate(record)
        stopping = stop()
        records.write(record, method.state_dict, now=stopping or t == game.rounds)
        if game.on_round:
            game.on_round(record)
        del replies
        if stopping:
            return


def play(games: Sequence[Game], execute: Execute, stop: Callable[[], bool] = lambda: False) -> None:
    """Play games in lockstep: what all of them ask for in a round is executed together.

    Pauses come first, then scores, surveys and training, so that games which need one of them do not fall out of step.
    A game that is over leaves the others; when `stop` says so, each ends after its round.
    """
    turns = [rounds(game, stop) for game in games]
    waiting = {number: request for number, turn in enumerate(turns) if (request := next(turn, None)) is not None}
    while waiting:
        first = min(map(_precedence, waiting.values()))
        numbers = [number for number in sorted(waiting) if _precedence(waiting[number]) == first]
        begin = time.perf_counter()
        asked = [(games[n].runtime, request) for n in numbers if not isinstance(request := waiting[n], Pause)]
        answers = execute(asked) if asked else []
        share = (time.perf_counter() - begin) / len(numbers)
        answers.reverse()
        for number in numbers:
            answer = replace(answers.pop(), wall_seconds=share) if answers else None
            try:
                waiting[number] = turns[number].send(answer)
            except StopIteration:
                del waiting[number]


def _precedence(request: Request | Pause) -> int:
    if isinstance(request, Pause):
        return -1
    return 0 if isinstance(request, Scoring) else 2 if request.train else 1


def one_by_one(requests: Sequence[tuple[Runtime, Request]]) -> list[Answer]:
    """Execute each run's request by itself."""
    return [
        runtime.evaluate(request.models) if isinstance(request, Scoring) else runtime.execute(request)
        for runtime, request in requests
    ]
