"""The round loop. Every method on every runtime goes through here."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from covey.evaluation import summary
from covey.federations import Truth
from covey.messages import Order, Replies, checked
from covey.records import Records, Stopwatch, round_record
from covey.roles import Method, Runtime

OnRound = Callable[[dict[str, object]], None]
Execute = Callable[[Sequence[tuple[Runtime, Order]]], list[Replies]]


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


def rounds(game: Game, stop: Callable[[], bool]) -> Generator[Order, Replies, None]:
    """The rounds that the records do not hold yet: each yields its order, is sent the replies, and is written."""
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
        scores = None
        if t % game.evaluate_every == 0 or t == game.rounds:
            with watch("evaluation"):
                scores = summary(runtime.evaluate(method.models()), game.truth.shares, method.model_of_client)
        record = round_record(order, replies, scores, game.truth.skew, watch.seconds, records.clock, asked)
        record |= {"figures": figures} if (figures := method.figures()) else {}
        stopping = stop()
        records.write(record, method.state_dict, now=stopping or t == game.rounds)
        if game.on_round:
            game.on_round(record)
        # A cohort's states may be the largest thing in memory: none is kept while the next ones are made.
        del replies
        if stopping:
            return


def play(games: Sequence[Game], execute: Execute, stop: Callable[[], bool] = lambda: False) -> None:
    """Play games in lockstep: the orders of a round of all of them are executed together.

    A game that is over leaves the others; when `stop` says so, each ends after its round.
    """
    waiting = []
    for game in games:
        turn = rounds(game, stop)
        order = next(turn, None)
        if order is not None:
            waiting.append((game, turn, order))
    while waiting:
        begin = time.perf_counter()
        answers = execute([(game.runtime, order) for game, _, order in waiting])
        share = (time.perf_counter() - begin) / len(waiting)
        ongoing = []
        answers.reverse()
        for game, turn, _ in waiting:
            try:
                ongoing.append((game, turn, turn.send(replace(answers.pop(), wall_seconds=share))))
            except StopIteration:
                continue
        waiting = ongoing


def one_by_one(orders: Sequence[tuple[Runtime, Order]]) -> list[Replies]:
    """Execute each run's order by itself."""
    return [runtime.execute(order) for runtime, order in orders]
