"""The round loop. Every method on every runtime goes through here."""

from collections.abc import Callable

from covey.evaluation import summary
from covey.federations import Truth
from covey.messages import checked
from covey.records import Records, Stopwatch, round_record
from covey.roles import Method, Runtime


def play(
    method: Method,
    runtime: Runtime,
    records: Records,
    truth: Truth,
    *,
    rounds: int,
    evaluate_every: int = 1,
    on_round: Callable[[dict[str, object]], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Run the rounds that `records` does not hold yet, up to `rounds`, writing each as it ends."""
    for t in range(records.rounds_done + 1, rounds + 1):
        watch = Stopwatch()
        with watch("selection"):
            order = method.order(t, runtime.available(t))
        with watch("clients"):
            replies = checked(runtime.execute(order))
        with watch("aggregation"):
            method.absorb(t, replies)
        scores = None
        if t % evaluate_every == 0 or t == rounds:
            with watch("evaluation"):
                scores = summary(runtime.evaluate(method.models()), truth.shares, method.model_of_client)
        record = round_record(order, replies, scores, truth.skew, watch.seconds, records.clock)
        records.write(record, method.state_dict())
        if on_round:
            on_round(record)
        if stop and stop():
            return
