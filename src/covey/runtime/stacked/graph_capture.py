"""A step of all lanes recorded as a CUDA graph, checked, and replayed once for every step of the schedule."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.core.progress import waiting_for
from covey.errors import require
from covey.model.cuda_graph import record_graph, warm_up
from covey.runtime.stacked import tiled_check
from covey.runtime.stacked.autotune import (
    TIMED_STEPS,
    fastest_graph,
    nearest,
    read_cache,
    replay_seconds,
    write_cache,
)
from covey.runtime.stacked.batch_schedule import Schedule
from covey.runtime.stacked.convolution import ConvAlgorithm, candidate_algorithms, convolutions
from covey.runtime.stacked.lane_check import LaneMismatch, check_lanes, mismatch_message, same_step
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, Lanes, Step, StepTerms
from covey.runtime.stacked.layer_fusion import fusible, wanted
from covey.runtime.stacked.layer_timing import fused_layers_win
from covey.runtime.stacked.linear_update_check import movable_layers, updates_agree
from covey.runtime.stacked.pooled_check import layers_agree

if TYPE_CHECKING:
    from covey.runtime.stacked.engine import Engine


@dataclass(frozen=True, eq=False)
class StepGraph:
    """The CUDA graph of one step, with the step and the samples that it reads, which must outlive it."""

    graph: torch.cuda.CUDAGraph
    step: Step
    samples: Tensor

    def replay(self) -> None:
        self.graph.replay()


class GraphSteps:
    """Steps of a stack on a GPU: replays of one CUDA graph.

    The graph reads the schedule from buffers at fixed addresses. A counter on the device selects the row, and every
    replay increments it, so the host sends nothing between steps.
    """

    def __init__(self, engine: "Engine", lanes: Lanes, terms: StepTerms, batch: int) -> None:
        self.engine = engine
        self.lanes = lanes
        self.buffers: dict[str, Tensor] = {}
        """The schedule, with spare rows at the end."""
        self.trace: Tensor | None = None
        """`[steps, lanes, h]`: the traced gradient of every step, if there is one."""
        self.counter = torch.zeros(1, dtype=torch.int64, device=engine.device)
        self.recorded: StepGraph | None = None
        self._terms = terms
        self._batch = batch
        self._step: Step | None = None
        """The fastest step, once it is known."""

    def load(self, schedule: Schedule, steps: int) -> None:
        """Copy the schedule to where the graph reads it; one longer than any before needs a new graph."""
        tensors = schedule.tensors()
        if not self.buffers or len(self.buffers["rate"]) < steps:
            # Timing needs rows too: those beyond the schedule's end have rate 0 and change nothing.
            room = max(TIMED_STEPS + 1, 1 << (steps - 1).bit_length())
            self.buffers = {
                name: torch.zeros(room, *value.shape[1:], dtype=value.dtype, device=self.engine.device)
                for name, value in tensors.items()
            }
            traced = self.lanes.gradient
            self.trace = None if traced is None else traced.new_zeros(room, *traced.shape)
            self.recorded = None
        if self.recorded is not None and self.recorded.samples is not self.engine.data.x:
            # Another run has added altered samples, which moved all samples to a new tensor.
            self.recorded = None
        for name, value in tensors.items():
            self.buffers[name][:steps].copy_(value, non_blocking=True)
        self.counter.zero_()

    def advance(self, begin: int, end: int) -> None:
        """Take steps `begin` to `end`."""
        if end <= begin:
            return
        graph = self.captured().graph
        for _ in range(begin, end):
            graph.replay()

    def seconds_per_step(self) -> float:
        """Time steps of the schedule that is loaded; lanes are left as they were."""
        captured = self.captured()
        changed = self.lanes.changed_by_a_step()
        before = [value.clone() for value in changed]
        self.counter.zero_()
        with self._busy():
            seconds = replay_seconds(captured, TIMED_STEPS)
        _restore(changed, before)
        return seconds

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Have lanes be busy in all steps, if they are in the first: an idle one may cost less, which says nothing."""
        rates = self.buffers["rate"]
        before = rates.clone()
        rates.copy_(rates[:1].clone().expand_as(rates))
        try:
            yield
        finally:
            rates.copy_(before)

    def captured(self) -> StepGraph:
        """Return the recorded step, recorded now if there is none; lanes are left as they were."""
        if self.recorded is None:
            name, count = type(self.engine.module).__name__, len(self.lanes.loss)
            with waiting_for(f"compiling {name} for {count} lanes"):
                changed = self.lanes.changed_by_a_step()
                before = [value.clone() for value in changed]
                self.recorded = self._record_fastest()
                _restore(changed, before)
                self.counter.zero_()
        return self.recorded

    def _record_fastest(self) -> StepGraph:
        """Record the step in the fastest way, which is searched for the first time only."""
        if self._step is not None:
            return self._record(self._step)
        found = self._updated() if self.engine.for_speed else self._record_with({})
        self._step = found.step
        return found

    def _updated(self) -> StepGraph:
        """Record the step with large linear layers moved by an operator of their own, if that is faster."""
        engine, count = self.engine, len(self.lanes.loss)
        updated = movable_layers(engine, self._terms)
        plain = engine.signature(self._batch, self._terms)

        def signature(lanes: int) -> str:
            return f"{plain(lanes)} {updated}"

        known = nearest(read_cache("updates"), signature, count) if updated else None
        slower = known is not None and not known[1]
        if not updated or slower or not updates_agree(engine, updated, self._terms, self._batch):
            return self._tuned()[1]
        if known is not None:
            # It worked when it was cached; something on the machine may have changed.
            try:
                return self._tuned(updated)[1]
            except torch.OutOfMemoryError:
                raise
            except Exception:
                pass
        algorithms, ordinary = self._tuned()
        with self._busy():
            choice, found = fastest_graph([[], updated], lambda names: self._like(ordinary, algorithms, names))
        write_cache("updates", {**read_cache("updates"), signature(count): bool(choice)})
        return found

    def _like(self, ordinary: StepGraph, algorithms: dict[str, ConvAlgorithm], updated: Collection[str]) -> StepGraph:
        """Return the ordinary step, or record the one that moves layers by an operator; refuse one that differs."""
        self.counter.zero_()
        if not updated:
            return ordinary
        found = self._record_with(algorithms, updated)
        steps = self._first_step(ordinary.graph), self._first_step(found.graph)
        try:
            same = same_step(self.lanes, self.engine.module, *steps)
        except torch.OutOfMemoryError:
            same = True
        self.counter.zero_()
        require(same, f"On this GPU a step that moves {', '.join(updated)} by one operator is another step.")
        return found

    def _tuned(self, updated: Collection[str] = ()) -> tuple[dict[str, ConvAlgorithm], StepGraph]:
        """Record the step with the cached convolution algorithms, or else time all candidates and cache the fastest."""
        engine, count = self.engine, len(self.lanes.loss)
        if not convolutions(engine.module):
            return {}, self._record_with({}, updated)
        exact, together = engine.precision == "fp32", self._fused()
        tiled = self._tiled()
        candidates = candidate_algorithms(engine.module, engine.has_kernels, exact=exact, fused=together, tiled=tiled)
        # A choice made without fused layers, or without tiles, says nothing about them.
        kind = "tiles" if tiled else "fused" if together else "ways"
        signature = engine.signature(self._batch, self._terms)
        known = nearest(read_cache(kind), signature, count)
        if known is not None and known[1] in candidates:
            # It worked when it was cached; the trainer may be another, or something on the machine may have changed.
            try:
                return known[1], self._record_with(known[1], updated)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                # All are timed anew, which says why if none works.
                pass
        algorithms, found = fastest_graph(candidates, lambda one: self._record_with(one, updated), self._wins)
        write_cache(kind, {**read_cache(kind), signature(count): algorithms})
        return algorithms, found

    def _fused(self) -> list[str]:
        """Return the convolutions whose pool and ReLU may be fused with them."""
        engine = self.engine
        if not wanted() or not engine.has_kernels or engine.precision == "fp32":
            return []
        names, compute = fusible(engine.module), COMPUTE_DTYPES[engine.precision]
        sample = engine.data.x.shape[1:]
        given = engine.module, names, sample, compute, engine.device, self._batch
        return names if names and layers_agree(*given) else []

    def _tiled(self) -> list[str]:
        """Return the convolutions that the kernels for many channels may compute; they are checked once one is."""
        engine = self.engine
        if not tiled_check.wanted() or not engine.has_kernels or engine.precision == "fp32":
            return []
        return tiled_check.tileable(engine.module)

    def _wins(self, algorithms: dict[str, ConvAlgorithm]) -> bool:
        """True if all layers are fused, and faster than their convolutions alone: nothing else needs compiling."""
        if set(algorithms.values()) != {"fused"}:
            return False
        engine, shape = self.engine, (len(self.lanes.loss), self._batch)
        sample, compute = engine.data.x.shape[1:], COMPUTE_DTYPES[engine.precision]
        return fused_layers_win(engine.module, list(algorithms), sample, *shape, compute, engine.device)

    def _record_with(self, algorithms: dict[str, ConvAlgorithm], updated: Collection[str] = ()) -> StepGraph:
        engine, tiled = self.engine, [name for name, one in algorithms.items() if one == "tiles"]
        sample, compute = engine.data.x.shape[1:], COMPUTE_DTYPES[engine.precision]
        given = engine.module, tiled, sample, compute, engine.device, self._batch
        if tiled and not layers_agree(*given, error_of=tiled_check.worst_error):
            raise RuntimeError("The kernels for many channels err on this device.")
        return self._record(engine.make_step(self._terms, algorithms, updated))

    def _record(self, step: Step) -> StepGraph:
        """Record a step as a CUDA graph, and refuse one whose lanes disagree. The counter is 0 afterwards."""
        samples = self.engine.data.x

        def once() -> None:
            row = {name: value.index_select(0, self.counter)[0] for name, value in self.buffers.items()}
            step(self.lanes, samples, **row)
            if self.trace is not None and self.lanes.gradient is not None:
                self.trace.index_copy_(0, self.counter, self.lanes.gradient[None])
            self.counter.add_(1)

        def first_row() -> None:
            self.counter.zero_()
            once()

        warm_up(first_row, self.engine.device)
        self.counter.zero_()
        graph = record_graph(once)
        mismatch = self._mismatch(graph)
        name, count = type(self.engine.module).__name__, len(self.lanes.loss)
        require(not mismatch.lanes, mismatch_message(mismatch, count, name))
        self.counter.zero_()
        return StepGraph(graph, step, samples)

    def _mismatch(self, graph: torch.cuda.CUDAGraph) -> LaneMismatch:
        """Return the lanes that disagree; none if memory is too short for the check."""
        try:
            return check_lanes(self.lanes, self.buffers, self.engine.module, self._first_step(graph))
        except torch.OutOfMemoryError:
            return LaneMismatch([], [])

    def _first_step(self, graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
        """Return a function that replays the first step of the schedule."""

        def first_step() -> None:
            self.counter.zero_()
            graph.replay()

        return first_step


def _restore(tensors: list[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
