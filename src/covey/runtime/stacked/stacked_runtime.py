"""The stacked runtime: a whole cohort, or the cohorts of a whole sweep, trained at once on one device.

The cohort's models are one stack. A step of local training is one vmapped, compiled operation on it, replayed as a CUDA
graph. A client computes the same as on the local runtime: same batches, augmentation and dropout masks, from the same
keys. The package's docstring explains the terms.
"""

import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from covey.arrays import IntArray
from covey.client.learner import Precision, Tally
from covey.client.local_work import key_of_client, measure_client, separate
from covey.client.model_scores import scores_of
from covey.config.runtime_choice import gpu_here, no_gpu
from covey.config.schema import Config
from covey.core.interfaces import CohortProbe, Probe, Runtime
from covey.core.messages import Order
from covey.core.replies import TRAINER, Replies, Timing, replies_from_stack
from covey.core.scores import Scores
from covey.core.trainer import KEPT, Packing
from covey.data.dataset import Dataset
from covey.environment.federated_data import Federation
from covey.errors import require
from covey.model.frozen import constants_digest
from covey.runtime.local import LocalRuntime
from covey.runtime.stacked.device_data import MOST_RESIDENT, ClientTables
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.launcher import TrainRequest, TrainResult
from covey.runtime.stacked.stack_scores import score_stack

_MEASURED_AT_ONCE = 1 << 16
"""Samples of several clients that are measured at once."""


class StackedRuntime(Runtime):
    """One device: the whole cohort at once, and with `execute_many` the cohorts of many runs."""

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
        few = int(federation.sizes.sum()) <= MOST_RESIDENT
        self._tables = ClientTables.of(federation, self.engine.data, None if few else np.arange(1))
        """Of all clients, or if those are too large, of the clients that were asked for last."""

    @classmethod
    def of(cls, federation: Federation, module: nn.Module, config: Config) -> Runtime:
        """One GPU: the whole cohort at once, and in comparisons the cohorts of all runs."""
        if config.device == "auto" and not gpu_here():
            warnings.warn(
                "There is no GPU here, so the local runtime takes the stacked one's place "
                "(device=cpu runs the stack on the CPU).",
                stacklevel=2,
            )
            return LocalRuntime.of(federation, module, config)
        require(
            config.device != "cuda" or gpu_here(),
            f"{no_gpu()} What was begun with it is resumed where there is a GPU.",
        )
        device = "cpu" if config.device == "cpu" else "cuda"
        engine = _shared_engine(federation.dataset, module, config, device)
        return cls(federation, module, seed=config.seed, engine=engine)

    def available(self, t: int) -> IntArray:
        return np.arange(self.federation.clients)

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        """True on a GPU, which computes steps while the host does something else."""
        return self.engine.device.type == "cuda"

    @property
    def group(self) -> Hashable:
        """Runs that share an engine are trained as one stack."""
        return id(self.engine)

    def execute(self, order: Order) -> Replies:
        return self.execute_many([(self, order)])[0]

    def evaluate(self, states: Tensor) -> Scores:
        return self.evaluate_many([(self, states)])[0]

    def execute_many(
        self, orders: Sequence[tuple[Runtime, Order]], meanwhile: Callable[[], None] | None = None
    ) -> list[Replies]:
        """Train the clients of all orders together, then measure each order's probes."""
        stacked = [(_stacked(runtime), order) for runtime, order in orders]
        tables = [one.tables(order.clients) for one, order in stacked]
        requests = [
            TrainRequest(order, own, one._seed)
            for (one, order), own in zip(stacked, tables, strict=True)
            if order.train
        ]
        # Each result is dropped once its replies are made: its models may be the largest thing in memory.
        results = deque(self.engine.execute(requests, meanwhile) if requests else ())
        return [
            _replies(one, order, own, results.popleft() if order.train else None)
            for (one, order), own in zip(stacked, tables, strict=True)
        ]

    def tables(self, clients: IntArray) -> ClientTables:
        """Return tables that hold these clients."""
        held = self._tables.clients
        if held is not None and not np.array_equal(held.numpy(), clients):
            self._tables = ClientTables.of(self.federation, self.engine.data, clients)
        return self._tables

    def evaluate_many(self, requests: Sequence[tuple[Runtime, Tensor]]) -> list[Scores]:
        """Score the models `[m, d]` of all requests together."""
        counts = [len(states) for _, states in requests]
        keep = any(_stacked(one).federation.test_parts is not None for one, _ in requests)
        found = score_stack(self.engine, [state for _, states in requests for state in states], keep=keep)
        ends = np.cumsum(counts)
        return [
            scores_of(Tally(*(part[begin:end] for part in found)), self.engine.data.dataset)
            for begin, end in zip(ends - counts, ends, strict=True)
        ]


def _stacked(runtime: Runtime) -> StackedRuntime:
    """Narrow the type of a runtime: a stacked runtime's group has stacked runtimes only."""
    assert isinstance(runtime, StackedRuntime)
    return runtime


_engines: WeakValueDictionary[tuple[object, ...], Engine] = WeakValueDictionary()


def _shared_engine(dataset: Dataset, module: nn.Module, config: Config, device: str) -> Engine:
    """Return the engine that live runs with the same data, model, arithmetic and memory share."""
    model = (config.model.name, str(sorted(config.model.options.items())))
    engine_key = (id(dataset), *model, constants_digest(module), config.precision, device, config.memory_bytes)
    engine = _engines.get(engine_key)
    if engine is None:
        engine = Engine(module, dataset, config.precision, torch.device(device), config.memory_bytes)
        _engines[engine_key] = engine
    return engine


def _replies(runtime: StackedRuntime, order: Order, tables: ClientTables, trained: TrainResult | None) -> Replies:
    """Return the replies to an order whose models, if any, were trained as one stack."""
    clients = order.clients
    states = trained.states if trained else torch.empty(len(clients), 0)
    losses = trained.losses if trained else np.zeros(len(clients))
    measured, kept, seconds = _measured(runtime, order, tables, trained)
    if trained is not None and order.trainer is not None:
        if trained.reply is not None:
            packing = Packing(order.trainer.ref.part.replied, runtime.engine.layout)
            measured[TRAINER] = {name: rows.clone() for name, rows in packing.flat(trained.reply.cpu()).items()}
        if trained.kept is not None:
            kept[TRAINER] = {client: {KEPT: row} for client, row in zip(clients.tolist(), trained.kept, strict=True)}
    sizes, timing = runtime.federation.sizes[clients], Timing(probe_seconds=seconds)
    return replies_from_stack(order, states, sizes, losses, measured, kept, timing)


def _measured(
    runtime: StackedRuntime, order: Order, tables: ClientTables, trained: TrainResult | None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[int, dict[str, Tensor]]], dict[str, float]]:
    """Return the measurements that clients send, those that stay there, and the seconds that each probe took."""
    measured: dict[str, dict[str, Tensor]] = {}
    kept: dict[str, dict[int, dict[str, Tensor]]] = {probe.name: {} for probe in order.probes if probe.kept}
    seconds: dict[str, float] = {}
    groups = _groups(runtime, order) if order.probes and len(order.clients) else []
    for probe in order.probes:
        begin = time.perf_counter()
        parts = [_measured_group(runtime, order, tables, trained, probe, positions, kept) for positions in groups]
        if parts:
            measured[probe.name] = {field: torch.cat([part[field] for part in parts]) for field in parts[0]}
        seconds[probe.name] = time.perf_counter() - begin
    return measured, kept, seconds


def _groups(runtime: StackedRuntime, order: Order) -> list[list[int]]:
    """Split the cohort's positions into groups that are measured at once: groups of one if start models differ."""
    groups: list[list[int]] = []
    room = 0
    for position, client in enumerate(order.clients.tolist()):
        size = int(runtime.federation.sizes[client])
        if not groups or order.start.dim() == 2 or size > room:
            groups.append([])
            room = _MEASURED_AT_ONCE
        groups[-1].append(position)
        room -= size
    return groups


def _measured_group(
    runtime: StackedRuntime,
    order: Order,
    tables: ClientTables,
    trained: TrainResult | None,
    probe: Probe,
    positions: list[int],
    kept: dict[str, dict[int, dict[str, Tensor]]],
) -> dict[str, Tensor]:
    """Return field → `[positions, ...]`, on the host unless it is large; fields that stay on clients go to `kept`."""
    engine = runtime.engine
    clients = order.clients[positions].tolist()
    samples, counts = tables.samples(clients, engine.data)
    received = order.start_of(positions[0]).to(engine.device)
    models = trained.states[positions].to(engine.device) if trained else received.expand(len(positions), -1)
    if trained and probe.wants_steps():
        probe = probe.with_steps([trained.traces[position] for position in positions])
    if isinstance(probe, CohortProbe):
        fields = probe.measure_cohort(engine.learner, received, models, samples, counts)
        return {field: values if field in probe.on_device else values.cpu().clone() for field, values in fields.items()}
    rows = []
    for model, part, client in zip(models, samples.split(counts), clients, strict=True):
        client_key = key_of_client(runtime._seed, order.round, client)
        fields = measure_client(probe.for_client(client), engine.learner, received, model, part, client_key)
        sent, stays = separate(probe, fields)
        if probe.kept:
            kept[probe.name][client] = stays
        rows.append(sent)
    return {field: torch.stack([row[field] for row in rows]) for field in rows[0]}
