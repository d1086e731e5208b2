"""Measure Covey's share of a round on Flower: messages, selection, checks, aggregation.

    python benchmarks/flower_overhead.py --out results/flower.json
    python benchmarks/flower_overhead.py --simulation        # and whole rounds on Flower's engine, for comparison

A round has 10 clients. The server's share is selection, making messages, reading replies, checks and aggregation. The
clients' share is reading the order and making the reply, summed over the ten; on Flower's engine they run in parallel.
Training, probes, and the time of Flower and Ray are not included. All figures are medians over rounds.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

sys.path.insert(0, str(Path(__file__).parents[1]))

from covey.config.schema import Config
from covey.core.replies import checked
from covey.flower import InProcessGrid
from covey.flower.exchange import Exchange
from covey.flower.flower_runtime import FlowerRuntime
from covey.flower.node_app import who
from covey.flower.node_memory import Memory
from covey.flower.roster import Roster
from covey.flower.simulated_client import client_of
from covey.flower.wire import order_instructions, pack_answer, unpack_order
from covey.job.experiment import Experiment

CLIENTS = 10
CASES: dict[str, Mapping[str, Any]] = {
    "fedavg, 62k parameters": {"method": "fedavg", "model": "tutorial-cnn"},
    "fedacs, 62k parameters": {"method": "fedacs", "model": "tutorial-cnn", "selector": {"pool": 1.0}},
    "fedavg, 1.66M parameters": {"method": "fedavg", "model": "mcmahan-cnn"},
}


class Laps(dict[str, list[float]]):
    """Part of a round → seconds, one entry per round."""

    def add(self, name: str, since: float) -> float:
        """Note the seconds since a moment; return the present one."""
        now = time.perf_counter()
        self.setdefault(name, []).append(now - since)
        return now


class Grid(InProcessGrid):
    """Passes messages as objects: serialisation is Flower's share."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            self._replies[str(number)] = self._answer(message)
            numbers.append(str(number))
        return numbers


def timed_app(laps: list[float]) -> ClientApp:
    """Return a client app that sends back the model it received, and notes the seconds of reading and replying."""
    app = ClientApp()

    def work(message: Message, context: Context) -> Message:
        begin = time.perf_counter()
        instructions = order_instructions(message.content)
        task = unpack_order(message.content, Memory(context.state, instructions["run"]).find, None, instructions)
        read = time.perf_counter() - begin
        client = client_of(task.job, task.client)
        assert task.start is not None
        measured: dict[str, torch.Tensor] = {}
        for probe in task.probes:
            fields = probe.measure(client.learner, task.start, task.start, client.samples, 0)
            measured |= {f"{probe.name}.{name}": value for name, value in fields.items()}
        begin = time.perf_counter()
        content: RecordDict = pack_answer(len(client.samples), 1.0, {**measured, "state": task.start})
        answer = Message(content, reply_to=message)
        laps.append(read + time.perf_counter() - begin)
        return answer

    app.train()(work)
    app.query()(work)
    app.query("who")(who)
    return app


def configured(case: Mapping[str, Any], **more: Any) -> Config:
    shape = (1, 28, 28) if case["model"] == "mcmahan-cnn" else (3, 32, 32)
    return Config.of(
        {
            "clients": CLIENTS,
            "cohort": CLIENTS,
            "rounds": 100,
            "dataset": {"name": "synthetic", "shape": shape, "train": 200, "test": 20},
            "environment": {"name": "uniform", "samples": 20},
            "local": {"epochs": 1, "batch": 20, "rate": 0.01},
            "workers": 1,
            **case,
            **more,
        }
    )


def measured(case: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Return the milliseconds of a round by part."""
    config = configured(case)
    experiment = Experiment.of(config)
    clients: list[float] = []
    grid = Grid(timed_app(clients), CLIENTS)
    over = FlowerRuntime(experiment.federation, experiment.module, config, grid)
    roster = Roster(CLIENTS)
    roster.wait(grid, 10.0)
    exchange = Exchange(roster, seed=0, job=over._folder.place, simulated=True, timeout=60.0)
    laps = Laps()
    try:
        for number in range(1, rounds + 2):
            clients.clear()
            begin = time.perf_counter()
            order = experiment.method.order(number, over.available(number))
            begin = laps.add("order", begin)
            messages = exchange.messages(order)
            laps.add("messages", begin)
            answers = list(grid.send_and_receive(messages))
            begin = time.perf_counter()
            replies = exchange.read(grid, order, answers)
            begin = laps.add("replies", begin)
            experiment.method.absorb(number, checked(replies))
            laps.add("method", begin)
            assert len(replies) == CLIENTS
            laps.setdefault("clients", []).append(sum(clients))
    finally:
        over.close()
        experiment.runtime.close()
    # The first round is warm-up.
    parts = {name: 1_000 * statistics.median(values[1:]) for name, values in laps.items()}
    server = sum(value for name, value in parts.items() if name != "clients")
    return {**parts, "server": server, "all": server + parts["clients"]}


def simulated(case: Mapping[str, Any], rounds: int) -> float:
    """Return the milliseconds of a whole round on Flower's engine, training included."""
    config = configured(case, workers=2)
    experiment = Experiment.of(config)
    over = FlowerRuntime.of(experiment.federation, experiment.module, config)
    seconds = []
    try:
        for number in range(1, rounds + 2):
            begin = time.perf_counter()
            order = experiment.method.order(number, over.available(number))
            experiment.method.absorb(number, checked(over.execute(order)))
            seconds.append(time.perf_counter() - begin)
    finally:
        over.close()
        experiment.runtime.close()
    return 1_000 * statistics.median(seconds[1:])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--simulation", action="store_true", help="measure whole rounds on Flower's engine too")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = {}
    for name, case in CASES.items():
        rows[name] = measured(case, given.rounds)
        if given.simulation:
            rows[name]["whole round on Flower's engine"] = simulated(case, given.rounds)
        text = ", ".join(f"{part} {value:.2f}" for part, value in rows[name].items())
        print(f"{name}: {text} (milliseconds per round of {CLIENTS} clients)")
    if given.out:
        about = {"cores": os.cpu_count(), "processor": platform.processor(), "torch": torch.__version__}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"rounds": given.rounds, "rows": rows, **about}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
