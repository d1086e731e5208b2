"""The stacked runtime: a whole cohort, and a whole sweep, trained at once on one device.

The cohort's models are one stack; a step of local SGD is one vmapped, compiled operation on it, replayed as a
CUDA graph. What a client computes is what it computes on the local runtime: same batches, same augmentation,
same masks, from the same keys.
"""

import warnings
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from covey.client import Precision
from covey.config import Config
from covey.data.dataset import Dataset, Samples
from covey.environments import IntArray
from covey.errors import require
from covey.evaluation import Scores
from covey.federations import Federation
from covey.messages import Order, Replies, Reply, packed_size
from covey.randomness import key
from covey.roles import Runtime
from covey.runtimes.local import LocalRuntime
from covey.runtimes.stacked.engine import Engine, Job, Trained
from covey.runtimes.stacked.tables import Holdings

_TEST_CHUNK = 5_000


class StackedRuntime:
    """One device: the whole cohort at once, and with `execute_together` the cohorts of many runs."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        seed: int = 0,
        precision: Precision = "fp32",
        device: str | torch.device = "cpu",
        memory: int = 0,
        engine: Engine | None = None,
    ) -> None:
        self.federation = federation
        self.engine = engine or Engine(module, federation.dataset, precision, torch.device(device), memory)
        self._seed = seed
        self._holdings = Holdings.of(federation, self.engine.gallery)

    @classmethod
    def of(cls, federation: Federation, module: nn.Module, config: Config) -> Runtime:
        """One GPU: the whole cohort at once, and in comparisons the cohorts of all runs."""
        if config.device == "auto" and not torch.cuda.is_available():
            warnings.warn(
                "There is no GPU here, so the local runtime takes the stacked one's place "
                "(device=cpu runs the stack on the CPU).",
                stacklevel=2,
            )
            return LocalRuntime.of(federation, module, config)
        require(
            config.device != "cuda" or torch.cuda.is_available(), "device=cuda was asked for, and there is no GPU here."
        )
        device = "cpu" if config.device == "cpu" else "cuda"
        engine = _shared_engine(federation.dataset, module, config, device)
        return cls(federation, module, seed=config.seed, engine=engine)

    def available(self, round: int) -> IntArray:
        return np.arange(self.federation.clients)

    def execute(self, order: Order) -> Replies:
        return execute_together([(self, order)])[0]

    def evaluate(self, states: Tensor) -> Scores:
        gallery = self.engine.gallery
        losses, correct = [], []
        for state in states:
            loss, right = self.engine.learner.score(
                state.to(self.engine.device), Samples(gallery.test_x, gallery.test_y), chunk=_TEST_CHUNK
            )
            losses.append(loss)
            correct.append(right)
        totals = torch.bincount(self.federation.dataset.test_y, minlength=self.federation.dataset.classes)
        mean = torch.stack(losses).cpu().numpy() / len(gallery.test_y)
        return Scores(mean, torch.stack(correct).cpu().numpy(), totals.numpy())

    def close(self) -> None:
        """Nothing to end: the stack goes with the object."""


_engines: WeakValueDictionary[tuple[object, ...], Engine] = WeakValueDictionary()


def _shared_engine(dataset: Dataset, module: nn.Module, config: Config, device: str) -> Engine:
    """One engine for all runs with the same data, model and arithmetic that are alive at the same time."""
    place = (id(dataset), config.model.name, str(sorted(config.model.options.items())), config.precision, device)
    engine = _engines.get(place)
    if engine is None:
        engine = Engine(module, dataset, config.precision, torch.device(device), config.memory_bytes)
        _engines[place] = engine
    return engine


def execute_together(orders: Sequence[tuple[StackedRuntime, Order]]) -> list[Replies]:
    """The orders of several runs, those that share an engine as one launch."""
    answers: dict[int, Replies] = {}
    for engine in {id(runtime.engine): runtime.engine for runtime, _ in orders}.values():
        mine = [number for number, (runtime, _) in enumerate(orders) if runtime.engine is engine]
        jobs = [Job(orders[number][1], orders[number][0]._holdings, orders[number][0]._seed) for number in mine]
        for number, trained in zip(mine, engine.execute(jobs), strict=True):
            answers[number] = _replies(*orders[number], trained)
    return [answers[number] for number in range(len(orders))]


def _replies(runtime: StackedRuntime, order: Order, trained: Trained) -> Replies:
    clients = order.clients
    samples = runtime.federation.sizes[clients]
    measured = _measured(runtime, order, trained)
    sent = 0
    if len(clients):
        # Replies of one round have the same fields and shapes, hence the same size.
        fields = {name: {field: values[0] for field, values in of.items()} for name, of in measured.items()}
        one = Reply(int(clients[0]), trained.states[0], int(samples[0]), float(trained.losses[0]), fields).tensors()
        if order.resident:
            del one["state"]
        sent = packed_size(one) * len(clients)
    return Replies(
        clients, trained.states, torch.from_numpy(samples), torch.from_numpy(trained.losses), measured, bytes_up=sent
    )


def _measured(runtime: StackedRuntime, order: Order, trained: Trained) -> dict[str, dict[str, Tensor]]:
    """What the probes of the order measure, client by client on the device."""
    measured: dict[str, dict[str, Tensor]] = {}
    learner = runtime.engine.learner
    for probe in order.probes:
        rows = []
        for position, client in enumerate(order.clients.tolist()):
            received = order.start_of(position).to(runtime.engine.device)
            held = runtime.federation.samples(client)
            samples = Samples(held.x.to(runtime.engine.device), held.y.to(runtime.engine.device))
            place = key(key(runtime._seed, order.round, client), probe.name)
            rows.append(probe.measure(learner, received, trained.states[position], samples, place))
        measured[probe.name] = {field: torch.stack([row[field].cpu() for row in rows]) for field in rows[0]}
    return measured
