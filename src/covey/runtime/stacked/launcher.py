"""Launches of the stacked runtime: lanes moved step by step, each step on a GPU one CUDA graph."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.arrays import FloatArray
from covey.config.sections import Local
from covey.core.messages import Order
from covey.core.progress import waiting_for
from covey.errors import Refusal, require
from covey.model.cuda_graph import recorded, warm_up
from covey.runtime.stacked.batch_norm import MaskedBatchNorm
from covey.runtime.stacked.convolution import (
    StackConv2d,
    Way,
    candidate_ways,
    convolutions,
    nearest,
    read_cache,
    replace_layers,
    replay_seconds,
    write_cache,
)
from covey.runtime.stacked.device_data import Holdings
from covey.runtime.stacked.lane_check import Odd, odd_lanes, verdict
from covey.runtime.stacked.lane_schedule import Schedule, Segment, Visit, schedule
from covey.runtime.stacked.sgd_step import Lanes, Terms, make_step

if TYPE_CHECKING:
    from covey.runtime.stacked.engine import Engine

MEASURED_STEPS = 10
"""Steps over which a way to compute them is timed."""

SMALL_PLAN = 1 << 14
"""Samples over all epochs and clients, up to which batches are drawn on the host."""

COMPUTE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


@dataclass(frozen=True, eq=False)
class Job:
    """One run's order of a round, and whose clients it is about."""

    order: Order
    holdings: Holdings
    seed: int


@dataclass(frozen=True, eq=False)
class Trained:
    """What a job's clients come to."""

    states: Tensor
    """`[cohort, d]`, on the device."""
    losses: FloatArray
    """`[cohort]`: mean training loss."""


class Launcher:
    """Lanes of one number, batch and set of terms, with the step that moves them."""

    def __init__(self, engine: "Engine", terms: Terms, lanes: int, batch: int) -> None:
        self.engine = engine
        self.batch = batch
        self.count = lanes
        self.lanes = Lanes.of(engine.layout, lanes, terms, engine.dtype, COMPUTE[engine.precision], engine.device)
        self._terms = terms
        self._buffers: dict[str, Tensor] = {}
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded_over: Tensor | None = None
        """The samples that the graph reads."""
        self._counter = torch.zeros(1, dtype=torch.int64, device=engine.device)
        self.on_gpu = engine.device.type == "cuda"
        self.ways: dict[str, Way] = {}
        self.measured: list[tuple[dict[str, Way], float]] = []
        self._step = self._make_step({})

    def _make_step(self, ways: dict[str, Way]) -> Callable[..., None]:
        """The step with each convolution computed in the given way, compiled on a GPU."""
        engine = self.engine
        learner = engine.learner
        module = stack_module(engine.module, ways).to(engine.device, engine.dtype).train()
        step = make_step(module, self._terms, learner.scale, learner.shift, engine.dtype, COMPUTE[engine.precision])
        return torch.compile(step, dynamic=False) if self.on_gpu else step

    def trial(self, visits: list[Visit], jobs: Sequence[Job]) -> float:
        """Seconds that these visits would take; nothing has changed afterwards."""
        steps = max(visit.end for visit in visits)
        self._load(self._plan(visits, jobs, steps), steps)
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        before = {name: value.clone() for name, value in self._state().items()}
        self._counter.zero_()
        seconds = replay_seconds(self._graph, MEASURED_STEPS)
        for name, value in self._state().items():
            value.copy_(before[name])
        return seconds * steps

    def _plan(self, visits: list[Visit], jobs: Sequence[Job], steps: int) -> Schedule:
        """What every lane does when; a small plan is made on the host, where it takes no launches."""
        slots = sum(visit.segment.work.epochs * visit.segment.samples for visit in visits)
        device = self.engine.device if slots > SMALL_PLAN else torch.device("cpu")
        holdings = [job.holdings for job in jobs]
        return schedule(visits, holdings, self.count, self.batch, self.engine.dtype, device, steps)

    def run(self, visits: list[Visit], jobs: Sequence[Job], results: list[Trained]) -> Tensor:
        """Train all visits; their summed losses `[visits]`, in order."""
        steps = max(visit.end for visit in visits)
        engine = self.engine
        plan = self._plan(visits, jobs, steps)
        losses = torch.zeros(len(visits), dtype=torch.float64, device=engine.device)
        # Begin and end of segments, in order of time; between two of these, steps need nothing from the host.
        begins: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        for number, visit in enumerate(visits):
            begins.setdefault(visit.begin, []).append(number)
            ends.setdefault(visit.end, []).append(number)
        self._load(plan, steps)
        starts = Models.of([job.order.start for job in jobs], engine)
        anchors = starts
        if self._terms.proximal and any(job.order.anchor is not None for job in jobs):
            pulled = [job.order.start if job.order.anchor is None else job.order.anchor for job in jobs]
            anchors = Models.of(pulled, engine)
        at = 0
        for stop in sorted({*begins, *ends}):
            self._advance(at, stop)
            at = stop
            if stop in ends:
                self._store(ends[stop], visits, results, losses)
            if stop in begins:
                self._fetch(begins[stop], visits, starts, anchors)
        return losses

    def _fetch(self, numbers: list[int], visits: list[Visit], starts: "Models", anchors: "Models") -> None:
        """Put the models that these visits start from into their lanes; the host does not wait for anything here."""
        stack, layout = self.lanes, self.engine.layout
        segments = [visits[number].segment for number in numbers]
        lanes = self._tensor([visits[number].lane for number in numbers])
        # When all lanes begin, what they begin with is copied as a whole.
        place = slice(None) if len(numbers) == self.count else lanes
        start, anchor = (self._tensor([models.row(one) for one in segments]) for models in (starts, anchors))
        for slot in layout.parameters:
            name = slot.name
            stack.parameters[name][place] = slot.of(starts.rows).index_select(0, start)
            if stack.working[name] is not stack.parameters[name]:
                stack.working[name][place] = stack.parameters[name][place].to(stack.working[name].dtype)
            if name in stack.received:
                stack.received[name][place] = slot.of(anchors.rows).index_select(0, anchor)
            if name in stack.velocity:
                stack.velocity[name].index_fill_(0, lanes, 0.0)
        for slot in layout.buffers:
            stack.buffers[slot.name][place] = slot.of(starts.rows).index_select(0, start)
        works: list[Local] = [one.work for one in segments]
        values = [[work.momentum, work.weight_decay, work.proximal] for work in works]
        stack.settings[place] = self._tensor(values, self.engine.dtype)
        stack.loss.index_fill_(0, lanes, 0.0)

    def _store(self, numbers: list[int], visits: list[Visit], results: list[Trained], losses: Tensor) -> None:
        """Take the models of finished visits out of their lanes."""
        lanes = self._tensor([visits[number].lane for number in numbers])
        losses[self._tensor(numbers)] = self.lanes.loss[lanes]
        layout = self.engine.layout
        for run in _runs(numbers, visits):
            states = results[run.job].states
            for slots, values in ((layout.parameters, self.lanes.parameters), (layout.buffers, self.lanes.buffers)):
                for slot in slots:
                    trained = values[slot.name][run.lanes].reshape(-1, slot.size)
                    states[run.positions, slot.start : slot.start + slot.size] = trained.to(states.device)

    def _tensor(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
        """Numbers on the device, without waiting for what it is doing."""
        tensor = torch.tensor(values, dtype=dtype)
        return tensor.pin_memory().to(self.engine.device, non_blocking=True) if self.on_gpu else tensor

    def _load(self, plan: Schedule, steps: int) -> None:
        """Copy the schedule where the graph reads it; a longer one than before needs a new graph."""
        tensors = plan.tensors()
        if not self.on_gpu:
            self._buffers = tensors
            return
        if not self._buffers or len(self._buffers["rate"]) < steps:
            # Room for measuring, too: steps beyond the schedule's have rate 0 and change nothing.
            room = max(MEASURED_STEPS + 1, 1 << (steps - 1).bit_length())
            self._buffers = {
                name: torch.zeros(room, *value.shape[1:], dtype=value.dtype, device=self.engine.device)
                for name, value in tensors.items()
            }
            self._graph = None
        if self._recorded_over is not self.engine.gallery.x:
            # Another run has added altered samples to the gallery, which was moved for it.
            self._graph = None
        for name, value in tensors.items():
            self._buffers[name][:steps].copy_(value, non_blocking=True)
        self._counter.zero_()

    def _advance(self, begin: int, end: int) -> None:
        """Take steps `begin` to `end`."""
        if not self.on_gpu:
            for at in range(begin, end):
                self._step(self.lanes, self.engine.gallery.x, **_at(self._buffers, at))
            return
        if end > begin and self._graph is None:
            self._capture()
        for _ in range(begin, end):
            assert self._graph is not None
            self._graph.replay()

    def _capture(self) -> None:
        """Record one step as a CUDA graph, with the fastest ways to convolve; nothing has changed afterwards."""
        with waiting_for(f"compiling {self._name} for {self.count} lanes"):
            self._record_fastest()

    @property
    def _name(self) -> str:
        return type(self.engine.module).__name__

    def _record_fastest(self) -> None:
        before = {name: value.clone() for name, value in self._state().items()}
        engine = self.engine
        if not self.ways and engine.for_speed and convolutions(engine.module):
            place = engine.signatures(self.batch)
            known = nearest(read_cache("ways"), place, self.count)
            candidates = candidate_ways(engine.module, engine.has_kernels, exact=engine.precision == "fp32")
            if known is not None and known[1] in candidates:
                self.ways = known[1]
                self._step = self._make_step(self.ways)
                # Found on this machine, but perhaps before something else changed there.
                with contextlib.suppress(Refusal):
                    self._graph = self._record()
            if self._graph is None:
                self._graph = self._fastest(candidates)
                write_cache("ways", {**read_cache("ways"), place(self.count): self.ways})
        if self._graph is None:
            self._graph = self._record()
        for name, value in self._state().items():
            value.copy_(before[name])
        self._counter.zero_()

    def _fastest(self, candidates: list[dict[str, Way]]) -> torch.cuda.CUDAGraph:
        """The graph of the candidate that takes the least time, all of them measured."""
        best: tuple[float, torch.cuda.CUDAGraph] | None = None
        failed: Exception | None = None
        for ways in candidates:
            step = self._step = self._make_step(ways)
            try:
                graph = self._record()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                # A compiler that stumbles over one way, or errs in it, leaves the others.
                failed = error
                continue
            self._counter.zero_()
            seconds = replay_seconds(graph, MEASURED_STEPS)
            self.measured.append((ways, seconds))
            if best is None or seconds < best[0]:
                best, self.ways, fastest = (seconds, graph), ways, step
        if isinstance(failed, Refusal) and best is None:
            raise failed
        if best is None:
            raise RuntimeError("No way to compute this model's convolutions works on this device.") from failed
        self._step = fastest
        return best[1]

    def _record(self) -> torch.cuda.CUDAGraph:
        """One step as a graph; which step of the schedule it is, is counted on the device.

        One whose lanes do not agree is refused.
        """

        def once() -> None:
            now = {name: value.index_select(0, self._counter)[0] for name, value in self._buffers.items()}
            self._step(self.lanes, self.engine.gallery.x, **now)
            self._counter.add_(1)

        def from_the_first() -> None:
            self._counter.zero_()
            once()

        warm_up(from_the_first, self.engine.device)
        self._counter.zero_()
        self._recorded_over = self.engine.gallery.x
        graph = recorded(once)
        odd = self._odd_lanes(graph.replay)
        require(not odd.lanes, verdict(odd, self.count, self._name))
        return graph

    def _odd_lanes(self, replay: Callable[[], None]) -> Odd:
        """Lanes that come to something else than others with the same data; none where memory is short for looking."""

        def first_step() -> None:
            self._counter.zero_()
            replay()

        try:
            return odd_lanes(self.lanes, self._buffers, self.engine.module, first_step)
        except torch.OutOfMemoryError:
            return Odd([], [])

    def _state(self) -> dict[str, Tensor]:
        stack = self.lanes
        named = {"loss": stack.loss}
        for kind in ("parameters", "working", "velocity", "buffers"):
            named |= {f"{kind}.{name}": value for name, value in getattr(stack, kind).items()}
        return named


@dataclass(frozen=True, eq=False)
class Models:
    """The models that orders send out: one for all clients of an order, or one for each."""

    rows: Tensor
    """`[models, d]`, on the device."""
    first: list[int]
    """Where those of each order begin."""
    shared: list[bool]
    """Whether an order has one for all."""

    @classmethod
    def of(cls, sent: Sequence[Tensor], engine: "Engine") -> "Models":
        parts = [models[None] if models.dim() == 1 else models for models in sent]
        on_device = [part.to(engine.device, engine.dtype) for part in parts]
        rows = on_device[0] if len(parts) == 1 else torch.cat(on_device)
        ends = np.cumsum([len(part) for part in parts])
        return cls(rows, [0, *ends[:-1].tolist()], [models.dim() == 1 for models in sent])

    def row(self, one: Segment) -> int:
        return self.first[one.job] + (0 if self.shared[one.job] else one.position)


def stack_module(module: nn.Module, ways: dict[str, Way]) -> nn.Module:
    """The model as a stack computes it: masked batch norm, each convolution in its way (grouped by default)."""
    copied = copy.deepcopy(module)
    layers = convolutions(copied)

    def stacked(name: str, layer: nn.Module) -> nn.Module | None:
        if name in layers:
            return StackConv2d(layers[name], ways.get(name, "grouped"))
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return MaskedBatchNorm(layer)
        return None

    replace_layers(copied, stacked)
    return copied


@dataclass(frozen=True)
class Neighbours:
    """Visits of one job in neighbouring lanes, whose clients are neighbours in the cohort too: plain slices."""

    job: int
    lanes: slice
    positions: slice


def _runs(numbers: list[int], visits: list[Visit]) -> list[Neighbours]:
    """Visits as few runs."""
    runs: list[Neighbours] = []
    for visit in (visits[number] for number in numbers):
        lane, position = visit.lane, visit.segment.position
        last = runs[-1] if runs else None
        if last and (last.job, last.lanes.stop, last.positions.stop) == (visit.segment.job, lane, position):
            runs[-1] = Neighbours(
                last.job, slice(last.lanes.start, lane + 1), slice(last.positions.start, position + 1)
            )
        else:
            runs.append(Neighbours(visit.segment.job, slice(lane, lane + 1), slice(position, position + 1)))
    return runs


def _at(buffers: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    """What the schedule says for one step."""
    return {name: value[step] for name, value in buffers.items()}
